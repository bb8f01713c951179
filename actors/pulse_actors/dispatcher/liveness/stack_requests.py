"""
Asks where a handler is: the Python stacks of all threads of its process, even if one holds the interpreter.

The worker itself knows most: where a coroutine waits, and which process an isolated job has; it answers if its loop
runs. Its pool parent, which runs no user code and always answers, sends a signal whose handler in C writes the stacks.
Both are asked at once, and the worker's answer is preferred.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import anyio

from pulse import protocol
from pulse.system import processes
from pulse_actors.dispatcher.workers.records import Pair, RegisteredWorker
from pulse_actors.dispatcher.workers.registry import WorkerRegistry

ANSWER_S: Final = 3.0  # a parent waits about one second for its child
ALIVE_S: Final = 0.25  # a worker whose loop runs has answered by then


@dataclass(frozen=True, slots=True)
class HandlerStack:
    """The stacks, and the process that they are from."""

    stack: str
    pid: int


@dataclass(slots=True)
class _StackQuestion:
    """A request under way."""

    identity: str  # the worker that may answer
    answered: anyio.Event = field(default_factory=anyio.Event)
    answer: protocol.StackAnswer | None = None


class StackRequests:
    """The requests for stacks under way."""

    def __init__(self, registry: WorkerRegistry) -> None:
        self._registry = registry
        self._number = 0
        self._asked: dict[int, _StackQuestion] = {}

    async def take(self, worker: RegisteredWorker, pair: Pair) -> HandlerStack | None:
        """
        The stacks of an attempt's process.

        Args:
            worker: The worker that holds it.
            pair: The attempt.

        Returns:
            None if the worker has no pool parent here, or no answer came in time.
        """
        parent = self._registry.parent_of(processes.parent(worker.facts.pid))
        asked = [self._ask(worker, {"session": worker.facts.session, "job": pair})]
        if parent is not None:
            asked.append(self._ask(parent, {"session": worker.facts.session}))
        try:
            with anyio.move_on_after(ANSWER_S):
                await asked[-1][1].answered.wait()
                with anyio.move_on_after(ALIVE_S):  # wait for the worker's own answer
                    await asked[0][1].answered.wait()
        finally:
            for number, _ in asked:
                del self._asked[number]
        answers = [question.answer for _, question in asked]
        best = next((one for one in answers if one is not None and one.stack), None)
        return None if best is None or best.stack is None else HandlerStack(best.stack, best.pid or worker.facts.pid)

    def answer(self, worker: RegisteredWorker, number: int | None, body: protocol.StackAnswer) -> None:
        """An answer of *worker* or a pool parent; dropped if it is too late."""
        question = self._asked.get(number) if number is not None else None
        if question is not None and question.identity == worker.identity:
            question.answer = body
            question.answered.set()

    def _ask(self, who: RegisteredWorker, body: Mapping[str, object]) -> tuple[int, _StackQuestion]:
        self._number += 1
        question = self._asked[self._number] = _StackQuestion(who.identity)
        who.link.send("stack", self._number, body)
        return self._number, question
