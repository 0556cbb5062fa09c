"""What follows from what: the dispatcher's decisions, scenario by scenario."""

from __future__ import annotations

import pytest
from driving import BAD, OK, OOM, TWO_CORES, Driver, job, kinds

from rmixer import events as ev
from rmixer.dispatcher import BACKOFF_CAP_SECONDS, exit_code
from rmixer.model import (
    Active,
    Device,
    Estimate,
    JobSpec,
    Node,
    Outcome,
    Placement,
    Profile,
    StateName,
)
from rmixer.policies.baselines import Sequential
from rmixer.policies.complementary import Complementary


def test_a_batch_is_placed_once_it_is_whole() -> None:
    """Nothing starts while jobs are still being submitted; then as many as there are places."""
    driver = Driver(job("a"), job("b"), job("c"))
    placed = kinds(driver.said, ev.Placed)
    assert [(p.job, p.attempt, p.token) for p in placed] == [("a", 1, "r.a.1"), ("b", 1, "r.b.1")]
    assert driver.reason("c") == "Policy(2 of 2 places taken)"


def test_retries_are_counted_and_back_off_doubles() -> None:
    """A job with two retries has three tries, each later than the one before; then it FAILED."""
    driver = Driver(job("a", retries=2))
    for delay in (1.0, 2.0):
        driver.ends("a", BAD, after=1)
        assert driver.states()["a"] == StateName.PENDING
        assert driver.reason("a").startswith("Backoff")
        before = driver.at
        driver.wake()
        assert driver.at - before == delay
        assert driver.states()["a"] in (StateName.RUNNING, StateName.PROFILING)
    driver.ends("a", BAD)
    assert driver.states()["a"] == StateName.FAILED
    assert exit_code(driver.core.state) == 1
    assert len(driver.core.state.jobs["a"].attempts) == 3


def test_back_off_has_a_cap() -> None:
    """However often a job has failed, it waits a minute at most."""
    driver = Driver(job("a", retries=20))
    for _ in range(12):
        driver.ends("a", BAD)
        before = driver.at
        driver.wake()
    assert driver.at - before == BACKOFF_CAP_SECONDS


def test_what_another_try_cannot_mend_is_not_tried_again() -> None:
    """A bad data file fails once, whatever the retries."""
    driver = Driver(job("a", retries=5))
    driver.ends("a", Outcome(state=StateName.FAILED, reason="data", retryable=False))
    assert driver.states()["a"] == StateName.FAILED


def test_out_of_memory_is_no_failure_and_gets_more_room() -> None:
    """Without any retry a job that ran out of memory runs again, with more reserved than it took."""
    driver = Driver(job("a", memory=20))
    driver.ends("a", OOM)
    driver.wake()
    (first, second) = kinds(driver.said, ev.Placed)
    assert first.placement.memory == 20
    assert second.placement.memory == 48  # a measured peak of 40, and a margin
    assert driver.core.state.jobs["a"].tries_used == 0


def test_out_of_memory_for_ever_ends() -> None:
    """The third time in a row is the last, and the state says what it was."""
    driver = Driver(job("a"))
    for _ in range(2):
        driver.ends("a", OOM)
        driver.wake()
    driver.ends("a", OOM)
    assert driver.states()["a"] == StateName.OUT_OF_MEMORY


def test_never_started_is_never_counted() -> None:
    """A runner that dies between order and start, many times, costs the job nothing."""
    driver = Driver(job("a"))
    for number in range(2, 12):
        (placed,) = kinds(driver.about(ev.Lost, "a", message="", ran=False), ev.Placed)
        assert placed.attempt == number
    driver.ends("a", OK)
    assert driver.states()["a"] == StateName.SUCCEEDED


def test_a_stale_end_changes_nothing() -> None:
    """The end of an attempt that is not the current one is not the end of the job."""
    driver = Driver(job("a"))
    stale = driver.make(ev.Exited, job="a", token="r.a.7", outcome=OK)
    assert not kinds(driver.tell(stale), ev.Ended)
    assert driver.states()["a"] != StateName.SUCCEEDED


def test_timeout_then_grace_then_force() -> None:
    """A job over its time is asked to stop, and killed when the grace is over; it ended TIMEOUT."""
    driver = Driver(job("a", timeout_seconds=30, retries=3), grace_seconds=5)
    (asked,) = kinds(driver.wake(), ev.Stopping)
    assert (driver.at, asked.force) == (30, False)
    (killed,) = kinds(driver.wake(), ev.Stopping)
    assert (driver.at, killed.force) == (35, True)
    driver.ends("a", Outcome(state=StateName.FAILED, signal=9))
    final = driver.core.state.jobs["a"].state.outcome
    assert (final.state, final.signal) == (StateName.TIMEOUT, 9)


def test_cancel_wherever_a_job_is() -> None:
    """A pending job is CANCELLED at once, a running one when it has stopped, a final one never."""
    driver = Driver(job("a"), job("b"), policy=Sequential())
    driver.tell(driver.make(ev.CancelRequested, job="b"))
    assert driver.states()["b"] == StateName.CANCELLED
    driver.tell(driver.make(ev.CancelRequested, job="a"))
    assert driver.states()["a"] == StateName.COMPLETING
    driver.ends("a", BAD)
    assert driver.states()["a"] == StateName.CANCELLED
    assert not driver.tell(driver.make(ev.CancelRequested, job="a"))


def test_one_that_succeeds_while_it_is_stopped_has_succeeded() -> None:
    """What the job has done counts, not what was about to be done to it."""
    driver = Driver(job("a"))
    driver.tell(driver.make(ev.CancelRequested, job="a"))
    driver.ends("a", OK)
    assert driver.states()["a"] == StateName.SUCCEEDED


def test_dependencies_wait_and_fall_together() -> None:
    """A job waits for its predecessor by name; if that fails, all behind it are CANCELLED."""
    chain = [job("a"), job("b", after=("a",)), job("c", after=("b",)), job("d", after=("a",))]
    driver = Driver(*chain)
    assert driver.reason("c") == "Dependency(b)"
    driver.ends("a", BAD)
    states = driver.states()
    assert [states[name] for name in "bcd"] == [StateName.CANCELLED] * 3
    assert driver.core.state.jobs["c"].state.outcome.reason == "DependencyFailed"
    assert driver.core.state.finished is not None


def test_dependencies_start_in_order() -> None:
    """Each starts when the one before it has succeeded."""
    driver = Driver(job("b", after=("a",)), job("a"))
    assert [p.job for p in kinds(driver.said, ev.Placed)] == ["a"]
    assert [p.job for p in kinds(driver.ends("a", OK), ev.Placed)] == ["b"]


def test_a_predecessor_that_does_not_exist() -> None:
    """A job that waits for nobody is CANCELLED once the queue is closed, not left for ever."""
    driver = Driver(job("a", after=("zz",)))
    assert driver.states()["a"] == StateName.CANCELLED


def test_fail_fast_stops_the_rest() -> None:
    """The first job that failed for good takes all others with it."""
    driver = Driver(job("a"), job("b"), job("c"), fail_fast=True)
    stopped = kinds(driver.ends("a", BAD), ev.Stopping)
    assert [s.job for s in stopped] == ["b"]
    assert driver.states()["c"] == StateName.CANCELLED
    driver.ends("b", BAD)
    assert driver.states()["b"] == StateName.CANCELLED


def test_interrupted_once_then_again_then_resumed() -> None:
    """Ctrl-C stops what runs, once more kills it; the jobs are kept, and go on when resumed."""
    driver = Driver(job("a"), job("b"), policy=Sequential())
    (asked,) = kinds(driver.tell(driver.make(ev.Interrupted)), ev.Stopping)
    assert not asked.force
    (killed,) = kinds(driver.tell(driver.make(ev.Interrupted, force=True)), ev.Stopping)
    assert killed.force
    (finished,) = kinds(driver.ends("a", BAD), ev.Finished)
    assert finished.interrupted
    assert exit_code(driver.core.state) == 130
    assert driver.states() == {"a": StateName.PENDING, "b": StateName.PENDING}
    placed = kinds(driver.tell(driver.make(ev.Resumed, node=TWO_CORES)), ev.Placed)
    assert [(p.job, p.attempt) for p in placed] == [("a", 2)]
    assert driver.core.state.jobs["a"].tries_used == 0


def test_a_deadline_that_passed_while_nobody_watched() -> None:
    """A timeout that ran out between two runners is enforced when the second takes over."""
    driver = Driver(job("a", timeout_seconds=5))
    driver.at = 60
    actions = driver.tell(driver.make(ev.Resumed, node=TWO_CORES))
    actions += driver.wake()
    assert driver.at == 60
    assert [s.outcome.state for s in kinds(actions, ev.Stopping)] == [StateName.TIMEOUT]


def test_retry_failed_gives_new_tries() -> None:
    """Jobs that did not succeed are pending again with all their tries; the others stay."""
    driver = Driver(job("a"), job("b", retries=1))
    driver.ends("a", OK)
    driver.ends("b", BAD)
    driver.wake()
    driver.ends("b", BAD)
    assert driver.core.state.finished is not None
    driver.tell(driver.make(ev.Resumed, node=TWO_CORES, retry_failed=True))
    assert driver.states()["a"] == StateName.SUCCEEDED
    assert isinstance(driver.core.state.jobs["b"].state, Active)
    assert driver.core.state.jobs["b"].tries_used == 0


def test_priority_goes_first() -> None:
    """The highest priority starts first, then the order of the queue."""
    driver = Driver(job("a"), job("b", priority=5), job("c", priority=5), policy=Sequential())
    order = []
    while driver.core.state.finished is None:
        (running,) = driver.core.state.active
        order.append(running.id)
        driver.ends(running.id, OK)
    assert order == ["b", "c", "a"]


def test_a_family_is_profiled_once_and_learns() -> None:
    """One member is PROFILING; what it shows is believed of the others, at lower confidence."""
    driver = Driver(*[job(name, family="f") for name in "abc"], policy=Complementary())
    states = driver.states()
    assert [states[name] for name in "abc"] == [
        StateName.PROFILING, StateName.RUNNING, StateName.PENDING,
    ]  # fmt: skip
    shown = Profile(demand={"cores": 0.2}, memory=10)
    actions = driver.about(ev.Profiled, "a", profile=shown)
    waiting = driver.core.state.jobs["c"]
    assert waiting.profile is not None
    assert waiting.profile.confidence == 0.5
    (rebooked,) = [a for a in kinds(actions, ev.Rebooked) if a.placement.cpu < 1]
    assert (rebooked.job, rebooked.placement.cpu) == ("a", 0.2)
    assert [p.job for p in kinds(actions, ev.Placed)] == ["c"]


def test_memory_that_grew_is_booked_as_far_as_there_is_room() -> None:
    """A job that outgrew its reservation books more, never more than the machine has."""
    driver = Driver(job("a", memory=30), job("b", memory=60))
    (rebooked,) = kinds(driver.about(ev.MemoryGrew, "a", memory=50), ev.Rebooked)
    assert rebooked.placement.memory == 40
    held = [j.state.attempt.placement.memory for j in driver.core.state.active]
    assert sum(held) == 100


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (job("x", memory=200), "HostMemory(200 B>100 B)"),
        (job("x", threads=9), "Cpu(9>2 cores)"),
        (job("x", device="gpu"), "DeviceDrained(device gpu: the machine has 0 GPUs)"),
    ],
    ids=["memory", "threads", "device"],
)
def test_what_can_never_fit_ends_with_its_numbers(spec: JobSpec, words: str) -> None:
    """A job that is too large for the whole machine ends at once and does not block the run."""
    driver = Driver(spec, job("a"))
    final = driver.core.state.jobs["x"].state.outcome
    assert (final.reason, words in final.message) == ("NeverFits", True)
    assert isinstance(driver.core.state.jobs["a"].state, Active)


def test_a_reason_is_told_when_it_changes_only() -> None:
    """News that change nothing for a waiting job do not repeat why it waits."""
    driver = Driver(job("a"), job("b"), policy=Sequential())
    again = driver.about(ev.MemoryGrew, "a", memory=5)
    assert not kinds(again, ev.Waiting)


def test_a_gpu_job_books_the_gpu() -> None:
    """Two jobs that must have the one GPU take turns; the reason names its memory."""
    gpu = Device(id="GPU-1", kind="T", index=0, memory=50)
    node = Node(cores=(0, 1), memory=100, devices=(Device(), gpu))
    driver = Driver(job("a", device="gpu"), job("b", device="gpu"), node=node)
    placement: Placement = driver.core.state.jobs["a"].state.attempt.placement
    assert (placement.device, placement.device_memory) == ("GPU-1", 50)
    assert driver.reason("b") == "GpuMemory(50 B>0 B)"


def test_an_empty_run_is_over_at_once() -> None:
    """No jobs: finished, exit 0."""
    driver = Driver()
    assert driver.core.state.finished is not None
    assert exit_code(driver.core.state) == 0


def test_only_failures_make_a_job_wait_longer() -> None:
    """Lost and interrupted attempts do not double the back-off; a user's new tries reset it."""
    driver = Driver(job("a", retries=1))
    for _ in range(8):
        driver.about(ev.Lost, "a", message="", ran=False)
    for tries in ("first", "after --retry-failed"):
        driver.ends("a", BAD)
        before = driver.at
        driver.wake()
        assert driver.at - before == 1.0, tries
        driver.ends("a", BAD)
        assert driver.states()["a"] == StateName.FAILED
        driver.tell(driver.make(ev.Resumed, node=TWO_CORES, retry_failed=True))


def test_retry_failed_gives_new_tries_after_out_of_memory_too() -> None:
    """A job that ran out of memory for good has, when asked for, as many tries as at first."""
    driver = Driver(job("a"))
    for _ in range(2):
        for _ in range(2):
            driver.ends("a", OOM)
            driver.wake()
        driver.ends("a", OOM)
        assert driver.states()["a"] == StateName.OUT_OF_MEMORY
        driver.tell(driver.make(ev.Resumed, node=TWO_CORES, retry_failed=True))
    assert isinstance(driver.core.state.jobs["a"].state, Active)


def test_what_was_learned_by_running_out_is_not_forgotten() -> None:
    """A glance at the first steps of the next attempt does not take its room away again."""
    driver = Driver(job("a"))
    driver.ends("a", OOM)
    driver.wake()
    driver.about(ev.Profiled, "a", profile=Profile(demand={"cores": 1.0}, memory=5))
    assert driver.core.state.jobs["a"].estimate.memory == 48
    assert driver.core.state.active[0].state.attempt.placement.memory == 48


def test_a_guess_is_lowered_and_a_hint_is_not() -> None:
    """The default gives way to what is measured, down too; what the user said is kept."""
    shown = Profile(demand={"cores": 1.0}, memory=5)
    for hint, reserved in ((None, 6), (30, 30)):
        driver = Driver(job("a", memory=hint))
        driver.about(ev.Profiled, "a", profile=shown)
        assert driver.core.state.jobs["a"].estimate.memory == reserved


@pytest.mark.parametrize("how", ["grew", "ended"])
def test_siblings_are_warned_of_a_peak(how: str) -> None:
    """A peak that one member reaches late is reserved for the members that wait."""
    driver = Driver(job("a", family="f"), job("b", family="f"), job("c"), policy=Sequential())
    if how == "grew":
        driver.about(ev.MemoryGrew, "a", memory=50)
    else:
        driver.ends("a", Outcome(state=StateName.SUCCEEDED, memory_peak_bytes=50))
    jobs = driver.core.state.jobs
    assert (jobs["b"].estimate.memory, jobs["c"].estimate.memory) == (60, 10)


@pytest.mark.parametrize(
    ("state", "booked", "expected"),
    [
        (StateName.SUCCEEDED, 0, 60),  # nothing was known: no longer the whole of it
        (StateName.FAILED, 0, 0),  # how far it came is not all that it needs
        (StateName.SUCCEEDED, 20, 60),
        (StateName.FAILED, 20, 60),
        (StateName.SUCCEEDED, 90, 90),
    ],
)
def test_siblings_learn_the_peak_on_a_device(state: StateName, booked: int, expected: int) -> None:
    """What a member held on the GPU counts for those that wait; a higher hint stays."""
    node = Node(cores=(0, 1), memory=100, devices=(Device(), Device(id="g", kind="T4", memory=99)))
    known = Estimate(memory=10, device_memory=booked)
    jobs = [job(name, family="f", device="gpu", retries=0) for name in "ab"]
    driver = Driver(*jobs, policy=Sequential(), node=node, estimates={"a": known, "b": known})
    driver.ends("a", Outcome(state=state, device_peak_bytes=50))
    assert driver.core.state.jobs["b"].estimate.device_memory == expected


def test_jobs_without_a_family_are_profiled_each() -> None:
    """Two programs that have nothing in common are both PROFILING."""
    driver = Driver(job("a"), job("b"))
    assert set(driver.states().values()) == {StateName.PROFILING}


def test_a_very_long_chain_falls() -> None:
    """More jobs than Python nests calls, each behind the one before, end with the first; none is left."""
    chain = [job("0"), *(job(str(i), after=(str(i - 1),)) for i in range(1, 1200))]
    driver = Driver(*chain)
    driver.ends("0", BAD)
    assert set(driver.states().values()) == {StateName.FAILED, StateName.CANCELLED}
    assert driver.core.state.finished is not None


def test_news_after_the_end_change_nothing() -> None:
    """A second Ctrl-C that comes too late is in the log and changes no replay of it."""
    driver = Driver(job("a"))
    driver.ends("a", OK)
    late = driver.make(ev.Interrupted, force=True)
    assert not driver.tell(late)
    driver.core.state.apply(late)
    assert exit_code(driver.core.state) == 0


def test_a_cancelled_job_stays_cancelled_through_ctrl_c() -> None:
    """An interruption does not bring back what the user has cancelled."""
    driver = Driver(job("a"))
    driver.tell(driver.make(ev.CancelRequested, job="a"))
    driver.tell(driver.make(ev.Interrupted))
    driver.tell(driver.make(ev.Interrupted, force=True))
    driver.ends("a", BAD)
    assert driver.states()["a"] == StateName.CANCELLED


def test_no_wake_is_lost() -> None:
    """With one Woke at the earliest time asked for, every deadline is met at its time."""
    driver = Driver(
        job("slow", timeout_seconds=30), job("fast", timeout_seconds=10), grace_seconds=5
    )
    for at, stopped in ((10, "fast"), (15, "fast"), (30, "slow"), (35, "slow")):
        asked = driver.wake()
        assert driver.at == at
        assert stopped in [s.job for s in kinds(asked, ev.Stopping)]
        if at == 15:
            driver.ends("fast", BAD, after=1)


@pytest.mark.parametrize("cores", [(0,), (7, 8)], ids=["fewer", "others"])
def test_resumed_on_a_smaller_machine(cores: tuple[int, ...]) -> None:
    """What runs on, on cores and memory that are no longer ours, is kept; nothing joins it."""
    driver = Driver(job("a", memory=60), job("b", memory=30), job("c"), policy=Complementary())
    smaller = Node(cores=cores, memory=20)
    driver.tell(driver.make(ev.Resumed, node=smaller))
    shown = Profile(demand={"cores": 0.3}, memory=5)
    assert not kinds(driver.about(ev.Profiled, "a", profile=shown), ev.Placed)
    driver.ends("a", OK)
    driver.ends("b", OK)
    assert [j.id for j in driver.core.state.active] == ["c"]


@pytest.mark.parametrize("retries", [0, 2])
def test_out_of_memory_comes_to_an_end_with_retries_too(retries: int) -> None:
    """Two attempts are free, then each costs one of the job's tries; they do run out."""
    driver = Driver(job("a", retries=retries))
    for _ in range(2 + retries):
        driver.ends("a", OOM)
        driver.wake()
    driver.ends("a", OOM)
    assert driver.states()["a"] == StateName.OUT_OF_MEMORY
