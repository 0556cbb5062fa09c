"""What must hold at the end of chaos.py, by the run's log, the jobs' diary, and the machine."""

from __future__ import annotations

import signal
from pathlib import Path

from support import LEAVE_SECONDS, Workplace, wait_until

from caging import groups_of
from chaos_jobs import SORTS
from rmixer.model import Active, Job, Outcome, StateName
from rmixer.state import RunState


def violations(place: Workplace, diary: Path) -> list[str]:
    """All that is wrong, in words."""
    state = RunState()
    found: list[str] = []
    for number, event in enumerate(place.events(), start=1):
        state.apply(event)
        found += [f"event {number}: {text}" for text in _overbooked(state)]
    return [*found, *_wrong_ends(state), *_wrong_diary(state, diary), *_left(place, state)]


def _overbooked(state: RunState) -> list[str]:
    """What is booked beyond what there is."""
    held = [job.state.attempt.placement for job in state.active if isinstance(job.state, Active)]
    if not held:
        return []
    node, found = state.node, []
    if sum(one.memory for one in held) > node.memory:
        found.append("more memory is booked than there is")
    if sum(one.cpu for one in held) > len(node.cores) + 1e-6:
        found.append("more cores are booked than there are")
    for device in node.devices:
        booked = sum(one.device_memory for one in held if one.device == device.id)
        if device.capacity and booked > device.capacity:
            found.append(f"{booked} bytes of {device.id} are booked, there are {device.capacity}")
    return found


def _wrong_ends(state: RunState) -> list[str]:
    found = [] if state.finished is not None else ["the log has no end"]
    for job in state.jobs.values():
        sort = SORTS[job.spec.name.partition("-")[0]]
        if not job.is_final:
            found.append(f"{job.spec.name} is {job.state.name}")
        elif str(job.state.name) not in sort.ends:
            found.append(f"{job.spec.name} ended {job.state.name}, which is not right for it")
        elif job.state.name == StateName.FAILED and sort.ends >= {"SUCCEEDED"}:
            found += [f"{job.spec.name}: {text}" for text in _own_failures(job)]
    return found


def _own_failures(job: Job) -> list[str]:
    """Failures that count, and that nobody has caused with a signal."""
    ends = [a.outcome for a in job.attempts if a.counted and a.outcome is not None]
    return [
        f"failed by itself: {end.reason}: {end.message[-200:]}"
        for end in ends
        if end.state == StateName.FAILED and end.signal != signal.SIGKILL
    ]


def _wrong_diary(state: RunState, diary: Path) -> list[str]:
    """A job that succeeded has come to its end once; none ran twice at a time.

    An attempt may be cut between the last line that it writes and its exit: it has come to its end
    too, but nobody can know, so the job runs again.
    """
    found = []
    for job in state.jobs.values():
        name = job.spec.name
        path = diary / name
        words = [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []
        ends = words.count("end")
        cut = sum(a.outcome is not None and _is_cut(a.outcome) for a in job.attempts)
        if "overlap" in words:
            found.append(f"{name} ran twice at a time")
        if words.count("start") > len(job.attempts):
            found.append(
                f"{name} began {words.count('start')} times in {len(job.attempts)} attempts"
            )
        if job.state.name == StateName.SUCCEEDED and not 1 <= ends <= 1 + cut:
            found.append(f"{name} succeeded, and came to its end {ends} times ({cut} cut)")
    return found


def _is_cut(outcome: Outcome) -> bool:
    """Whether an attempt ended by what was done to it: its shim, its process or its daemon."""
    return outcome.state == StateName.NODE_FAIL or outcome.signal == signal.SIGKILL


def _left(place: Workplace, state: RunState) -> list[str]:
    """What should be gone: processes, groups, scratch."""
    found = []
    try:
        wait_until(lambda: not place.left(), seconds=LEAVE_SECONDS)
    except AssertionError:
        found += [f"left running: {line}" for line in place.left()]
    run = state.began.run if state.began else "-"
    found += [f"left: {group}" for group in groups_of(run)]
    found += [f"left: {path}" for path in place.paths().root.glob("jobs/*/attempts/*/scratch")]
    found += [f"left: {path}" for path in place.directory.parent.glob("rmixer-*")]
    return found
