"""
Changes of many jobs, in the background: they walk the pages of a filter and change what they find, a page at a time.

Each change is guarded by the job's status anyway, so a walk that is slow or stopped does no harm: what is done is done.
"""

from __future__ import annotations

import asyncio
import functools
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal
from uuid import UUID

from pulse.errors import ConflictError, PulseError
from pulse.ops.bulk import ACTIONS, MAX_MATCHING_CHARACTERS, Former, as_body, change_jobs, former_of, job_pages
from pulse.protocol import answers
from pulse.ui.data.bulk_orders import BulkOrder
from pulse.ui.data.queries import Questions

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
class BulkTask:
    """One order under way: how far it is, and how it ended."""

    key: str
    order: BulkOrder
    user: str
    began_s: float
    state: Literal["running", "done", "stopped", "failed"] = "running"
    done: int = 0
    refused: Counter[str] = field(default_factory=Counter[str])
    examples: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    error: str | None = None
    ended_s: float | None = None
    runner: asyncio.Task[None] | None = None
    back: dict[Former, bytearray] | None = field(default_factory=dict[Former, bytearray])  # None: forgotten

    @property
    def undoable(self) -> int:
        """Jobs that can be taken back, of those that it has changed: all of them, or none."""
        return sum(len(ids) for ids in (self.back or {}).values()) // ID_BYTES

    def keep(self, changed: answers.ChangedAnswer) -> None:
        """Remember what it has changed: how many, what was refused, their ids, and of a change where they were."""
        self.done += len(changed.done)
        self.refused.update(code for _, code in changed.refused)
        left = max(0, _EXAMPLES - len(self.examples))
        self.examples += [(str(UUID(bytes=one)), code) for one, code in changed.refused[:left]]
        if self.back is None or self.order.parts:
            return
        for former, ids in former_of(self.order.action, changed).items():
            self.back.setdefault(former, bytearray()).extend(b"".join(ids))

    def forget(self) -> None:
        """It cannot be taken back any more: it has been, or others need the room."""
        self.back = None

    def start(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run *work*, which is this task's, in the background."""
        self.runner = asyncio.ensure_future(self._run(work))

    def stop(self) -> None:
        """Let it end; what it has done stays done."""
        if self.runner is not None and self.state == "running":
            self.runner.cancel()

    async def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
            self.state = "done"
        except asyncio.CancelledError:
            self.state = "stopped"
        except PulseError as error:
            self.state, self.error = "failed", error.message
        finally:
            self.ended_s = time.time()

    def undo(self) -> BulkOrder:
        """
        The order that takes back what this task has done.

        Raises:
            ConflictError: Nothing is known of it any more.
        """
        if self.state == "running" or not self.back:
            raise ConflictError("that cannot be undone any more")
        action = self.order.action
        words = f"undo of “{action.verb}: {self.order.where}”"
        more = {"matching": words[:MAX_MATCHING_CHARACTERS]}
        parts = [(bytes(ids), {**more, **as_body(former)}) for former, ids in self.back.items()]
        return BulkOrder(ACTIONS[action.reverse], words, parts=parts)


class BulkTasks:
    """The orders of this process; bounded."""

    def __init__(self, questions: Questions) -> None:
        self._questions = questions
        self._tasks: OrderedDict[str, BulkTask] = OrderedDict()

    @property
    def running(self) -> int:
        """How many are under way."""
        return sum(task.state == "running" for task in self._tasks.values())

    def find(self, key: str) -> BulkTask | None:
        """The task of this key."""
        return self._tasks.get(key)

    def all(self) -> list[BulkTask]:
        """Newest first."""
        return list(reversed(self._tasks.values()))

    def begin(self, order: BulkOrder, user: str) -> BulkTask:
        """
        Carry out *order* in the background.

        Raises:
            ConflictError: Too many are under way.
        """
        if self.running >= MOST_RUNNING:
            raise ConflictError(f"{self.running} such tasks are under way; wait for one of them, or stop it")
        task = BulkTask(secrets.token_urlsafe(8), order, user, began_s=time.time())
        self._tasks[task.key] = task
        while len(self._tasks) > MOST_KEPT:
            oldest = next(key for key, one in self._tasks.items() if one.state != "running")
            del self._tasks[oldest]
        task.start(functools.partial(self._carry_out, task))
        return task

    def undo(self, task: BulkTask, user: str) -> BulkTask:
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

    async def _carry_out(self, task: BulkTask) -> None:
        for packed, more in task.order.parts:
            await self._change(task, _unpacked(packed), more)
        if task.order.filters is not None:
            await self._walk(task, task.order.filters)

    async def _walk(self, task: BulkTask, filters: Mapping[str, object]) -> None:
        """Change what is found, page by page; it ends where all that are meant were met."""
        left = None if task.order.only is None else len(task.order.only)
        matches = task.order.matches
        async for page in job_pages(functools.partial(self._insist, task), filters, PAGE):
            found = [job.id for job in page.jobs if matches is None or matches(job)]
            if found:
                await self._change(task, [found], task.order.more)
            left = None if left is None else left - len(found)
            if left == 0:
                return

    async def _change(self, task: BulkTask, some: Iterable[Sequence[bytes]], more: Mapping[str, object]) -> None:
        def keep(changed: answers.ChangedAnswer) -> None:
            task.keep(changed)
            self._forget_some(task)

        await change_jobs(functools.partial(self._insist, task), task.order.action, some, more, keep)

    def _forget_some(self, newest: BulkTask) -> None:
        """Keep what undoes the newest, as far as there is room."""
        for task in (*(one for one in self._tasks.values() if one is not newest), newest):
            if sum(one.undoable for one in self._tasks.values()) <= MOST_UNDOABLE:
                return
            if task.back:
                task.forget()

    async def _insist(self, task: BulkTask, kind: str, body: Mapping[str, object]) -> dict[str, object]:
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


def _unpacked(packed: bytes) -> Iterator[list[bytes]]:
    """The ids that *packed* consists of, so many at a time."""
    for start in range(0, len(packed), PAGE * ID_BYTES):
        some = packed[start : start + PAGE * ID_BYTES]
        yield [some[at : at + ID_BYTES] for at in range(0, len(some), ID_BYTES)]
