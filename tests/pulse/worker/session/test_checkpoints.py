"""Who waits for a checkpoint hears what became of it, whichever frame it came with."""

from __future__ import annotations

from typing import Final

import pytest

from pulse.app.workflows.receipt import Kept, Receipt
from pulse.protocol import Assignment
from pulse.worker.execution.attempt import Attempt
from pulse.worker.session.checkpoints import Checkpoints

ROOM: Final = 2**20


class Waiter:
    """One who waits for checkpoints."""

    def __init__(self) -> None:
        self.heard: list[Kept] = []

    def receipt(self) -> Receipt:
        made = Receipt()
        made.on_settled(self.heard.append)
        return made


@pytest.fixture
def waiter() -> Waiter:
    return Waiter()


@pytest.fixture
def attempt() -> Attempt:
    return Attempt(Assignment(bytes(16), 1, "n", "t", "{}", None, 30.0), None, 0.0)


def test_the_newest_answers_for_all(waiter: Waiter, attempt: Attempt) -> None:
    some = Checkpoints()
    some.save(attempt, "1", waiter.receipt())
    some.save(attempt, "2")
    some.save(attempt, "3", waiter.receipt())
    assert some.take(1, ROOM) == [(*attempt.pair, "3")]
    assert waiter.heard == []
    assert some.answered(1) == [attempt]
    assert waiter.heard == ["kept", "kept"]


@pytest.mark.parametrize("again", ["disconnected", "refused for now"])
def test_what_is_sent_again_is_waited_for_again(waiter: Waiter, attempt: Attempt, again: str) -> None:
    some = Checkpoints()
    some.save(attempt, "1", waiter.receipt())
    some.take(1, ROOM)
    if again == "disconnected":
        some.disconnected()
    else:
        some.refused(1, passing=True)
    assert waiter.heard == []
    assert some.take(2, ROOM) == [(*attempt.pair, "1")]
    some.answered(2)
    assert waiter.heard == ["kept"]


def test_a_lost_attempt_and_a_refused_checkpoint(waiter: Waiter, attempt: Attempt) -> None:
    some = Checkpoints()
    some.save(attempt, "1", waiter.receipt())
    some.take(1, ROOM)
    some.refused(1, passing=False)
    some.save(attempt, "2", waiter.receipt())
    some.take(2, ROOM)
    some.answered(2, {attempt.pair})
    some.save(attempt, "3", waiter.receipt())
    some.take(3, ROOM)
    attempt.stop("lost")
    some.answered(3)
    assert waiter.heard == ["refused", "refused", "lost"]


def test_what_a_thread_saves_while_a_frame_is_made(waiter: Waiter, attempt: Attempt) -> None:
    """It goes with the next frame: the one that is made has the text before."""
    some = Checkpoints()

    class Slow(str):
        __slots__ = ()

        def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
            some.save(attempt, "2", waiter.receipt())
            return super().encode(encoding, errors)

    some.save(attempt, Slow("1"))
    assert some.take(1, ROOM) == [(*attempt.pair, "1")]
    assert some.take(2, ROOM) == [(*attempt.pair, "2")]
    assert some.answered(1) == []
    assert waiter.heard == []
    assert some.answered(2) == [attempt]
    assert waiter.heard == ["kept"]


def test_a_text_that_the_server_has_is_sent_once_more_to_who_waits(waiter: Waiter, attempt: Attempt) -> None:
    some = Checkpoints()
    some.save(attempt, "1")
    some.take(1, ROOM)
    some.answered(1)
    some.save(attempt, attempt.checkpoint or "", waiter.receipt())
    assert some.take(2, ROOM) == [(*attempt.pair, "1")]
    some.answered(2)
    assert waiter.heard == ["kept"]
