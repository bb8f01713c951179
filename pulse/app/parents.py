"""The jobs that the job of a handler has waited for: `ctx.parents()`, read from the server page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

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

    async def __aiter__(self) -> AsyncIterator[Job]:
        from anyio.to_thread import run_sync

        after: str | None = None
        while True:
            jobs, after = await run_sync(partial(self._read, after), abandon_on_cancel=True)
            for job in jobs:
                yield job
            if after is None:
                return

    def __iter__(self) -> Iterator[Job]:
        if _is_in_loop():
            raise HandlerError("ctx.parents() is read in an event loop: write `await ctx.parents()`, or `async for`")
        after: str | None = None
        while True:
            jobs, after = self._read(after)
            yield from jobs
            if after is None:
                return


def _is_in_loop() -> bool:
    """Whether to block here would stop an event loop."""
    import anyio

    try:
        anyio.get_cancelled_exc_class()
    except RuntimeError:
        return False
    return True
