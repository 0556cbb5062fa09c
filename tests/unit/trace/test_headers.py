"""An estimate of data that are not parsed, where headers tell the sizes of the tables."""

from pathlib import Path

import pytest

from data_examples import fuxictr, torchrec
from rmixer.data import cache, schema
from rmixer.errors import RmixerError
from rmixer.trace.worker import trace_job

JOB = {
    "model": "deepfm", "params": {"embedding_dim": 4}, "batch_size": 64,
    "optimizer": {"name": "adagrad", "lr": 0.01},
}  # fmt: skip


def request(folder: Path) -> dict:
    return {"device": "cpu", "cache_dir": str(folder / "cache"), "environment": {}}


@pytest.mark.parametrize("name", ["fuxictr", "torchrec"])
def test_nothing_is_parsed_and_the_tables_are_as_large(name: str, tmp_path: Path) -> None:
    """The estimate is near that of the parsed data, whose ids are uniform too; lists are full."""
    data = fuxictr(tmp_path) if name == "fuxictr" else {**torchrec(tmp_path), "table_rows": 40}
    job = {**JOB, "data": data}
    told = trace_job(job, request(tmp_path))
    assert not list((tmp_path / "cache").glob(f"{name}-*"))
    cache.prepare(schema.parse(data), tmp_path / "cache")
    parsed = trace_job(job, request(tmp_path))
    found, wanted = told["host"], parsed["host"]
    assert found["by_category"]["parameters"] == wanted["by_category"]["parameters"]
    # Uniform ids touch about as many rows as these do; where they lie in the heap differs.
    assert 0.95 < found["allocated"] / wanted["allocated"] < 1.1
    assert 0.9 < found["reserved"] / wanted["reserved"] < 1.1
    assert 1.0 <= told["mapped_bytes"] / parsed["mapped_bytes"] < 1.5


def test_a_larger_table_is_a_larger_estimate(tmp_path: Path) -> None:
    """By four bytes for each number of weights and of Adagrad's sums."""
    peaks = []
    for rows in (20_000, 60_000):
        data = {**torchrec(tmp_path), "table_rows": rows}
        peaks.append(trace_job({**JOB, "data": data}, request(tmp_path))["host"]["allocated"])
    grown = 26 * 40_000 * (4 + 1) * 4  # embedding and the linear weight
    assert 2 * grown * 0.95 < peaks[1] - peaks[0] < 3.1 * grown  # a gradient is as large at most


def test_sizes_that_take_the_rows_are_not_guessed(tmp_path: Path) -> None:
    job = {**JOB, "data": torchrec(tmp_path)}
    with pytest.raises(RmixerError, match="not parsed yet"):
        trace_job(job, request(tmp_path))
