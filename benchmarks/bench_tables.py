"""Ratios, goals and tables from what `bench.py` measured."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from runners import CROWD, LOOP, OURS

Runs = Sequence[Mapping[str, Any]]
#: The other runner with the highest median.
BEST = "the best other"
#: What the project wants to reach: part, over which runner, ratio.
GOALS: Mapping[tuple[str, str], float] = {
    ("mixed", LOOP): 1.5,
    ("mixed", CROWD): 2.0,
    ("mixed", BEST): 1.1,
    ("sweep adam 256", LOOP): 12.0,
    ("sweep adam 256", BEST): 2.0,
    ("sweep adam 2048", LOOP): 3.0,
    ("sweep adam 2048", BEST): 2.0,
}
#: A job under RMixer may be so much slower than bare.
OVERHEAD_GOAL = 0.02


def ratios(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Ours over each other runner: per repeat, the median; whether a goal is missed."""
    found = []
    if document["mixed"]:
        found += _over("mixed", document["mixed"]["runs"])
    for one in document["sweep"]:
        found += _over(f"sweep {one['optimizer']} {one['batch_size']}", one["runs"])
    if document["overhead"]:
        each = _each(document["overhead"]["runs"], LOOP)
        goal = 1 - OVERHEAD_GOAL
        found.append(_ratio("one job", "bare", each, goal))
    return found


def _over(what: str, runs: Runs) -> list[dict[str, Any]]:
    others = [name for name in dict.fromkeys(run["runner"] for run in runs) if name != OURS]
    if not others:
        return []
    best = max(others, key=lambda name: statistics.median(_rates(runs, name)))
    found = [_ratio(what, name, _each(runs, name), GOALS.get((what, name))) for name in others]
    last = _ratio(what, BEST, _each(runs, best), GOALS.get((what, BEST)))
    return [*found, {**last, "best": best}]


def _ratio(what: str, over: str, each: list[float], goal: float | None) -> dict[str, Any]:
    """A goal is missed if no repeat reaches it: then it is more than the spread."""
    missed = goal is not None and max(each) < goal
    return {
        "what": what, "over": over, "each": each, "median": statistics.median(each),
        "goal": goal, "missed": missed,
    }  # fmt: skip


def _each(runs: Runs, name: str) -> list[float]:
    return [
        ours / other for ours, other in zip(_rates(runs, OURS), _rates(runs, name), strict=True)
    ]


def _rates(runs: Runs, name: str) -> list[float]:
    return [run["rate"] for run in sorted(runs, key=_repeat) if run["runner"] == name]


def _repeat(run: Mapping[str, Any]) -> int:
    number: int = run["repeat"]
    return number


def tables(document: Mapping[str, Any]) -> str:
    """All tables, for the page."""
    lines = [
        f"`{document['command']}`, {document['machine']}, {document['date']}. Medians of the",
        "repeats, in which the runners take turns; in brackets each repeat. Raw runs:",
        "`benchmarks/results/bench.json`.",
    ]
    for name, why in document["left_out"].items():
        lines.append(f"Left out: {name} ({why}).")
    if document["mixed"]:
        lines += _part("Mixed plain scripts", "x of one at a time", document["mixed"]["runs"])
        apart = max(run["losses_apart"] for run in document["mixed"]["runs"])
        lines += ["", f"Losses of all jobs are within {apart:.1e} of those alone, step by step."]
    for one in document["sweep"]:
        title = f"Sweep, {one['optimizer']}, batch {one['batch_size']}, {one['rows']:,} rows"
        lines += _part(title, "samples/s", one["runs"])
        lines += ["", _limit(one)]
    if document["overhead"]:
        lines += _overhead(document["overhead"]["runs"])
    return "\n".join([*lines, "", *_goals(document["ratios"])])


def _part(title: str, unit: str, runs: Runs) -> list[str]:
    lines = [
        "", f"**{title}**", "", f"| runner | {unit} | RMixer over it | start, s |",
        "|---|---:|---:|---:|",
    ]  # fmt: skip
    for name in dict.fromkeys(run["runner"] for run in runs):
        rates = _rates(runs, name)
        start = statistics.median(r["startup_seconds"] for r in runs if r["runner"] == name)
        over = "" if name == OURS else _with_each(_each(runs, name), "x")
        lines.append(f"| {name} | {_with_each(rates)} | {over} | {start:.1f} |")
    return lines


def _limit(one: Mapping[str, Any]) -> str:
    flop, rate = one["flop_per_sample"], one["flop_per_second"]
    ours = statistics.median(_rates(one["runs"], OURS))
    return (
        f"The limit of the arithmetic alone: {flop / 1e6:.2f} MFLOP a sample at "
        f"{rate / 1e9:.0f} GFLOP/s of all cores are {rate / flop:,.0f} samples/s; RMixer is at "
        f"{ours * flop / rate:.0%} of it."
    )


def _with_each(values: Sequence[float], unit: str = "") -> str:
    def text(value: float) -> str:
        return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"

    return f"{text(statistics.median(values))}{unit} ({', '.join(map(text, values))})"


def _overhead(runs: Runs) -> list[str]:
    each = _each(runs, LOOP)
    starts = {
        name: statistics.median(r["startup_seconds"] for r in runs if r["runner"] == name)
        for name in (LOOP, OURS)
    }
    own = statistics.median(r["runner_cores"] for r in runs if r["runner"] == OURS)
    text = (
        f"**Around one job**: steps/s under RMixer over bare {_with_each(each, 'x')}; first step "
        f"after {starts[OURS]:.1f} s, bare {starts[LOOP]:.1f} s; RMixer's own process takes "
        f"{own:.1%} of a core."
    )
    return ["", text]


def _goals(found: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = ["| goal | wanted | measured | |", "|---|---:|---:|---|"]
    for ratio in found:
        if ratio["goal"]:
            over = ratio["over"] + (f" ({ratio['best']})" if "best" in ratio else "")
            verdict = "missed" if ratio["missed"] else "within the spread"
            verdict = "met" if ratio["median"] >= ratio["goal"] else verdict
            measured = _with_each(ratio["each"], "x")
            lines.append(
                f"| {ratio['what']} over {over} | {ratio['goal']:g}x | {measured} | {verdict} |"
            )
    return lines
