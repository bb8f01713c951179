"""The jobs that the job of a handler has waited for: `ctx.parents()`, read from the server page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from typing import Any, Final, TypeAlias

from pulse.app.workflows.receipt import in_loop
from pulse.errors import HandlerError
from pulse.job import Job

__all__ = ["ParentPage", "Parents"]

ParentPage: TypeAlias = "tuple[Sequence[Job], str | None]"  # some of them, and the cursor of the next page


class Parents:
    """
    The jobs that a job has waited for, each a ``pulse.Job`` with its status and result, in the order of their ids.

    ``await`` it for a list, or go through it with ``async for``: then only a page of them is in memory. In a plain
    ``def`` it is an iterable. Each way reads them anew.

    Args:
        read: Reads the page behind a cursor from the server; blocks.
    """

    def __init__(self, read: Callable[[str | None], ParentPage]) -> None:
        self._read: Final = read

    def __await__(self) -> Generator[Any, Any, list[Job]]:
        return self._all().__await__()

    async def _all(self) -> list[Job]:
        return [job async for job in self]

    def __aiter__(self) -> AsyncIterator[Job]:
        return _Pages(self._read)

    def __iter__(self) -> Iterator[Job]:
        if in_loop():
            raise HandlerError("ctx.parents() is read in an event loop: write `await ctx.parents()`, or `async for`")
        after: str | None = None
        while True:
            jobs, after = self._read(after)
            yield from jobs
            if after is None:
                return


class _Pages(AsyncIterator[Job]):
    """Goes through the pages; no generator, which would have to be closed if its loop is left early."""

    def __init__(self, read: Callable[[str | None], ParentPage]) -> None:
        self._read = read
        self._page: Iterator[Job] = iter(())
        self._after: str | None = None
        self._is_last = False

    async def __anext__(self) -> Job:
        from anyio.to_thread import run_sync

        while True:
            job = next(self._page, None)
            if job is not None:
                return job
            if self._is_last:
                raise StopAsyncIteration
            jobs, self._after = await run_sync(self._read, self._after, abandon_on_cancel=True)
            self._page, self._is_last = iter(jobs), self._after is None
