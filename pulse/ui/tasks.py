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

from pulse.cli import views
from pulse.errors import ConflictError, PulseError
from pulse.ui.orders import Order
from pulse.ui.questions import Questions

__all__ = ["Task", "Tasks"]

PAGE: Final = 500  # jobs per step: one short statement
STEP_S: Final = 15.0
MOST_RUNNING: Final = 4
MOST_KEPT: Final = 50
MOST_FAILURES: Final = 5  # in a row, before a task gives up
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
    seen: int = 0
    done: int = 0
    refused: Counter[str] = field(default_factory=Counter[str])
    examples: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    error: str | None = None
    ended_s: float | None = None
    runner: asyncio.Task[None] | None = None


class Tasks:
    """The orders of this process; bounded."""

    def __init__(self, questions: Questions) -> None:
        self._questions = questions
        self._tasks: OrderedDict[str, Task] = OrderedDict()

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
        running = sum(task.state == "running" for task in self._tasks.values())
        if running >= MOST_RUNNING:
            raise ConflictError(f"{running} such tasks are under way; wait for one of them, or stop it")
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

    async def aclose(self) -> None:
        """Stop all."""
        runners = [task.runner for task in self._tasks.values() if task.runner is not None and not task.runner.done()]
        for runner in runners:
            runner.cancel()
        await asyncio.gather(*runners, return_exceptions=True)

    async def _run(self, task: Task) -> None:
        try:
            if task.order.filters is None:
                for start in range(0, len(task.order.ids), PAGE):
                    await self._apply(task, task.order.ids[start : start + PAGE])
            else:
                await self._walk(task, task.order.filters)
            task.state = "done"
        except asyncio.CancelledError:
            task.state = "stopped"
        except PulseError as error:
            task.state, task.error = "failed", error.message
        finally:
            task.ended_s = time.time()

    async def _walk(self, task: Task, filters: Mapping[str, object]) -> None:
        """Page by page, from the newest on; what is submitted meanwhile is not met."""
        after: str | None = None
        while True:
            body = {**filters, "limit": PAGE, **({} if after is None else {"after": after})}
            page = views.read(views.JobPage, await self._insist("jobs.list", body))
            matches, now_s = task.order.matches, time.time()
            found = [job.id for job in page.jobs if matches is None or matches(job, now_s)]
            if found:
                await self._apply(task, found)
            after = page.next
            if after is None:
                return

    async def _apply(self, task: Task, ids: Sequence[bytes]) -> None:
        body = {"ids": list(ids), **task.order.more}
        changed = views.read(views.Changed, await self._insist(task.order.kind, body))
        task.seen += len(ids)
        task.done += len(changed.done)
        task.refused.update(code for _, code in changed.refused)
        room = max(0, _EXAMPLES - len(task.examples))
        task.examples += [(str(UUID(bytes=one)), code) for one, code in changed.refused[:room]]

    async def _insist(self, kind: str, body: Mapping[str, object]) -> dict[str, object]:
        """Ask again while the server is away for a moment: doing it twice refuses what is done already."""
        for failures in range(MOST_FAILURES):
            try:
                if kind == "jobs.list":
                    return await self._questions.ask_fresh(kind, body, within_s=STEP_S)
                return await self._questions.change(kind, body, within_s=STEP_S)
            except PulseError as error:
                if error.code not in {"internal", "unavailable"} or failures == MOST_FAILURES - 1:
                    raise
            await asyncio.sleep(RETRY_S * 2**failures)
        raise AssertionError
