"""The world of the one published run: profiles fitted to its log."""

from __future__ import annotations

import re
from dataclasses import replace

from rmixer.errors import UsageError
from rmixer.model import CPU, Profile
from rmixer.simulate.jobs import SimJob
from rmixer.simulate.worlds.network import NetworkWorld

#: Granularity per workload, fitted to the durations of the 19 GPU jobs in the published log of
#: balance_24 (benchmarks/published_log.py: each within 4 %). Those that the log does not have on a
#: GPU stand below, with the value of the workload that is most like them.
GRANULARITY = {
    "alidisplay_dmr": 0.305,
    "amazon_bst": 0.804,
    "amazon_dien": 1.532,
    "amazon_din": 7.63,
    "beauty_bert4rec": 5.287,
    "criteo_dcn": 0.107,
    "criteo_difm": 0.859,
    "criteo_widedeep": 0.365,
    "kdd_dpin": 1.974,
    "criteo_deepfm": 0.107,  # as criteo_dcn
    "criteo_dcn2": 0.365,  # as criteo_widedeep
    "criteo_dlrm": 0.365,
    "avazu_widedeep": 0.365,
    "avazu_flen": 0.107,  # as criteo_dcn
}
#: Demand, where the published utilisation cannot explain the log.
DEMAND = {"criteo_difm": 0.484}
#: Seconds alone: the log's bert4rec was done sooner beside others than the published time alone.
SECONDS = {"beauty_bert4rec": 28.06}

_NAME = re.compile(r"(?P<workload>[a-z0-9]+_[a-z0-9]+)(-\d+)?")


class LogWorld(NetworkWorld):
    """The published workloads as the published log shows them; jobs are known by their names.

    Demands are the published utilisations, but for difm; granularities are fitted; the times on the
    CPU are those that the jobs file declares (the log's, for din and deepfm).

    Args:
        As `NetworkWorld`.
    """

    name = "log"

    def known(self, job: SimJob) -> SimJob:
        """The job with the fitted profile.

        Raises:
            UsageError: it is none of the published workloads.
        """
        match = _NAME.fullmatch(job.spec.name)
        workload = match["workload"] if match else ""
        if workload not in GRANULARITY:
            raise UsageError(
                f"job {job.spec.name}: world log knows only the published workloads, as in "
                f"examples/published: {', '.join(sorted(GRANULARITY))}"
            )
        profiles = {kind: _fitted(workload, p) for kind, p in job.profiles.items()}
        return replace(job, profiles=profiles)


def _fitted(workload: str, profile: Profile) -> Profile:
    if profile.device_kind == CPU:
        return profile
    demand = DEMAND.get(workload, profile.demand.get("compute", 0.0))
    return replace(
        profile,
        solo_seconds=SECONDS.get(workload, profile.solo_seconds),
        demand={**profile.demand, "compute": demand},
        granularity={"compute": GRANULARITY[workload]},
    )
