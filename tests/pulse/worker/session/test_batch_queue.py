"""Jobs that wait to be called together: when they start, with which others, and how many more are asked for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import pulse
from pulse.app.outcome import Outcome
from pulse.protocol import Assignment
from pulse.worker.execution.attempt import Attempt
from pulse.worker.session.ledger import Ledger

ROOM = 1_000_000
app = pulse.App()


@app.handler("many", batch=3, batch_wait_s=2)
def many(jobs: list[pulse.BatchJob[Any]]) -> None: ...


@app.handler("others", batch=3, batch_wait_s=1)
def others(jobs: list[pulse.BatchJob[Any]]) -> None: ...


@app.handler("single")
def single() -> None: ...


class Desk:
    """A ledger, with jobs that are called by letters."""

    def __init__(self, concurrency: int = 2) -> None:
        self.ledger = Ledger(app.handlers, concurrency)
        self.letters: dict[bytes, str] = {}

    def assign(self, letters: str, at_s: float, name: str = "many", **more: Any) -> None:
        jobs = [self.job(letter, name, **more) for letter in letters]
        self.ledger.assign(jobs, at_s)

    def job(
        self, letter: str, name: str, *, attempt: int = 1, timeout_s: float | None = None, **extra: Any
    ) -> Assignment:
        job_id = letter.encode() * 16
        self.letters[job_id] = letter
        packed = {key: msgspec.Raw(msgspec.msgpack.encode(value)) for key, value in extra.items()}
        return Assignment(job_id, attempt, name, "t", "{}", timeout_s, 30.0, extra=packed or None)

    def start(self) -> list[Attempt]:
        return self.ledger.take_startable()

    def called(self, count: int) -> list[str]:
        """The jobs of the next calls, each of which ends before the next."""
        calls: list[str] = []
        for _ in range(count):
            attempts = self.start()
            calls.append("".join(self.letters[one.job.id] for one in attempts))
            for one in attempts:
                self.ledger.ended(one, Outcome("ok", None))
        return calls

    def started(self) -> str:
        """What starts now: the jobs of a call together, calls apart by commas."""
        calls: dict[object, str] = {}
        for one in self.start():
            key = one.batch or one
            calls[key] = calls.get(key, "") + self.letters[one.job.id]
        return ",".join(calls.values())

    def results(self, number: int = 1) -> str:
        return "".join(self.letters[one[0]] for one in self.ledger.take_report(number, ROOM))

    def next_s(self) -> float | None:
        return self.ledger.batches.next_s()


def test_a_batch_starts_when_it_is_full() -> None:
    desk = Desk()
    desk.assign("ab", 0.0)
    assert desk.started() == ""
    desk.assign("cd", 0.5)
    assert desk.started() == "abc"
    assert desk.next_s() == 2.5, "the fourth waits since it came"
    assert desk.ledger.running == 1


def test_a_batch_that_never_fills_starts_when_its_first_job_has_waited() -> None:
    desk = Desk()
    assert desk.next_s() is None
    desk.assign("a", 10.0)
    desk.assign("b", 11.5)
    assert desk.next_s() == 12.0
    assert not desk.ledger.batches.look(11.99)
    assert desk.started() == ""
    assert desk.ledger.batches.look(12.0)
    assert desk.next_s() is None, "nothing becomes ready any more"
    assert desk.started() == "ab"
    assert not desk.ledger.batches.look(99.0)


def test_without_a_wait_it_starts_with_what_has_come() -> None:
    desk = Desk()
    desk.ledger = Ledger({"many": _without_wait()}, 1)
    desk.assign("ab", 7.0)
    assert desk.started() == "ab"


def _without_wait() -> Any:
    other = pulse.App()
    other.handler("many", batch=3, batch_wait_s=0)(many)
    return other.handlers["many"]


def test_a_ready_batch_takes_in_more_until_there_is_a_place() -> None:
    desk = Desk(1)
    desk.assign("x", 0.0, "single")
    (single,) = desk.start()
    desk.assign("a", 0.0)
    desk.ledger.batches.look(2.0)
    desk.assign("b", 2.0)
    assert desk.started() == ""
    desk.ledger.ended(single, Outcome("ok", None))
    assert desk.started() == "ab"


def test_jobs_of_another_handler_or_with_another_time_limit_are_in_another_batch() -> None:
    desk = Desk(9)
    desk.assign("a", 0.0)
    desk.assign("b", 0.0, timeout_s=5.0)
    desk.assign("c", 0.0, "others")
    desk.assign("de", 0.0, timeout_s=5.0)
    assert desk.started() == "bde"
    desk.ledger.batches.look(2.0)
    assert desk.started() == "a,c"


@pytest.mark.parametrize("more", [{"attempt": 2}, {"attempt": 4, "tries": 2}, {"attempt": 2, "tries": 1, "crashes": 1}])
def test_a_job_that_was_tried_before_starts_alone_and_at_once(more: dict[str, Any]) -> None:
    desk = Desk(9)
    desk.assign("abcd", 0.0, **more)
    attempts = desk.start()
    assert [desk.letters[one.job.id] for one in attempts] == ["a", "b", "c", "d"]
    assert [one.batch is not None and one.batch.attempts for one in attempts] == [(one,) for one in attempts]


@pytest.mark.parametrize("more", [{}, {"attempt": 3, "tries": 1}, {"traceparent": "x"}])
def test_a_job_that_was_only_given_back_does_not(more: dict[str, Any]) -> None:
    desk = Desk(9)
    desk.assign("abc", 0.0, **more)
    assert desk.started() == "abc"


def test_an_isolated_job_is_in_no_batch() -> None:
    desk = Desk()
    desk.assign("a", 0.0, isolate=True, crashes=2, tries=1, attempt=3)
    desk.ledger.cells_ready()
    (attempt,) = desk.start()
    assert (attempt.isolated, attempt.batch) == (True, None)


def test_batches_and_other_jobs_take_turns() -> None:
    """Neither of them has to wait until none of the other kind comes any more."""
    desk = Desk(1)
    desk.assign("vwxyz", 0.0, "single")
    desk.assign("abcdef", 0.0)
    assert desk.called(4) == ["abc", "v", "def", "w"]


class TestThePlaceOfABatchThatFills:
    def test_jobs_that_come_later_do_not_take_it(self) -> None:
        """They come because there is room for the batch: it would never start."""
        desk = Desk(2)
        desk.assign("a", 0.0)
        desk.start()
        desk.assign("wxyz", 0.0, "single")
        assert desk.started() == "w"
        assert desk.ledger.is_full
        desk.ledger.batches.look(2.0)
        assert desk.started() == "a"
        assert desk.ledger.running == 2

    def test_each_handler_has_one(self) -> None:
        desk = Desk(3)
        desk.assign("a", 0.0)
        desk.assign("b", 0.0, "others")
        desk.assign("xyz", 0.0, "single")
        assert desk.started() == "x"

    def test_the_last_place_is_a_single_jobs_turn_after_a_batch(self) -> None:
        desk = Desk(1)
        desk.assign("abc", 0.0)
        attempts = desk.start()
        desk.assign("d", 0.0)
        desk.assign("x", 0.0, "single")
        for one in attempts:
            desk.ledger.ended(one, Outcome("ok", None))
        assert desk.started() == "x"

    def test_it_is_free_again_when_nothing_fills(self) -> None:
        desk = Desk(1)
        desk.assign("a", 0.0)
        desk.assign("x", 0.0, "single")
        assert desk.started() == ""
        desk.ledger.recall((b"a" * 16, 1))
        assert desk.started() == "x"

    def test_what_waits_behind_it_is_given_back_but_not_the_batch(self) -> None:
        desk = Desk(1)
        desk.assign("a", 0.0)
        desk.assign("xy", 0.0, "single")
        assert not desk.ledger.give_back_waiting(), "nobody has looked for places yet"
        assert desk.started() == ""
        assert desk.ledger.give_back_waiting()
        assert desk.results() == "xy"
        assert not desk.ledger.give_back_waiting()
        desk.ledger.batches.look(2.0)
        assert desk.started() == "a"


def test_handlers_take_turns_too() -> None:
    desk = Desk(1)
    desk.assign("abcdef", 0.0)
    desk.assign("uvwxyz", 0.0, "others")
    assert desk.called(4) == ["abc", "uvw", "def", "xyz"]


class TestRoom:
    """How many jobs a process asks for, beyond one for each handler that it runs at once."""

    def test_while_a_batch_fills_there_is_room_for_the_rest(self) -> None:
        desk = Desk()
        assert desk.ledger.room_for_batches == 0
        desk.assign("a", 0.0)
        assert desk.ledger.room_for_batches == 2, "one of its jobs has a place of its own"
        desk.assign("x", 0.0, "others")
        assert desk.ledger.room_for_batches == 4

    def test_a_running_batch_takes_one_place_until_all_of_it_has_ended(self) -> None:
        desk = Desk()
        desk.assign("abc", 0.0)
        first, second, third = desk.start()
        assert (desk.ledger.room_for_batches, desk.ledger.running) == (2, 1)
        desk.ledger.ended(first, Outcome("ok", None))
        desk.ledger.ended(second, Outcome("ok", None))
        assert (desk.ledger.room_for_batches, desk.ledger.running) == (2, 1)
        desk.ledger.ended(third, Outcome("ok", None))
        assert (desk.ledger.room_for_batches, desk.ledger.running) == (0, 0)

    def test_none_is_asked_for_that_could_not_start(self) -> None:
        desk = Desk(1)
        desk.assign("x", 0.0, "single")
        desk.start()
        desk.assign("a", 0.0)
        assert desk.ledger.room_for_batches == 0

    def test_one_that_runs_alone_asks_for_none(self) -> None:
        desk = Desk()
        desk.assign("a", 0.0, attempt=2)
        (alone,) = desk.start()
        assert desk.ledger.room_for_batches == 0
        desk.ledger.ended(alone, Outcome("ok", None))
        assert desk.ledger.running == 0


class TestGoingBack:
    def test_a_batch_that_could_not_be_named_starts_again_as_it_was(self) -> None:
        desk = Desk(1)
        desk.assign("abcd", 0.0)
        desk.ledger.put_back(desk.start())
        assert (desk.ledger.running, desk.ledger.room_for_batches) == (0, 2)
        assert desk.started() == "abc"

    def test_it_need_not_be_full(self) -> None:
        desk = Desk(1)
        desk.assign("a", 0.0)
        desk.ledger.batches.look(2.0)
        desk.ledger.put_back(desk.start())
        assert desk.started() == "a"

    def test_who_runs_alone_stays_alone(self) -> None:
        desk = Desk(2)
        desk.assign("ab", 0.0, attempt=2)
        desk.ledger.put_back(desk.start())
        first, second = desk.start()
        assert [one.batch is not None and one.batch.attempts for one in (first, second)] == [(first,), (second,)]
        assert desk.ledger.running == 2
        desk.ledger.ended(first, Outcome("ok", None))
        assert desk.ledger.running == 1

    def test_who_was_stopped_meanwhile_is_left_out(self) -> None:
        desk = Desk(1)
        desk.assign("abc", 0.0)
        attempts = desk.start()
        desk.ledger.stop(attempts[1].pair, "canceled")
        desk.ledger.put_back(attempts)
        assert desk.started() == "ac"
        assert desk.results() == "b"

    def test_a_drain_gives_back_what_waits(self) -> None:
        desk = Desk()
        desk.assign("ab", 0.0)
        desk.ledger.drain()
        assert (desk.results(), desk.started()) == ("ab", "")

    def test_what_waits_behind_full_slots_is_given_back(self) -> None:
        desk = Desk(1)
        desk.assign("x", 0.0, "single")
        desk.start()
        desk.assign("ab", 0.0)
        assert desk.ledger.give_back_waiting()
        assert desk.results() == "ab"
        assert not desk.ledger.give_back_waiting()

    @pytest.mark.parametrize("how", ["recall", "cancel"])
    def test_one_that_is_taken_away_does_not_fill_a_batch(self, how: str) -> None:
        desk = Desk()
        desk.assign("ab", 0.0)
        pair = (b"a" * 16, 1)
        if how == "recall":
            desk.ledger.recall(pair)
        else:
            desk.ledger.stop(pair, "canceled")
        desk.assign("c", 1.0)
        assert (desk.results(), desk.started()) == ("a", "")
        assert desk.next_s() == 2.0
        desk.ledger.recall((b"b" * 16, 1))
        desk.ledger.recall((b"c" * 16, 1))
        assert desk.next_s() is None
        assert desk.ledger.room_for_batches == 0
