"""What `colocation_pairs.py` measured: errors, ranks, a table and a scatter plot."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import pages
from rmixer.interference import Correction, host_sharing, predict_rates
from rmixer.model import Node, Profile

ROOT = Path(__file__).resolve().parent.parent
DOCS, PLOT = ROOT / "docs" / "interference.md", ROOT / "docs" / "interference.svg"
#: Goals for the mean error of single rates: of the prediction, and after online correction.
GOAL, CORRECTED_GOAL, SPREADS = 0.12, 0.10, 1.5


def evaluate(document: Mapping[str, Any]) -> dict[str, Any]:
    """Errors of single rates and ranks of partners."""
    sets = _sets(document)
    predicted = np.concatenate([one["predicted"] for one in sets])
    measured = np.concatenate([one["median"] for one in sets])
    spread = np.concatenate([one["spread"] for one in sets])
    error = float(np.abs(predicted / measured - 1).mean())
    constant = float(np.abs(measured.mean() / measured - 1).mean())
    goal = max(GOAL, SPREADS * float(spread.mean()))
    return {
        "sets": sets,
        "error": error,
        "goal": goal,
        "error_of_one": float(np.abs(1 / measured - 1).mean()),
        "error_of_constant": constant,
        "error_by_size": {
            str(size): _error([one for one in sets if len(one["jobs"]) == size])
            for size in sorted({len(one["jobs"]) for one in sets})
        },
        "spread": float(spread.mean()),
        "correction": _correction(sets),
        "partners": _partners(sets),
    }


def _sets(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each set: predicted rates, those of each repeat, their median and half their range."""
    paces: dict[tuple[str, ...], list[list[float]]] = {}
    for window in document["windows"]:
        paces.setdefault(tuple(window["jobs"]), []).append(window["paces"])
    alone = {
        jobs[0]: statistics.median(pace[0] for pace in found)
        for jobs, found in paces.items()
        if len(jobs) == 1
    }
    profiles = {name: Profile(**one) for name, one in document["profiles"].items()}
    sharing = host_sharing(Node(cores=tuple(range(document["cores"]))))
    sets = []
    for jobs, found in paces.items():
        if len(jobs) == 1:
            continue
        rates = np.array(found) / [alone[job] for job in jobs]
        middle = np.median(rates, axis=0)
        sets.append(
            {
                "jobs": list(jobs),
                "predicted": predict_rates([profiles[job] for job in jobs], sharing).tolist(),
                "rates": rates.tolist(),
                "median": middle.tolist(),
                "spread": ((rates.max(axis=0) - rates.min(axis=0)) / 2 / middle).tolist(),
            }
        )
    return sets


def _error(sets: Sequence[Mapping[str, Any]]) -> float:
    predicted = np.concatenate([one["predicted"] for one in sets])
    measured = np.concatenate([one["median"] for one in sets])
    return float(np.abs(predicted / measured - 1).mean())


def _correction(sets: Sequence[Mapping[str, Any]]) -> dict[str, float] | None:
    """Each set is learned once, from its first repeat, and judged by the median of the others.

    ``unseen`` is the error of what was said of each set just before it was learned, from the sets
    before it.
    """
    if any(len(one["rates"]) < 2 for one in sets):
        return None
    belief = Correction()
    for one in sets:
        belief = belief.learn(one["jobs"], one["predicted"], one["rates"][0])
    before, after = [], []
    for one in sets:
        truth = np.median(one["rates"][1:], axis=0)
        before.extend(np.abs(one["predicted"] / truth - 1))
        after.extend(np.abs(belief.correct(one["jobs"], one["predicted"]) / truth - 1))
    return {
        "before": float(np.mean(before)),
        "after": float(np.mean(after)),
        "unseen": belief.errors.of_correction,
    }


def _partners(sets: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Per job the partner with the largest sum of rates, and where the prediction ranked it.

    Equal predictions share the later rank. ``loss`` is what taking the partner that was predicted
    first costs: its measured sum below that of the best.
    """
    pairs = [one for one in sets if len(one["jobs"]) == 2]
    found = []
    for job in sorted({job for one in pairs for job in one["jobs"]}):
        mine = [one for one in pairs if job in one["jobs"]]
        if len(mine) < 2:
            continue
        measured = [sum(one["median"]) for one in mine]
        told = [sum(one["predicted"]) for one in mine]
        best, first = int(np.argmax(measured)), int(np.argmax(told))
        partner = next((name for name in mine[best]["jobs"] if name != job), job)
        found.append(
            {
                "job": job,
                "best": partner,
                "of": len(mine),
                "rank": sum(value >= told[best] - 1e-9 for value in told),
                "loss": 1 - measured[first] / measured[best],
            }
        )
    return found


# --- the page -------------------------------------------------------------------------------------


def table(document: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """The figures for the page."""
    sizes = {"2": "pairs", "3": "triples"}
    counts = {size: sum(len(one["jobs"]) == int(size) for one in found["sets"]) for size in sizes}
    lines = [
        (
            f"`python benchmarks/colocation_pairs.py`, {document['machine']}, {document['date']}; "
            f"{len(document['profiles'])} jobs with one thread each, "
            f"median of {document['repeats']}."
        ),
        "",
        "| mean error of single rates | |",
        "|---|---|",
        (
            f"| the network, from solo profiles | {_percent(found['error'])} "
            f"(goal {_percent(found['goal'])}) |"
        ),
    ]
    lines += [
        f"| {counts[size]} {sizes[size]} | {_percent(error)} |"
        for size, error in found["error_by_size"].items()
    ]
    lines += [
        f"| half the range of the repeats | {_percent(found['spread'])} |",
        f"| a constant, the mean of all | {_percent(found['error_of_constant'])} |",
        f"| nobody slows anybody | {_percent(found['error_of_one'])} |",
    ]
    if told := found["correction"]:
        lines += [
            f"| other repeats, before correction | {_percent(told['before'])} |",
            (
                f"| other repeats, each set seen once | {_percent(told['after'])} "
                f"(goal {_percent(CORRECTED_GOAL)}) |"
            ),
            f"| sets not yet seen, from those before | {_percent(told['unseen'])} |",
        ]
    partners = found["partners"]
    high = sum(one["rank"] <= 2 for one in partners)
    loss = statistics.mean(one["loss"] for one in partners) if partners else 0.0
    lines += [
        "",
        (
            f"The best partner among those measured was ranked first or second for {high} of "
            f"{len(partners)} jobs; the partner that was ranked first reaches "
            f"{_percent(1 - loss)} of the best one's sum of rates in the mean."
        ),
        "",
        "| job | best partner | its rank | the first ranked costs |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {one['job']} | {one['best']} | {one['rank']} of {one['of']} | {_percent(one['loss'])} |"
        for one in partners
    ]
    return "\n".join(lines)


def write_page(document: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Put table and plot into the page."""
    PLOT.write_text(plot(found["sets"]))
    image = "![predicted against measured rates](interference.svg)"
    pages.put(DOCS, "machine", f"{table(document, found)}\n\n{image}")


def plot(sets: Sequence[Mapping[str, Any]], side: int = 360, margin: int = 44) -> str:
    """Predicted over measured rates as SVG; the line is where both are equal."""
    high = max(1.0, *(rate for one in sets for rate in one["median"]))

    def place(value: float) -> float:
        return side * value / high

    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{side + 2 * margin}" '
            f'height="{side + 2 * margin}" font-family="sans-serif" font-size="11">'
        ),
        '<rect width="100%" height="100%" fill="white"/>',
        f'<g transform="translate({margin},{margin})">',
        f'<rect width="{side}" height="{side}" fill="none" stroke="#999"/>',
        f'<line x1="0" y1="{side}" x2="{side}" y2="0" stroke="#999" stroke-dasharray="4 3"/>',
    ]
    for tick in (0.2, 0.4, 0.6, 0.8, 1.0):
        at = place(tick)
        parts.append(f'<text x="{at:.1f}" y="{side + 14}" text-anchor="middle">{tick}</text>')
        parts.append(f'<text x="-6" y="{side - at + 4:.1f}" text-anchor="end">{tick}</text>')
    for one in sets:
        colour = "#1f6fb4" if len(one["jobs"]) == 2 else "#d9772b"
        for job, told, rate in zip(one["jobs"], one["predicted"], one["median"], strict=True):
            x, y = place(rate), side - place(told)
            name = f"{job} in {' + '.join(one['jobs'])}"
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}" fill-opacity="0.6">'
                f"<title>{name}</title></circle>"
            )
    parts += [
        f'<text x="{side / 2}" y="{side + 32}" text-anchor="middle">measured rate</text>',
        (
            f'<text transform="translate(-30,{side / 2}) rotate(-90)" text-anchor="middle">'
            "predicted rate</text>"
        ),
        '<text x="8" y="16" fill="#1f6fb4">pairs</text>',
        '<text x="8" y="30" fill="#d9772b">triples</text>',
        "</g></svg>",
    ]
    return "\n".join(parts) + "\n"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"
