"""What a world is: the truth about jobs, and the law of their rates side by side.

A policy believes what is declared; the world may know better. What the two can differ in is the
same for every world: `World` draws it from the seed, job by job, so that every policy meets the
same truth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from rmixer.model import Device, Estimate, Node, Profile
from rmixer.policies.base import number
from rmixer.simulate.jobs import SimJob, seconds_of


@dataclass(frozen=True, slots=True)
class Member:
    """A job as it really is.

    Attributes:
        id: the job.
        key: jobs of the same key are alike to the law.
        profiles: its true use, per kind of device.
        device_memory: its true peak on a GPU, bytes.
        fails: the share of its work at which its first attempts fail, one per attempt.
    """

    id: str
    key: str
    profiles: Mapping[str, Profile]
    device_memory: int
    fails: tuple[float, ...] = ()

    def seconds(self, kind: str) -> float:
        """Its true time alone on a kind of device."""
        return seconds_of(self.profiles[kind])


class World:
    """Decides the true rates. A subclass gives the law and, if it knows better, the profiles.

    Args:
        demand: believed demands are wrong by up to this share.
        granularity: believed granularities likewise.
        duration: believed lengths likewise.
        memory: believed device memory likewise; a job that takes more than its device has left
            ends out of memory.
        noise: the rate of a job in a company differs from the law's by up to this share.
        failures: the probability that an attempt fails somewhere in its work.
    """

    name = "world"

    def __init__(
        self,
        *,
        demand: float = 0.0,
        granularity: float = 0.0,
        duration: float = 0.0,
        memory: float = 0.0,
        noise: float = 0.0,
        failures: float = 0.0,
    ) -> None:
        shares = {
            "demand": demand, "granularity": granularity, "duration": duration, "memory": memory,
            "noise": noise, "failures": failures,
        }  # fmt: skip
        for key, value in shares.items():
            if number(f"world {self.name}", key, value, 0.0) >= 1:
                raise ValueError(f"world {self.name}: {key} must be below 1, not {value!r}")
        self.demand, self.granularity, self.duration = demand, granularity, duration
        self.memory, self.noise, self.failures = memory, noise, failures

    # --- what a subclass gives --------------------------------------------------------------

    def known(self, job: SimJob) -> SimJob:
        """The job with the profiles that hold in this world, which are believed but for errors.

        Raises:
            UsageError: the world does not know such a job.
        """
        return job

    def law(self, node: Node, crowds: Mapping[str, Sequence[Member]]) -> dict[str, list[float]]:
        """The rate of each job on each of these devices; by device id, in the order given."""
        raise NotImplementedError

    def couples(self, members: Sequence[Member]) -> bool:  # noqa: ARG002
        """Whether jobs on different devices slow each other."""
        return False

    def rates_of_sets(
        self, device: Device, node: Node, sets: Sequence[Sequence[Member]]
    ) -> list[list[float]]:
        """The rates of many sets that might run on a device."""
        return [self.law(node, {device.id: members})[device.id] for members in sets]

    def work(self, member: Member, kind: str) -> dict[str, float]:
        """The seconds that a job keeps each station of a device busy; see `rmixer.bound`."""
        raise NotImplementedError

    # --- truth and belief -------------------------------------------------------------------

    def member(self, job: SimJob, seed: int) -> Member:
        """The truth about a job that is `known`."""
        draw = Random(f"{seed}:{job.id}:fails")
        fails = []
        for _ in range(job.spec.retries + 1):
            if draw.random() >= self.failures:
                break
            fails.append(draw.uniform(0.05, 0.95))
        return Member(
            id=job.id,
            key=repr((sorted(job.profiles.items()), job.estimate.device_memory)),
            profiles=job.profiles,
            device_memory=job.estimate.device_memory,
            fails=tuple(fails),
        )

    def believed(self, job: SimJob, seed: int) -> SimJob:
        """What a policy is told of a job that is `known`."""
        draw = Random(f"{seed}:{job.id}:belief")

        def off(share: float) -> float:
            return draw.uniform(1.0 - share, 1.0 + share)

        longer, larger = off(self.duration), off(self.memory)
        profiles = {
            kind: replace(
                profile,
                solo_seconds=seconds_of(profile) * longer,
                demand={k: min(1.0, v * off(self.demand)) for k, v in profile.demand.items()},
                granularity={k: v * off(self.granularity) for k, v in profile.granularity.items()},
            )
            for kind, profile in job.profiles.items()
        }
        memory = int(job.estimate.device_memory * larger)
        estimate = Estimate(
            memory=job.estimate.memory, device_memory=memory, source=job.estimate.source
        )
        return replace(job, profiles=profiles, estimate=estimate)

    def noisy(self, rate: float, member: Member, company: Sequence[Member], seed: int) -> float:
        """The rate with its noise, the same whenever the same jobs meet."""
        if not self.noise:
            return rate
        names = ",".join(sorted(one.id for one in company))
        draw = Random(f"{seed}:{member.id}:{names}:noise")
        return min(1.0, rate * draw.uniform(1.0 - self.noise, 1.0 + self.noise))
