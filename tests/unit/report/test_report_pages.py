"""The page, the summary, the ranking: what people read."""

from __future__ import annotations

import csv
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from scripted_run import ScriptedRun, eight_jobs, many_jobs

from rmixer.errors import StorageError, UnknownNameError
from rmixer.log import EventLog
from rmixer.paths import RunPaths
from rmixer.report.document import Predictions, build_document
from rmixer.report.headline import headline
from rmixer.report.history import fold
from rmixer.report.html import render_html
from rmixer.report.ranking import to_csv
from rmixer.report.summary import render_summary
from rmixer.report.telemetry import usable
from rmixer.report.text import clean, last_lines
from rmixer.report.write import write_report

EVIL = "<script>alert('x')</script><img src=x onerror=y>\x1b[31m\x00\u202e"


def page_of(run: ScriptedRun, **options: Predictions) -> str:
    history = fold(run.events)
    samples = usable(run.samples)
    document = build_document(run.events, samples, root=Path("runs/demo"), **options)
    return render_html(document, history, samples, root=Path("runs/demo"))


def finished(
    ends: tuple[float, ...] = (80.0, 83.0), *, fail: str = "", policy: str = "complementary"
) -> list:
    run = ScriptedRun(cores=4, policy=policy)
    for number in range(len(ends)):
        run.submit(f"j{number}")
        run.place(0.0, f"j{number}", (number,))
    for number, at in enumerate(ends):
        if f"j{number}" == fail:
            run.fail(at, fail)
        else:
            run.succeed(at, f"j{number}", auc=0.5 + number / 10, logloss=0.5 - number / 10)
    run.finish(max(ends, default=0.0))
    return run.events


class _Tags(HTMLParser):
    """Checks that tags nest, and collects them."""

    VOID = frozenset({"meta", "line", "rect", "circle", "path", "br", "img", "link"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def tags(page: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = _Tags()
    parser.feed(page)
    assert parser.open == []
    return parser.seen


def test_page_is_whole_and_needs_nothing_else() -> None:
    """Tags nest, every drawing is valid XML, and nothing is fetched from anywhere."""
    page = page_of(eight_jobs())
    seen = tags(page)
    assert sum(tag == "script" for tag, _ in seen) == 1
    assert not [a for _, a in seen if (a.get("src") or a.get("href") or "").startswith("http")]
    assert not re.search(r"@import|url\((?!#)", page)
    drawings = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(drawings) >= 3
    for drawing in drawings:
        ET.fromstring(drawing)  # noqa: S314  # our own


def test_hostile_names_and_logs_stay_text() -> None:
    """Markup and control codes in names, reasons, commands, metrics and logs are shown, not run."""
    run = ScriptedRun()
    run.submit("a", name=EVIL, kind="command", payload={"argv": ["x", EVIL]}, family="")
    run.submit("b", name="b" + EVIL)
    run.place(0.0, "a", (0,))
    run.place(0.0, "b", (1,))
    run.fail(3.0, "a", EVIL, reason=EVIL)
    run.succeed(4.0, "b", **{EVIL: 1.0, "note": EVIL})
    run.finish(4.0)
    page = page_of(run)
    summary, table = (show(build_document(run.events)) for show in (render_summary, to_csv))
    assert not [tag for tag, _ in tags(page) if tag == "img"]
    assert sum(tag == "script" for tag, _ in tags(page)) == 1
    assert "&lt;script&gt;alert(" in page
    for code in ("\x1b", "\x00", "\u202e"):
        assert all(code not in text for text in (page, summary, table))


@pytest.mark.parametrize(
    "run",
    [ScriptedRun(), many_jobs(300), many_jobs(60, 20, pinned=False)],
    ids=["empty", "300 jobs", "unpinned"],
)
def test_page_of_any_size(run: ScriptedRun) -> None:
    """No job, hundreds, and unpinned ones: one bar at least per attempt, one row per job."""
    page = page_of(run)
    tags(page)
    jobs = len(fold(run.events).jobs)
    assert page.count('<g class="bar ') == jobs
    assert page.count("<tr>") == jobs + 1


def test_failed_jobs_show_log_and_its_path() -> None:
    """A failed job shows its last lines and links its log beside the page."""
    page = page_of(eight_jobs())
    assert "ValueError: &lt;script&gt;" in page
    assert 'href="jobs/plain_dcn/attempts/2/log.txt"' in page
    assert "runs/demo/jobs/plain_dcn/attempts/2/log.txt" in page


def test_headline_says_how_much_and_what_limits() -> None:
    """The line has makespan, gain with its source, share of the limit, and the bottleneck."""
    predictions = Predictions(bound_seconds=65.0, bottleneck="cores", sequential_seconds=134.0)
    line = headline(build_document(finished(), predictions=predictions))
    assert line == (
        "2 jobs in 1:23, 1.61x faster than one at a time (predicted 2:14, same threads), "
        "78 % of the machine's limit (1:05, bottleneck: cores)"
    )


@pytest.mark.parametrize(
    ("seconds", "source", "text"),
    [
        (None, "predicted", "time one at a time unknown"),
        (83.1, "measured", "as fast as one at a time (measured 1:23)"),
        (
            41.5,
            "predicted",
            "slower than one at a time: 0.50x its speed (predicted 41.5 s, same threads)",
        ),
    ],
)
def test_headline_is_honest(seconds: float | None, source: str, text: str) -> None:
    """No gain, a loss and an unknown are said as what they are."""
    predictions = Predictions(sequential_seconds=seconds, sequential_source=source)
    line = headline(build_document(finished(), predictions=predictions))
    assert line == f"2 jobs in 1:23, {text}, limit of the machine unknown"


def test_headline_with_failures_claims_only_what_was_done() -> None:
    """With a failed job the gain counts the work of the others; speed-up and limit are unknown."""
    predictions = Predictions(
        bound_seconds=50.0, sequential_seconds=200.0, solo_seconds={"j0": 83.0, "j1": 99.0}
    )
    document = build_document(finished(fail="j1"), predictions=predictions)
    assert headline(document).startswith("1 of 2 jobs succeeded in 1:23 (1 failed); 1.00x as fast")
    assert re.search(r"speed-up +unknown", render_summary(document))


def test_headline_of_other_runs() -> None:
    """Empty, single and running runs have their own wording."""
    assert headline(build_document(finished(()))) == "no jobs in 0.0 s"
    assert headline(build_document(finished((5.0,)))).startswith("1 job in 5.0 s, ")
    run = ScriptedRun()
    run.submit("a", "b")
    run.place(1.0, "a", (0,))
    assert headline(build_document(run.events)) == "0 of 2 jobs done after 1.0 s, 1 running"


def test_summary_has_table_failures_and_report_path() -> None:
    """The summary lists each job with its metrics, the failure's last lines, log and report."""
    run = eight_jobs()
    document = build_document(run.events, run.samples, root=Path("runs/demo"))
    text = render_summary(document)
    row = next(line for line in text.splitlines() if line.startswith("din "))
    assert row.split() == ["din", "SUCCEEDED", "49.0", "3,673", "0.8031", "0.4417", "2/3"]
    assert "  | ValueError: <script>" in text
    assert "  log: runs/demo/jobs/plain_dcn/attempts/2/log.txt" in text
    assert text.endswith("report: runs/demo/report.html\n")
    assert "n/a" in next(line for line in text.splitlines() if line.startswith("evaluate "))


def test_summary_of_many_jobs_is_short_and_shows_the_failed() -> None:
    """Of hundreds of jobs the failed are in the table, and what is left out is counted."""
    run = many_jobs(300)
    document = build_document(run.events)
    failed = [job["name"] for job in document["jobs"] if job["state"] == "FAILED"]
    text = render_summary(document)
    assert failed
    assert all(f"\n{name}" in text for name in failed)
    assert "… 260 more jobs" in text


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_ranks_a_sweep() -> None:
    """auc sorts descending, logloss and seconds ascending; jobs without a value come last."""
    document = build_document(finished((30.0, 10.0, 20.0), fail="j1"))
    assert [row["id"] for row in rows_of(to_csv(document, "auc"))] == ["j2", "j0", "j1"]
    assert [row["id"] for row in rows_of(to_csv(document, "logloss"))] == ["j2", "j0", "j1"]
    assert [row["id"] for row in rows_of(to_csv(document, "seconds"))] == ["j1", "j2", "j0"]
    assert [row["id"] for row in rows_of(to_csv(document))] == ["j0", "j1", "j2"]
    assert rows_of(to_csv(document))[1]["auc"] == ""


def test_csv_names_the_columns_it_knows() -> None:
    """An unknown column is an error that names the nearest one."""
    document = build_document(finished())
    with pytest.raises(UnknownNameError, match="did you mean 'auc'"):
        to_csv(document, "acu")


def test_csv_quotes_what_needs_it() -> None:
    """Commas, quotes and line ends in a name survive a round trip on one line each."""
    run = ScriptedRun()
    run.submit("a", name='x, "y"\nz')
    run.finish(0.0)
    text = to_csv(build_document(run.events))
    assert len(text.splitlines()) == 2
    assert rows_of(text)[0]["name"] == 'x, "y" z'


def test_clean_keeps_the_last_form_of_a_progress_bar() -> None:
    """Escapes go, of a rewritten line the last form stays, and ordinary lines are kept."""
    assert clean("10%\r50%\r100%\r\nend\t\x1b]0;title\x07\x1b[1mx\x1b[0m\n") == "100%\nend\tx\n"
    assert last_lines("a\nb\nc\n\n", 2) == "b\nc"


def test_write_report_puts_both_files(tmp_path: Path) -> None:
    """From a real log with a cut-off samples file: valid JSON, a page, no temporary file left."""
    run, paths = eight_jobs(), RunPaths(tmp_path)
    log = EventLog(paths.events)
    log.append(run.events)
    log.close()
    lines = "".join(json.dumps(sample) + "\n" for sample in run.samples)
    paths.samples.write_text(lines[:-37])
    document = write_report(paths)
    assert json.loads(paths.report_json.read_text()) == document
    assert document["devices"][0]["utilisation"]["busy"] > 0.5
    assert paths.report_html.read_text().startswith("<!DOCTYPE html>")
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "events.jsonl", "report.html", "report.json", "samples.jsonl",
    ]  # fmt: skip


def test_write_report_without_telemetry_or_run(tmp_path: Path) -> None:
    """No samples file is no error; no events file is one."""
    paths = RunPaths(tmp_path)
    with pytest.raises(StorageError):
        write_report(paths)
    log = EventLog(paths.events)
    log.append(finished())
    log.close()
    assert write_report(paths)["sum_of_rates"] is None


def test_write_report_that_cannot_be_written(tmp_path: Path) -> None:
    """A report that cannot take its place is a StorageError and leaves no temporary file."""
    paths = RunPaths(tmp_path)
    log = EventLog(paths.events)
    log.append(finished())
    log.close()
    paths.report_html.mkdir()
    with pytest.raises(StorageError, match=r"report\.html"):
        write_report(paths)
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]
