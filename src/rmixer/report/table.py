"""The live table: every job with its state, as many as the terminal has lines for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rmixer.model import Node, StateName
from rmixer.report.text import format_number
from rmixer.report.view import JobRow, RunView
from rmixer.resources import format_bytes, format_seconds

_GAP = 2  # spaces between columns
_OWN_LINES = 3  # titles, "more", and the cursor's line; the head and the notice come on top
_HEAD_LINES = 2  # at most; one where the terminal is low
_LOW = 12
_NAME_WIDTH = (12, 40)  # least and most
_REASON_WIDTH = (28, 48)  # enough for its numbers
_STYLES = {
    StateName.RUNNING: "cyan",
    StateName.PROFILING: "blue",
    StateName.COMPLETING: "yellow",
    StateName.SUSPENDED: "yellow",
    StateName.SUCCEEDED: "green",
    StateName.FAILED: "bold red",
    StateName.OUT_OF_MEMORY: "bold red",
    StateName.TIMEOUT: "bold red",
    StateName.NODE_FAIL: "bold red",
    StateName.CANCELLED: "magenta",
    StateName.PREEMPTED: "magenta",
}


@dataclass(frozen=True, slots=True)
class _Column:
    """A column: its title, its text, and how soon it is dropped (0: never)."""

    title: str
    text: Callable[[JobRow], str]
    drop: int
    justify: Literal["left", "right"] = "left"
    least: int = 0  # it may be cut down to this width
    most: int = 0


class LiveTable:
    """Redraws a run's table in place on a terminal, and leaves nothing behind when it is closed.

    Args:
        node: the machine, for its capacity.
        console: where to draw; standard error if None.
    """

    def __init__(self, node: Node, console: Console | None = None) -> None:
        self.node = node
        self.console = console or Console(stderr=True)
        self._live = Live(
            console=self.console, auto_refresh=False, transient=True, redirect_stdout=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def update(self, view: RunView) -> None:
        """Show the run as it is now."""
        if not self._live.is_started:
            self._live.start()
        width, height = self.console.size
        self._live.update(render_table(view, self.node, width, height), refresh=True)

    def close(self) -> None:
        """Take the table away. A second call does nothing."""
        self._live.stop()


def render_table(view: RunView, node: Node, width: int, height: int) -> RenderableType:
    """The table of a run for a terminal of that many columns and lines."""
    rows = sorted(view.rows, key=_rank)
    is_low = height < _LOW
    top = _head(view, node, width, 1 if is_low else _HEAD_LINES)
    if view.notice:
        notice = Text(view.notice, style="bold yellow", no_wrap=True, overflow="ellipsis")
        top = [notice] if is_low else [*top, notice]
    room = max(1, height - _OWN_LINES - len(top))
    shown = rows if len(rows) <= room + 1 else rows[:room]
    parts: list[RenderableType] = [*top, _table(shown, width)]
    if len(shown) < len(rows):
        more = Text(f"… {len(rows) - len(shown)} more", style="dim")
        parts.append(more)
    return Group(*parts)


def _rank(row: JobRow) -> int:
    """Running first, then waiting, then ended, of these the failed first."""
    if row.active:
        return 0
    if not row.ended:
        return 1
    return 3 if row.state is StateName.SUCCEEDED else 2


def head_parts(view: RunView, node: Node) -> list[str]:
    """The header's facts, the most important first."""
    ended = sum(row.ended for row in view.rows)
    failed = ended - view.count(StateName.SUCCEEDED)
    parts = [
        format_seconds(view.elapsed_seconds),
        f"{ended}/{len(view.rows)} done" + (f" ({failed} not succeeded)" if failed else ""),
        f"{sum(row.active for row in view.rows)} running",
        _cores(view, node),
        _memory(view, node),
    ]
    if view.samples_per_second is not None:
        parts.append(f"{format_number(view.samples_per_second)} samples/s")
    return parts


def _cores(view: RunView, node: Node) -> str:
    busy = f"{view.cores_busy:.1f} busy, " if view.cores_busy is not None else ""
    return f"cores {busy}{view.cores_booked:g}/{len(node.cores)} booked"


def _memory(view: RunView, node: Node) -> str:
    used = f"{format_bytes(view.memory_bytes)} used, " if view.memory_bytes is not None else ""
    return f"memory {used}{format_bytes(view.reserved_bytes)}/{format_bytes(node.memory)} reserved"


def _head(view: RunView, node: Node, width: int, most: int) -> list[Text]:
    """The header's facts on so many lines at most; what does not fit is dropped."""
    lines: list[str] = []
    for part in head_parts(view, node):
        longer = f"{lines[-1]} · {part}" if lines else part
        if lines and cell_len(longer) <= width:
            lines[-1] = longer
        elif len(lines) < most:
            lines.append(part)
        else:
            break
    return [Text(line, style="bold", no_wrap=True, overflow="ellipsis") for line in lines]


def _table(rows: Sequence[JobRow], width: int) -> Table:
    table = Table(
        box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="dim", collapse_padding=True
    )
    fitted = fit(rows, width)
    for column, columns_width in fitted:
        table.add_column(
            Text(column.title),
            justify=column.justify,
            width=columns_width,
            no_wrap=True,
            overflow="ellipsis",
        )
    for row in rows:
        table.add_row(*(_cell(column, row, columns_width) for column, columns_width in fitted))
    return table


def _cell(column: _Column, row: JobRow, width: int) -> Text:
    style = _STYLES.get(row.state, "") if column.title == "state" else ""
    text = column.text(row)
    return Text(_clip_middle(text, width) if column.title == "job" else text, style=style)


def _clip_middle(text: str, width: int) -> str:
    """The jobs of a sweep differ at the end of their names: cut the middle out."""
    if cell_len(text) <= width:
        return text
    tail = set_cell_size(text[::-1], width // 2)[::-1].lstrip()
    return set_cell_size(text, width - 1 - cell_len(tail)).rstrip() + "…" + tail


def fit(rows: Sequence[JobRow], width: int) -> list[tuple[_Column, int]]:
    """The columns that fit the width, each with its own: the least needed are dropped first."""
    texts = {column.title: [column.text(row) for row in rows] for column in _COLUMNS}
    columns = [c for c in _COLUMNS if any(texts[c.title])]
    natural = {c.title: max(map(cell_len, [c.title, *texts[c.title]])) for c in columns}

    def least(column: _Column) -> int:
        return min(natural[column.title], column.least or natural[column.title])

    def needed() -> int:
        return sum(least(column) + _GAP for column in columns)

    while needed() > width and any(column.drop for column in columns):
        columns.remove(max(columns, key=lambda column: column.drop))
    spare = width - needed()
    fitted = []
    for column in columns:
        wanted = min(natural[column.title], column.most or natural[column.title])
        more = max(0, min(spare, wanted - least(column)))
        spare -= more
        fitted.append((column, least(column) + more))
    return fitted


def _memory_text(row: JobRow) -> str:
    if row.reserved_bytes is None:
        return ""
    now = format_bytes(row.memory_bytes) if row.memory_bytes is not None else "?"
    return f"{now} / {format_bytes(row.reserved_bytes)}"


def _tries_text(row: JobRow) -> str:
    return f"{row.tries}/{row.max_tries}" if row.tries else ""


def _progress_text(row: JobRow) -> str:
    return f"{100 * row.progress:.0f} %" if row.progress is not None else ""


def _rate_text(row: JobRow) -> str:
    if row.samples_per_second is not None:
        return format_number(row.samples_per_second)
    return "n/a" if row.active else ""


def _eta_text(row: JobRow) -> str:
    return format_seconds(row.eta_seconds) if row.eta_seconds is not None else ""


def _threads_text(row: JobRow) -> str:
    return str(row.threads) if row.threads is not None else ""


_COLUMNS = (
    _Column("job", lambda row: row.name, 0, least=_NAME_WIDTH[0], most=_NAME_WIDTH[1]),
    _Column("state", lambda row: row.state, 0),
    _Column("done", _progress_text, 3, "right"),
    _Column("eta", _eta_text, 2, "right"),
    _Column("samples/s", _rate_text, 4, "right"),
    _Column("memory", _memory_text, 5, "right"),
    _Column("tries", _tries_text, 6, "right"),
    _Column("cores", lambda row: ",".join(map(str, row.cores)), 7, least=6, most=16),
    _Column("thr", _threads_text, 8, "right"),
    _Column("device", lambda row: row.device or "", 9),
    _Column("reason", lambda row: row.reason, 1, least=_REASON_WIDTH[0], most=_REASON_WIDTH[1]),
)
