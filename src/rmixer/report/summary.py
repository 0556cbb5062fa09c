"""The end of a run for the terminal: one honest line, the figures, the jobs, what failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rmixer.model import StateName
from rmixer.paths import RunPaths
from rmixer.report.headline import figures, headline
from rmixer.report.ranking import metric_names
from rmixer.report.text import clip, columns, format_metric, format_number, last_lines, one_line
from rmixer.resources import format_seconds

_ROWS = 40
_NAME_WIDTH = 40
_REASON_WIDTH = 48
_LOG_LINES = 8
_FAILURES = 10
_METRICS = 4


def render_summary(document: dict[str, Any]) -> str:
    """The summary of a run as plain text."""
    blocks = [[headline(document)], _figures(document), _table(document), *_failures(document)]
    blocks.append([f"warning: {one_line(text)}" for text in document["warnings"]])
    directory = document["run"]["directory"]
    if directory is not None:
        blocks.append([f"report: {RunPaths(Path(directory)).report_html}"])
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _figures(document: dict[str, Any]) -> list[str]:
    rows = [[f.label, f.value, f.note] for f in figures(document)]
    return [f"  {line}" for line in columns(rows, "<><")]


def _table(document: dict[str, Any]) -> list[str]:
    jobs = document["jobs"]
    if not jobs:
        return []
    metrics = metric_names(document)[:_METRICS]
    shown = _most_telling(jobs)
    titles = ["job", "state", "seconds", "samples/s", *map(one_line, metrics), "tries", "reason"]
    rows = [titles, *(_row(job, metrics) for job in shown)]
    lines = columns(rows, "<<>>" + ">" * len(metrics) + "><")
    if len(shown) < len(jobs):
        lines.append(f"… {len(jobs) - len(shown)} more jobs, all of them in the report")
    return lines


def _most_telling(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All jobs if they are few, else those that did not succeed first, up to a screenful."""
    if len(jobs) <= _ROWS:
        return jobs
    return sorted(jobs, key=lambda job: job["state"] == StateName.SUCCEEDED)[:_ROWS]


def _row(job: dict[str, Any], metrics: list[str]) -> list[str]:
    rate = job["samples_per_second"]
    return [
        clip(one_line(job["name"]), _NAME_WIDTH),
        job["state"],
        f"{job['seconds']:.1f}" if job["seconds"] is not None else "-",
        format_number(rate) if rate is not None else "n/a",
        *(format_metric(job["metrics"].get(name)) or "-" for name in metrics),
        f"{job['tries']}/{job['max_tries']}",
        clip(one_line(job["reason"]), _REASON_WIDTH),
    ]


def _failures(document: dict[str, Any]) -> list[list[str]]:
    failed = [job for job in document["jobs"] if job["error"] is not None]
    blocks = [_failure(job) for job in failed[:_FAILURES]]
    if len(failed) > _FAILURES:
        blocks.append([f"… {len(failed) - _FAILURES} more failed jobs, all of them in the report"])
    return blocks


def _failure(job: dict[str, Any]) -> list[str]:
    tries = f"after {job['tries']} of {job['max_tries']} tries"
    reason = f" ({one_line(job['reason'])})" if job["reason"] else ""
    took = f", {format_seconds(job['seconds'])}" if job["seconds"] is not None else ""
    lines = last_lines(job["error"], _LOG_LINES).split("\n")
    return [
        f"{one_line(job['name'])}: {job['state']}{reason} {tries}{took}",
        *(f"  | {line}" for line in lines),
        *([f"  log: {one_line(job['log'])}"] if job["log"] is not None else []),
    ]
