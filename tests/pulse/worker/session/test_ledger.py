"""The ledger: a worker's attempts, and its unsent words."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import pulse
from pulse.app.outcome import RELEASED, Outcome
from pulse.app.transactions.fence import FencePhase
from pulse.protocol import Assignment
from pulse.worker.execution.attempt import Attempt, Phase
from pulse.worker.session.ledger import Ledger

ROOM = 1_000_000
app = pulse.App()


@app.handler("n")
async def n() -> None: ...


@app.handler("apart", isolate=True)
async def apart() -> None: ...


@app.handler("restless", stall_s=1.5)
async def restless() -> None: ...


@app.handler("many", batch=2, batch_wait_s=0)
async def many(jobs: list[pulse.BatchJob[Any]]) -> None: ...


ISOLATE = {"isolate": msgspec.Raw(msgspec.msgpack.encode(True))}


_NUMBERS = itertools.count(1)  # ids in order, so that a machine's draws from what is sorted by id can be repeated


def job(name: str = "n", attempt: int = 1, **more: Any) -> Assignment:
    return Assignment(
        id=next(_NUMBERS).to_bytes(16, "big"), attempt=attempt, name=name, topic="t", args="{}",
        timeout_s=more.get("timeout_s"), lease_s=30.0, extra=more.get("extra"),
    )  # fmt: skip


def ledger(concurrency: int = 2) -> Ledger:
    return Ledger(app.handlers, concurrency)


def running_of(one: Ledger, *jobs: Assignment) -> list[Attempt]:
    one.assign(jobs or [job()], 0.0)
    return one.take_startable()


def reported(one: Ledger, number: int = 1) -> list[tuple[bytes, int, str]]:
    return [result[:3] for result in one.take_report(number, ROOM)]


def test_from_assignment_to_reported() -> None:
    one = ledger(2)
    jobs = [job() for _ in range(3)]
    first, second = running_of(one, *jobs)
    assert [first.job, second.job] == jobs[:2]
    assert one.take_startable() == []
    one.ended(first, Outcome("ok", None))
    assert [attempt.job for attempt in one.take_startable()] == jobs[2:]
    assert reported(one) == [(jobs[0].id, 1, "ok")]
    assert reported(one, 2) == []
    assert one.held == 3
    one.reported(1)
    assert one.held == 2
    assert one.running_list() == [(one_job.id, 1) for one_job in jobs[1:]]


def test_an_assignment_that_came_twice_is_held_and_started_once() -> None:
    one, same = ledger(3), job()
    assert len(running_of(one, same, same)) == 1
    one.assign([same], 0.0)
    assert one.take_startable() == []
    one.assign([Assignment(same.id, 2, "n", "t", "{}", None, 30.0)], 0.0)
    assert one.held == 2


@pytest.mark.parametrize("name", ["n", "apart", "many"])
def test_what_waits_without_a_lease_is_given_back(name: str) -> None:
    """Not before its lease has passed, by its assignment and by the last answer; what runs stays."""
    one = ledger(1)
    (runs,) = running_of(one, job())
    waits = job(name)
    one.assign([waits], 5.0)
    assert one.give_back_lapsed(35.0, 0.0) == 0
    assert one.give_back_lapsed(36.0, 6.0) == 0
    assert one.give_back_lapsed(36.5, 6.0) == 1
    assert one.give_back_lapsed(99.0, 6.0) == 0
    one.ended(runs, Outcome("ok", None))
    one.cells_ready()
    assert one.take_startable() == []
    assert reported(one) == [(waits.id, 1, "release"), (runs.job.id, 1, "ok")]


def test_an_unknown_handler_is_an_error_at_once() -> None:
    one = ledger()
    one.assign([job("unknown")], 0.0)
    assert one.take_startable() == []
    ((_, _, outcome, detail),) = one.take_report(1, ROOM)  # type: ignore[misc]
    assert (outcome, detail) == ("error", 'this worker has no handler named "unknown"')


def test_what_could_not_be_named_goes_back_in_order() -> None:
    one = ledger(2)
    jobs = [job() for _ in range(3)]
    one.assign(jobs, 0.0)
    one.put_back(one.take_startable())
    assert one.running == 0
    assert [attempt.job for attempt in one.take_startable()] == jobs[:2]


def test_what_was_stopped_while_it_was_named_does_not_go_back() -> None:
    one = ledger(1)
    stopped = job()
    one.assign([stopped], 0.0)
    taken = one.take_startable()
    assert one.stop((stopped.id, 1), "canceled") is taken[0]
    one.put_back(taken)
    assert one.take_startable() == []
    assert reported(one) == [(stopped.id, 1, "release")]


def test_stopping() -> None:
    """Queued: given back at once. Running: interrupted, once. Ended or unknown: nothing."""
    one = ledger(1)
    running, queued = job(), job()
    (attempt,) = running_of(one, running, queued)
    assert one.stop((queued.id, 1), "canceled") is None
    assert reported(one) == [(queued.id, 1, "release")]
    assert one.stop((running.id, 1), "timeout") is attempt
    assert not attempt.lost
    assert one.stop((running.id, 1), "lost") is None
    assert (attempt.stopped, attempt.lost) == ("timeout", True)
    assert one.stop((running.id, 2), "lost") is None
    one.ended(attempt, RELEASED)
    assert one.stop((running.id, 1), "canceled") is None
    assert reported(one, 2) == [(running.id, 1, "release")]


def test_recall_takes_only_what_waits() -> None:
    one = ledger(1)
    running, queued = job(), job()
    (attempt,) = running_of(one, running, queued)
    one.recall((running.id, 1))
    one.recall((queued.id, 1))
    assert attempt.stopped is None
    assert reported(one) == [(queued.id, 1, "release")]


def test_draining() -> None:
    """Waiting jobs are given back, for cells too, and later ones; running ones go on."""
    one = ledger(1)
    running, recalled, queued, apart, late = job(), job(), job(), job("apart"), job()
    (attempt,) = running_of(one, running, recalled, queued, apart)
    one.recall((recalled.id, 1))
    one.drain()
    one.assign([late], 0.0)
    assert reported(one) == [(each.id, 1, "release") for each in (recalled, apart, queued, late)]
    assert one.started() == [attempt]
    assert not one.waits_for_cells()
    one.ended(attempt, RELEASED)
    one.cells_ready()
    assert one.take_startable() == []


def test_results_under_way_come_back_in_order() -> None:
    one = ledger(4)
    jobs = [job() for _ in range(4)]
    attempts = running_of(one, *jobs)
    one.ended(attempts[0], RELEASED)
    assert len(reported(one, 1)) == 1
    one.ended(attempts[1], RELEASED)
    assert len(reported(one, 2)) == 1
    one.ended(attempts[2], RELEASED)
    one.disconnected()
    assert [result[0] for result in one.take_report(1, ROOM)] == [one_job.id for one_job in jobs[:3]]
    one.reported(2)  # an answer of the old connection means nothing now
    assert one.held == 4


def test_a_refused_report() -> None:
    """Refused for now: sent again. Refused for good: each alone; refused alone: let go."""
    one = ledger(3)
    jobs = [job() for _ in range(3)]
    for attempt in running_of(one, *jobs):
        one.ended(attempt, RELEASED)
    assert len(reported(one, 1)) == 3
    assert one.refused(1, passing=True) == []
    assert len(reported(one, 2)) == 3
    assert one.refused(2, passing=False) == []
    alone = [one.take_report(number, ROOM) for number in (3, 4, 5)]
    assert [len(results) for results in alone] == [1, 1, 1]
    assert one.refused(3, passing=False) == [alone[0][0][:2]]
    assert one.held == 2
    assert one.refused(99, passing=False) == []


def test_reports_fit_into_frames() -> None:
    one = ledger(4)
    one.assign([job() for _ in range(4)], 0.0)
    for attempt, text in zip(one.take_startable(), ["x" * 500, "x" * 500, "ä" * 600, "x" * 2000], strict=True):
        one.ended(attempt, Outcome("ok", f'"{text}"'))
    reports = [one.take_report(number, 1500) for number in range(1, 5)]
    assert [[result[2] for result in report] for report in reports] == [["ok", "ok"], ["ok"], ["error"], []]
    assert str(reports[2][0][3]).startswith("too large: result of about 2")


def test_progress_is_told_once() -> None:
    """A heartbeat carries progress that the server does not have; a result what no heartbeat could."""
    one = ledger(2)
    known, newer = running_of(one, job(), job())
    known.progress = newer.progress = "1"
    sheet = one.beat_sheet(0.0)
    assert sheet.jobs == one.beat_sheet(0.0).jobs == [(*known.pair, "1"), (*newer.pair, "1")]
    sheet.answered()
    assert one.beat_sheet(0.0).jobs == [(*known.pair, None), (*newer.pair, None)]
    newer.progress = "2"
    for attempt in (known, newer):
        one.ended(attempt, Outcome("ok", None))
    assert one.take_report(1, ROOM) == [(*known.pair, "ok", None), (*newer.pair, "ok", None, {"progress": "2"})]


def test_a_heartbeat_is_bounded() -> None:
    one = ledger(40)
    one.assign([job() for _ in range(40)], 0.0)
    for attempt in one.take_startable():
        attempt.progress = "x" * 16_000
    sheet = one.beat_sheet(0.0)
    assert 10 <= sum(text is not None for _, _, text in sheet.jobs) < 40
    assert not sheet.complete
    sheet.answered()
    assert sum(text is not None for _, _, text in one.beat_sheet(0.0).jobs) > 0


def test_the_newest_checkpoint_is_sent_once() -> None:
    one = ledger()
    (attempt,) = running_of(one)
    one.checkpoints.save(attempt, "1")
    one.checkpoints.save(attempt, "2")
    assert one.checkpoints.take(1, ROOM) == [(*attempt.pair, "2")]
    assert one.checkpoints.take(2, ROOM) == []
    assert one.checkpoints.answered(1) == [attempt]
    one.checkpoints.disconnected()
    assert one.checkpoints.take(3, ROOM) == []


def test_a_result_waits_for_its_checkpoint() -> None:
    """A failure that overtook its checkpoint would let the next attempt begin without it."""
    one = ledger()
    (attempt,) = running_of(one)
    one.checkpoints.save(attempt, "1")
    one.checkpoints.take(1, ROOM)
    one.checkpoints.save(attempt, "2")
    one.ended(attempt, Outcome("error", "boom"))
    one.checkpoints_answered(1)
    assert reported(one, 2) == []  # the newest one is still to be sent
    assert one.checkpoints.take(3, ROOM) == [(*attempt.pair, "2")]
    one.checkpoints_answered(3)
    assert reported(one, 4) == [(*attempt.pair, "error")]


@pytest.mark.parametrize("phase", ["commits", "completed"])
def test_what_completes_its_job_itself_is_not_lost(phase: FencePhase) -> None:
    """The server sees that the job is no longer RUNNING; other reasons to stop stay."""
    one = ledger()
    (attempt,) = running_of(one)
    fence = attempt.fence_for("w", lambda *_: None)
    fence.move(phase)
    assert one.stop(attempt.pair, "lost") is None
    assert (attempt.stopped, attempt.lost) == (None, False)
    fence.move("")
    assert one.stop(attempt.pair, "lost") is attempt
    fence.move(phase)
    attempt.stopped = None
    assert one.stop(attempt.pair, "timeout") is attempt


def test_checkpoints_survive_a_lost_connection() -> None:
    one = ledger(2)
    first, second = running_of(one, job(), job())
    one.checkpoints.save(first, "1")
    one.checkpoints.save(second, "1")
    one.checkpoints.take(1, ROOM)
    one.checkpoints.save(first, "2")
    one.disconnected()
    assert one.checkpoints.take(1, ROOM) == [(*first.pair, "2"), (*second.pair, "1")]


def test_a_refused_checkpoint() -> None:
    """Refused for now: sent again. Refused for good: given up, and the result goes without it."""
    one = ledger()
    (attempt,) = running_of(one)
    one.checkpoints.save(attempt, "1")
    one.checkpoints.take(1, ROOM)
    one.ended(attempt, RELEASED)
    one.refused(1, passing=True)
    assert reported(one, 2) == []
    assert one.checkpoints.take(3, ROOM) == [(*attempt.pair, "1")]
    one.refused(3, passing=False)
    assert reported(one, 4) == [(*attempt.pair, "release")]


def test_checkpoints_fit_into_frames() -> None:
    one = ledger(5)
    for attempt in running_of(one, *(job() for _ in range(5))):
        one.checkpoints.save(attempt, "x" * 400)
    frames = [one.checkpoints.take(number, 1200) for number in range(1, 5)]
    assert [len(frame) for frame in frames] == [2, 2, 1, 0]


def test_isolated_ones_wait_until_cells_can_be_made() -> None:
    """Others pass them by; then they come first, in their order, and from then on at once."""
    one = ledger(10)
    by_handler, by_server, other = job("apart"), job(extra=ISOLATE), job()
    one.assign([by_handler, by_server, other], 0.0)
    assert one.waits_for_cells()
    (started,) = one.take_startable()
    assert started.job is other
    assert not started.isolated
    late = job()
    one.assign([late], 0.0)
    one.cells_ready()
    assert not one.waits_for_cells()
    taken = one.take_startable()
    assert [attempt.job for attempt in taken] == [by_handler, by_server, late]
    assert [attempt.isolated for attempt in taken] == [True, True, False]
    again = job("apart")
    one.assign([again], 0.0)
    assert [attempt.job for attempt in one.take_startable()] == [again]


@pytest.mark.parametrize("word", [False, None, 1, "true"])
def test_only_true_isolates(word: object) -> None:
    one = ledger()
    one.assign([job(extra={"isolate": msgspec.Raw(msgspec.msgpack.encode(word))})], 0.0)
    assert not one.take_startable()[0].isolated


def test_isolated_ones_wait_again_when_no_cells_can_be_made() -> None:
    one = ledger(1)
    one.cells_ready()
    first, second, other = job("apart"), job("apart"), job()
    (running,) = running_of(one, first, second, other)
    one.cells_gone()
    one.ended_apart(running, RELEASED, {})
    assert [attempt.job for attempt in one.take_startable()] == [other]
    assert one.waits_for_cells()
    one.cells_ready()
    one.ended(one.started()[0], RELEASED)
    assert [attempt.job for attempt in one.take_startable()] == [second]


def test_isolated_ones_fail_when_cells_can_never_be_made() -> None:
    one = ledger()
    waiting, stopped, recalled = (job("apart") for _ in range(3))
    one.assign([waiting, stopped, recalled], 0.0)
    one.stop((stopped.id, 1), "canceled")
    one.recall((recalled.id, 1))
    assert reported(one) == [(stopped.id, 1, "release"), (recalled.id, 1, "release")]
    one.cells_failed("no such module")
    assert not one.waits_for_cells()
    assert one.take_report(2, ROOM) == [(waiting.id, 1, "error", "no process could be started for it: no such module")]


def test_what_an_isolated_one_used_goes_with_its_result() -> None:
    one = ledger()
    one.cells_ready()
    told = job("apart")
    (attempt,) = running_of(one, told)
    one.stop((told.id, 1), "timeout")
    attempt.stack = "there"
    one.ended_apart(attempt, Outcome("error", "late"), {"cpu_s": 1.5})
    extra = {"cpu_s": 1.5, "stopped": "timeout", "stack": "there"}
    assert one.take_report(1, ROOM) == [(told.id, 1, "error", "late", extra)]
    assert one.running == 0


def test_a_stack_is_left_out_before_a_result_is() -> None:
    """A frame without room for a stack may have room for the rest; else not even for that."""
    one = ledger(2)
    attempts = running_of(one, job(), job())
    for attempt, text in zip(attempts, ["late", "x" * 2000], strict=True):
        one.stop(attempt.pair, "timeout")
        attempt.stack = "ä" * 1000
        one.ended(attempt, Outcome("error", text))
    assert one.take_report(1, 1500) == [(*attempts[0].pair, "error", "late", {"stopped": "timeout"})]
    ((_, _, outcome, detail),) = one.take_report(2, 1500)  # type: ignore[misc]
    assert outcome == "error"
    assert str(detail).startswith("too large: error of about 4")


@pytest.mark.parametrize(("stopped", "value", "ending"), [
    (None, None, Outcome("ok", None)),
    (None, ValueError("x"), Outcome("error", "ValueError: x")),
    ("canceled", KeyboardInterrupt(), RELEASED),
    ("lost", ValueError("closed under me"), RELEASED),
    ("drain", ValueError("closed under me"), RELEASED),
    ("drain", pulse.Discard("hopeless"), Outcome("discard", "hopeless")),
    ("drain", {"done": 1}, Outcome("ok", '{"done":1}')),
    ("timeout", BaseException(), Outcome("error", "timed out after 2.5 s")),
    ("timeout", ValueError("late"), Outcome("error", "timed out after 2.5 s\nValueError: late")),
    ("timeout", 7, Outcome("ok", "7")),
    ("stalled", BaseException(), Outcome("error", "stalled: no progress for 1.5 s")),
    ("stalled", ValueError("late"), Outcome("error", "stalled: no progress for 1.5 s\nValueError: late")),
    ("stalled", pulse.RetryAfter(3, "why"), Outcome("retry", (3.0, "why"))),
])  # fmt: skip
def test_how_a_stopped_attempt_ended(stopped: Any, value: object, ending: Outcome) -> None:
    """The handler's own end counts; how it took its interruption does not."""
    attempt = Attempt(job(timeout_s=2.5), app.handlers["restless"], 0.0)
    attempt.stopped = stopped
    assert attempt.ending(value) == ending


class LedgerMachine(RuleBasedStateMachine):
    """Any sequence of events against a model: every assigned attempt gets a result, none two on one connection."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = ledger(3)
        self.open: set[tuple[bytes, int]] = set()
        self.starting: list[Attempt] = []
        self.running: list[Attempt] = []
        self.sent: dict[int, list[tuple[bytes, int]]] = {}
        self.number = 0

    @rule(count=st.integers(1, 4), name=st.sampled_from(["n", "apart", "many"]), attempt=st.integers(1, 2))
    def assign(self, count: int, name: str, attempt: int) -> None:
        jobs = [job(name, attempt) for _ in range(count)]
        self.open |= {(one.id, one.attempt) for one in jobs}
        self.ledger.assign(jobs, 0.0)

    @precondition(lambda self: not self.starting)
    @rule()
    def take_startable(self) -> None:
        self.starting = self.ledger.take_startable()

    @precondition(lambda self: self.starting)
    @rule(written=st.booleans())
    def write_started(self, written: bool) -> None:
        if written:
            self.running += self.starting
        else:
            self.ledger.put_back(self.starting)
        self.starting = []

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        attempt = data.draw(st.sampled_from(self.running))
        self.running.remove(attempt)
        self.ledger.ended(attempt, Outcome("ok", None))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), reason=st.sampled_from(["canceled", "lost", "timeout", "drain", "recall"]))
    def stop(self, data: st.DataObject, reason: Any) -> None:
        chosen = data.draw(st.sampled_from(sorted(self.open)))
        if reason == "recall":
            self.ledger.recall(chosen)
        else:
            attempt = self.ledger.stop(chosen, reason)
            assert attempt is None or attempt in self.running + self.starting

    @rule(room=st.sampled_from([300, ROOM]))
    def report(self, room: int) -> None:
        self.number += 1
        taken = [result[:2] for result in self.ledger.take_report(self.number, room)]
        under_way = {pair for pairs in self.sent.values() for pair in pairs}
        assert not under_way & set(taken), "a result was sent twice on one connection"
        assert set(taken) <= self.open
        if taken:
            self.sent[self.number] = taken

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), answer=st.sampled_from(["reported", "passing"]))
    def answer(self, data: st.DataObject, answer: str) -> None:
        number = data.draw(st.sampled_from(sorted(self.sent)))
        pairs = self.sent.pop(number)
        if answer == "passing":
            self.ledger.refused(number, passing=True)
        else:
            self.ledger.reported(number)
            self.open -= set(pairs)

    @rule()
    def disconnect(self) -> None:
        self.ledger.put_back(self.starting)
        self.starting = []
        self.ledger.disconnected()
        self.sent.clear()

    @rule(told=st.sampled_from([Ledger.drain, Ledger.cells_ready, Ledger.cells_gone]))
    def tell(self, told: Callable[[Ledger], None]) -> None:
        told(self.ledger)

    @rule()
    def cells_failed(self) -> None:
        self.ledger.cells_failed("why")

    @invariant()
    def holds_what_is_open(self) -> None:
        assert set(self.ledger.running_list()) == self.open
        assert self.ledger.held == len(self.open)
        at_work = [*self.running, *self.starting]
        assert self.ledger.running == len({one.batch or one for one in at_work}) <= 3
        batches = {one.batch for one in at_work if one.batch is not None}
        assert self.ledger._beyond == sum(len(one.attempts) - 1 for one in batches)

    def teardown(self) -> None:
        self.ledger.put_back(self.starting)
        self.ledger.drain()
        for attempt in self.running:
            self.ledger.ended(attempt, RELEASED)
        self.ledger.disconnected()
        told = [result[:2] for result in self.ledger.take_report(10_000, ROOM)]
        assert sorted(told) == sorted(self.open), "every open attempt has exactly one result"
        assert all(attempt.phase is Phase.ENDED for attempt in self.ledger._held.values())


TestLedger = pytest.mark.rest(LedgerMachine.TestCase)


def test_what_waits_behind_long_ones_goes_back() -> None:
    """Only while every slot is taken; attempts with a result, or running, are not touched."""
    one = ledger(2)
    jobs = [job() for _ in range(5)]
    running = running_of(one, *jobs)
    recalled = jobs[2]
    one.recall((recalled.id, recalled.attempt))
    assert one.give_back_waiting()
    assert sorted(result[0] for result in reported(one)) == sorted(each.id for each in jobs[2:])
    assert one.running == 2
    assert not one.give_back_waiting()
    one.assign([job()], 0.0)
    one.ended(running[0], Outcome("ok", None))
    assert not one.give_back_waiting()
    assert len(one.take_startable()) == 1
