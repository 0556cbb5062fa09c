"""The jobs files that are shipped."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rmixer.spec import load_jobs_file
from rmixer.spec.schema import JOB_KEYS

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_quickstart_is_valid() -> None:
    """At least eight jobs: a DLRM sweep of four, DeepFM, DIN, and two plain scripts."""
    jobs = load_jobs_file(EXAMPLES / "quickstart.yaml").jobs
    assert len(jobs) >= 8
    models = [job.payload.get("model") for job in jobs]
    assert models.count("dlrm") == 4
    assert {"deepfm", "din"} <= set(models)
    assert len({job.family for job in jobs if job.payload.get("model") == "dlrm"}) == 1
    scripts = [job.payload["argv"][1] for job in jobs if job.kind == "command"]
    assert len(scripts) >= 2
    assert all((EXAMPLES / script).is_file() for script in scripts)


@pytest.mark.skipif(
    not (EXAMPLES.parents[1] / "shared/data/adult_census").is_dir(),
    reason="the census data is not beside this checkout",
)
def test_the_census_example_is_valid() -> None:
    """Built-in models only."""
    jobs = load_jobs_file(EXAMPLES / "adult.yaml").jobs
    assert {job.kind for job in jobs} == {"model"}


def test_the_documented_example_is_valid(tmp_path: Path) -> None:
    """The YAML of the page on jobs files loads, and the page names every key."""
    page = (EXAMPLES.parent / "docs" / "jobs-file.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert blocks
    for block in blocks:
        (tmp_path / "jobs.yaml").write_text(block)
        jobs = load_jobs_file(tmp_path / "jobs.yaml").jobs
    assert jobs[-1].after == tuple(job.id for job in jobs[:-1])
    assert [key for key in JOB_KEYS if f"`{key}`" not in page] == []
