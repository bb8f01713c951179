"""
Changes of many jobs, in the background: they walk the pages of a filter and change what they find, a page at a time.

Each change is guarded by the job's status anyway, so a walk that is slow or stopped does no harm: what is done is done.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal
from uuid import UUID

from pulse.errors import ConflictError, PulseError
from pulse.protocol import answers
from pulse.ui.data.bulk_actions import MOST_WORDS, VERBS, Order
from pulse.ui.data.queries import Questions

__all__ = ["Task", "Tasks"]

PAGE: Final = 500  # jobs per step: one short statement
STEP_S: Final = 15.0
MOST_RUNNING: Final = 4
MOST_KEPT: Final = 50
MOST_FAILURES: Final = 5  # in a row, before a task gives up
MOST_UNDOABLE: Final = 100_000  # ids that are kept to take them back, of all tasks together: 1.6 MB
ID_BYTES: Final = 16
RETRY_S: Final = 0.5
_EXAMPLES: Final = 5


@dataclass(slots=True)
class Task:
    """One order under way: how far it is, and how it ended."""

    key: str
    order: Order
    user: str
    began_s: float
    state: Literal["running", "done", "stopped", "failed"] = "running"
    done: int = 0
    refused: Counter[str] = field(default_factory=Counter[str])
    examples: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    error: str | None = None
    ended_s: float | None = None
    runner: asyncio.Task[None] | None = None
    back: dict[tuple[str, int] | None, bytearray] = field(default_factory=dict[tuple[str, int] | None, bytearray])
    is_forgotten: bool = False

    @property
    def undoable(self) -> int:
        """Jobs that can be taken back, of those that it has changed: all of them, or none."""
        return sum(len(ids) for ids in self.back.values()) // ID_BYTES

    def keep(self, changed: answers.Changed) -> None:
        """Remember what it has changed: their ids, and of a change where they were."""
        if self.is_forgotten or self.order.parts or not VERBS[self.order.verb].reverse:
            return
        if self.order.verb == "change":
            for job_id, topic, priority in changed.before:
                self.back.setdefault((topic, priority), bytearray()).extend(job_id)
        elif changed.done:
            self.back.setdefault(None, bytearray()).extend(b"".join(changed.done))

    def forget(self) -> None:
        """It cannot be taken back any more: it has been, or others need the room."""
        self.back, self.is_forgotten = {}, True

    def undo(self) -> Order:
        """
        The order that takes back what this task has done.

        Raises:
            ConflictError: Nothing is known of it any more.

        """
        if self.state == "running" or not self.back:
            raise ConflictError("that cannot be undone any more")
        verb = VERBS[self.order.verb].reverse
        words = f"undo of “{self.order.verb}: {self.order.where}”"
        parts = [
            (
                bytes(ids),
                {"matching": words[:MOST_WORDS], **({} if to is None else {"topic": to[0], "priority": to[1]})},
            )
            for to, ids in self.back.items()
        ]
        return Order(verb, VERBS[verb].kind, words, parts=parts)


class Tasks:
    """The orders of this process; bounded."""

    def __init__(self, questions: Questions) -> None:
        self._questions = questions
        self._tasks: OrderedDict[str, Task] = OrderedDict()

    @property
    def running(self) -> int:
        """How many are under way."""
        return sum(task.state == "running" for task in self._tasks.values())

    def find(self, key: str) -> Task | None:
        """The task of this key."""
        return self._tasks.get(key)

    def all(self) -> list[Task]:
        """Newest first."""
        return list(reversed(self._tasks.values()))

    def begin(self, order: Order, user: str) -> Task:
        """
        Carry out *order* in the background.

        Raises:
            ConflictError: Too many are under way.

        """
        if self.running >= MOST_RUNNING:
            raise ConflictError(f"{self.running} such tasks are under way; wait for one of them, or stop it")
        task = Task(secrets.token_urlsafe(8), order, user, time.time())
        self._tasks[task.key] = task
        while len(self._tasks) > MOST_KEPT:
            oldest = next(key for key, one in self._tasks.items() if one.state != "running")
            del self._tasks[oldest]
        task.runner = asyncio.ensure_future(self._run(task))
        return task

    def stop(self, task: Task) -> None:
        """Let it end; what it has done stays done."""
        if task.runner is not None and task.state == "running":
            task.runner.cancel()

    def undo(self, task: Task, user: str) -> Task:
        """
        Take back what *task* has done, once.

        Raises:
            ConflictError: Nothing is known of it any more, or too many are under way.

        """
        begun = self.begin(task.undo(), user)
        task.forget()
        return begun

    async def aclose(self) -> None:
        """Stop all."""
        runners = [task.runner for task in self._tasks.values() if task.runner is not None and not task.runner.done()]
        for runner in runners:
            runner.cancel()
        await asyncio.gather(*runners, return_exceptions=True)

    async def _run(self, task: Task) -> None:
        try:
            for ids, more in task.order.parts:
                for start in range(0, len(ids), PAGE * ID_BYTES):
                    some = ids[start : start + PAGE * ID_BYTES]
                    await self._apply(task, [some[at : at + ID_BYTES] for at in range(0, len(some), ID_BYTES)], more)
            if task.order.filters is not None:
                await self._walk(task, task.order.filters)
            task.state = "done"
        except asyncio.CancelledError:
            task.state = "stopped"
        except PulseError as error:
            task.state, task.error = "failed", error.message
        finally:
            task.ended_s = time.time()

    async def _walk(self, task: Task, filters: Mapping[str, object]) -> None:
        """Page by page, from the newest on; what is submitted meanwhile is not met. It ends where all were met."""
        left = None if task.order.only is None else len(task.order.only)
        after: str | None = None
        while True:
            body = {**filters, "limit": PAGE, **({} if after is None else {"after": after})}
            page = answers.read(answers.JobPage, await self._insist(task, "jobs.list", body))
            matches = task.order.matches
            found = [job.id for job in page.jobs if matches is None or matches(job)]
            if found:
                await self._apply(task, found, task.order.more)
            left = None if left is None else left - len(found)
            after = page.next
            if after is None or left == 0:
                return

    async def _apply(self, task: Task, ids: Sequence[bytes], more: Mapping[str, object]) -> None:
        body = {"ids": list(ids), **more}
        changed = answers.read(answers.Changed, await self._insist(task, task.order.kind, body))
        task.keep(changed)
        self._forget_some(task)
        task.done += len(changed.done)
        task.refused.update(code for _, code in changed.refused)
        room = max(0, _EXAMPLES - len(task.examples))
        task.examples += [(str(UUID(bytes=one)), code) for one, code in changed.refused[:room]]

    def _forget_some(self, newest: Task) -> None:
        """Keep what undoes the newest, as far as there is room."""
        for task in (*(one for one in self._tasks.values() if one is not newest), newest):
            if sum(one.undoable for one in self._tasks.values()) <= MOST_UNDOABLE:
                return
            if task.back:
                task.forget()

    async def _insist(self, task: Task, kind: str, body: Mapping[str, object]) -> dict[str, object]:
        """Ask again while the server is away for a moment: doing it twice refuses what is done already."""
        for failures in range(MOST_FAILURES):
            try:
                if kind == "jobs.list":
                    return await self._questions.ask_fresh(kind, body, within_s=STEP_S)
                return await self._questions.change(kind, body, behalf=task.user, within_s=STEP_S)
            except PulseError as error:
                if error.code not in {"internal", "unavailable"} or failures == MOST_FAILURES - 1:
                    raise
            await asyncio.sleep(RETRY_S * 2**failures)
        raise AssertionError
