"""What is shown while a run runs: the live table and the plain log."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console
from scripted_run import WALL, ScriptedRun

from rmixer.model import Node, StateName
from rmixer.report.plain import PlainLog, display_for
from rmixer.report.table import LiveTable, render_table
from rmixer.report.view import JobRow, RunView, view_of
from rmixer.resources import GIB, MIB
from rmixer.state import RunState

NODE = Node(name="box", cores=(0, 1, 2, 3), memory=8 * GIB)


def row(name: str, state: StateName, **fields: object) -> JobRow:
    return JobRow(id=name, name=name, state=state, **fields)


def running(name: str, **fields: object) -> JobRow:
    values: dict[str, object] = {
        "device": "CPU", "cores": (0, 1), "threads": 2, "memory_bytes": 900 * MIB,
        "reserved_bytes": GIB, "samples_per_second": 12345.0, "progress": 0.42,
        "eta_seconds": 71.0, "tries": 1, "max_tries": 3,
    }  # fmt: skip
    return row(name, StateName.RUNNING, **(values | fields))


def view(count: int) -> RunView:
    """A mix: most wait, some have ended, some run; in an order that the table must change."""
    rows = []
    for number in range(count):
        match number % 3:
            case 0:
                rows.append(row(f"done-{number}", StateName.SUCCEEDED))
            case 1:
                reason = "HostMemory(11.2 GiB>8.4 GiB)"
                rows.append(row(f"wait-{number}", StateName.PENDING, reason=reason))
            case _:
                rows.append(running(f"run-{number}"))
    return RunView(
        elapsed_seconds=65.0, cores_booked=3.5, cores_busy=2.9, memory_bytes=GIB,
        reserved_bytes=2 * GIB, samples_per_second=50_000.0, rows=tuple(rows),
    )  # fmt: skip


def lines(shown: RunView, width: int, height: int = 30) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, color_system=None)
    console.print(render_table(shown, NODE, width, height))
    return out.getvalue().splitlines()


def titles(printed: list[str]) -> str:
    return next(line for line in printed if line.startswith("job "))


@pytest.mark.parametrize("width", [60, 100, 200])
@pytest.mark.parametrize("count", [3, 500])
def test_table_fits_its_terminal(width: int, count: int) -> None:
    """No line is wider than the terminal, and all lines together are not higher."""
    printed = lines(view(count), width)
    assert all(cell_len(line) <= width for line in printed)
    assert len(printed) < 30
    assert "state" in titles(printed)
    assert any("RUNNING" in line for line in printed)


@pytest.mark.parametrize("height", [3, 8, 24])
def test_rows_beyond_the_terminal_are_counted(height: int) -> None:
    """Shown rows and the count of the hidden ones add up to all jobs, at any height."""
    printed = lines(view(500), 100, height)
    shown = sum(bool(re.match(r"(run|wait|done)-", line)) for line in printed)
    assert printed[-1] == f"… {500 - shown} more"
    assert len(printed) <= max(height, 4)


def test_running_come_first_then_waiting_then_ended() -> None:
    """The order is running, pending, failed, succeeded."""
    rows = (
        row("ok", StateName.SUCCEEDED), row("bad", StateName.FAILED),
        row("wait", StateName.PENDING), running("run"),
    )  # fmt: skip
    printed = lines(RunView(elapsed_seconds=1.0, rows=rows), 100)
    assert [line.split()[0] for line in printed[2:]] == ["run", "wait", "bad", "ok"]


def test_wide_table_has_every_number() -> None:
    """State, reason with numbers, cores, memory now and reserved, samples/s, ETA and tries."""
    text = "\n".join(lines(view(3), 200))
    for wanted in (
        "HostMemory(11.2 GiB>8.4 GiB)", "900 MiB / 1.0 GiB", "12,345", "1:11", "1/3", "0,1", "42 %",
        "cores 2.9 busy, 3.5/4 booked", "1/3 done",
    ):  # fmt: skip
        assert wanted in text


def test_narrow_table_drops_the_least_needed_first() -> None:
    """At 60 columns device and threads are gone; name, state, ETA and a whole reason are there."""
    printed = lines(view(3), 60)
    head = titles(printed)
    assert any("HostMemory(11.2 GiB>8.4 GiB)" in line for line in printed)
    assert "device" not in head
    assert "thr" not in head
    assert {"job", "state", "eta"} <= set(head.split())


def test_head_that_is_too_long_takes_a_second_line() -> None:
    """Memory in use and reserved is told at 80 columns too; a low terminal has one line of it."""
    assert "memory 1.0 GiB used, 2.0 GiB/8.0 GiB reserved" in lines(view(3), 80)[1]
    assert lines(view(3), 80, height=8)[1].startswith("job")


@pytest.mark.parametrize("height", [8, 30])
def test_notice_is_shown(height: int) -> None:
    """What the person should know now stands above the titles, at any height."""
    printed = lines(replace(view(500), notice="stopping"), 80, height)
    assert "stopping" in printed[: printed.index(titles(printed))]
    assert len(printed) <= height


def test_long_names_keep_their_ends() -> None:
    """Members of a sweep are told apart where their names have to be cut."""
    names = [f"a-model-with-quite-a-long-name-{seed}" for seed in (1, 2)]
    printed = lines(RunView(elapsed_seconds=1.0, rows=tuple(map(running, names))), 80)
    cut = [line.split()[0] for line in printed if "…" in line]
    assert [name[-2:] for name in cut] == ["-1", "-2"]
    assert all(name.startswith("a-mod") for name in cut)


def test_table_prints_names_as_they_are() -> None:
    """Markup in a name is text, not style."""
    assert "[bold]x[/bold]" in "\n".join(lines(RunView(
        elapsed_seconds=1.0, rows=(running("[bold]x[/bold]"),)), 120))  # fmt: skip


def test_live_table_leaves_nothing_behind() -> None:
    """It draws on a terminal, can be closed twice, and gives the cursor back."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, height=20)
    with LiveTable(NODE, console) as table:
        table.update(view(3))
        table.update(view(3))
    table.close()
    assert "run-2" in out.getvalue()
    assert out.getvalue().rstrip().endswith("\x1b[2K")
    assert "\x1b[?25h" in out.getvalue()


def test_live_table_respects_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    """With NO_COLOR the state has no colour; without it, it has."""

    def drawn() -> str:
        out = io.StringIO()
        console = Console(file=out, force_terminal=True, width=80, height=20, color_system="256")
        with LiveTable(NODE, console) as table:
            table.update(view(3))
        return out.getvalue()

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[36mRUNNING" in drawn()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[36m" not in drawn()


def plain_lines(*views: RunView) -> list[str]:
    out = io.StringIO()
    log = PlainLog(NODE, out, clock=lambda: WALL)
    for shown in views:
        log.update(shown)
    log.close()
    return out.getvalue().splitlines()


def test_plain_log_writes_changes_once() -> None:
    """A state is told when it changes, with its time; new numbers alone are not a change."""
    first = RunView(
        elapsed_seconds=1.0,
        rows=(running("a"), row("b", StateName.PENDING, reason="Cpu(2>1 cores)")),
    )
    same = RunView(elapsed_seconds=2.0, rows=(running("a", progress=0.9), first.rows[1]))
    done = RunView(
        elapsed_seconds=3.0,
        rows=(row("a", StateName.FAILED, reason="exit 1", tries=3, max_tries=3), first.rows[1]),
    )
    printed = plain_lines(first, same, same, done)
    stamp = "2026-01-01T00:00:00.000Z"
    assert printed == [
        f"{stamp} a: RUNNING on CPU cores 0,1 threads 2 memory 1.0 GiB 12,345 samples/s",
        f"{stamp} b: PENDING Cpu(2>1 cores)",
        f"{stamp} a: FAILED exit 1 tries 3/3",
    ]


def test_plain_log_tells_a_new_try() -> None:
    """A job that failed and runs again between two looks is told, by its tries."""
    printed = plain_lines(
        RunView(elapsed_seconds=1.0, rows=(running("a"),)),
        RunView(elapsed_seconds=2.0, rows=(running("a", tries=2),)),
    )
    assert printed[1].endswith("tries 2/3")


def test_plain_log_has_a_status_now_and_then() -> None:
    """A status line comes every 30 s of the run at most, however often it is updated."""
    views = [RunView(elapsed_seconds=float(s), rows=(running("a"),)) for s in range(0, 100, 5)]
    status = [line for line in plain_lines(*views) if "done" in line]
    assert len(status) == 3
    assert "0/1 done · 1 running" in status[0]


def test_display_depends_on_the_terminal() -> None:
    """A terminal gets the table, anything else the plain log without escapes."""
    out = io.StringIO()
    assert isinstance(display_for(NODE, Console(file=out, force_terminal=True)), LiveTable)
    log = display_for(NODE, Console(file=out, force_terminal=False))
    log.update(view(3))
    assert isinstance(log, PlainLog)
    assert "\x1b" not in out.getvalue()
    assert len(out.getvalue().splitlines()) == 4  # three jobs and a status after 65 s


def test_view_of_jobs_and_telemetry() -> None:
    """The view joins the state of each job with the measurements of its present attempt."""
    run = ScriptedRun(cores=4)
    run.submit("a", "b", "c", retries=1)
    run.place(0.0, "a", (0, 1))
    run.fail(2.0, "a", retry_at=3.0)
    run.place(3.0, "a", (0,))
    run.place(3.0, "b", (1,))
    run.sample(4.0, {"a": {"step": 5, "total_steps": 10, "rss_bytes": 7, "eta_seconds": 9.0,
                           "samples_per_second": 100.0}}, 1.5, 7)  # fmt: skip
    run.sample(4.0, {"b": {"samples_per_second": 50.0, "token": "b#0"}}, 1.5, 7)
    state = RunState()
    for event in run.events:
        state.apply(event)
    sample = run.samples[0]
    sample["jobs"]["b"] = run.samples[1]["jobs"]["b"]
    shown = view_of(state.jobs.values(), run.node, 4.0, sample)
    a, b, c = shown.rows
    assert (a.progress, a.eta_seconds, a.memory_bytes, a.tries) == (0.5, 9.0, 7, 2)
    assert (b.samples_per_second, b.device) == (None, "CPU")  # of an older attempt: not shown
    assert (c.state, c.reason) == ("PENDING", "Submitted")
    assert (shown.cores_booked, shown.cores_busy) == (2.0, 1.5)
    assert shown.samples_per_second == 100.0
    assert view_of(state.jobs.values(), run.node, 4.0).rows[0].progress is None
