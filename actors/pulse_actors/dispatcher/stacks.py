"""
Asks pool parents where their children are: the Python stack of every thread, even of one that holds the interpreter.

The child is told by a signal and writes its stacks from the signal's handler in C; its pool parent, which runs no user
code and answers at any time, collects them.
"""

from __future__ import annotations

from typing import Final

import anyio

from pulse import procs
from pulse_actors.dispatcher.desk import Desk, Worker

ANSWER_S: Final = 3.0  # a parent waits about one second for its child


class Stacks:
    """
    Requests for stacks that are under way.

    Args:
        desk: Knows the pool parents.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._number = 0
        self._asked: dict[int, tuple[str, anyio.Event]] = {}
        self._answers: dict[int, str | None] = {}

    async def take(self, worker: Worker) -> str | None:
        """The stacks of *worker*; None when it has no pool parent here, or nothing came back in time."""
        parent = self._desk.parent_of(procs.parent(worker.pid))
        if parent is None:
            return None
        self._number += 1
        number, answered = self._number, anyio.Event()
        self._asked[number] = (parent.identity, answered)
        parent.link.send("stack", number, {"session": worker.session})
        try:
            with anyio.move_on_after(ANSWER_S):
                await answered.wait()
        finally:
            del self._asked[number]
        return self._answers.pop(number, None)

    def answer(self, worker: Worker, number: int | None, stack: str | None) -> None:
        """What *worker*, a pool parent, found; an answer that nobody waits for is dropped."""
        asked = self._asked.get(number) if number is not None else None
        if asked is not None and number is not None and asked[0] == worker.identity:
            self._answers[number] = stack
            asked[1].set()
