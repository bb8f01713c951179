"""Whether the server has what a handler wants to keep: one thread says it, another one waits for it."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Generator
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from pulse.errors import HandlerError, StaleAttemptError

__all__ = ["Kept", "Receipt", "Sent", "in_loop", "plain"]

_PLAIN: Final = ContextVar("pulse_plain", default=False)
Kept: TypeAlias = Literal["kept", "lost", "refused"]


class Receipt:
    """
    The answer to one checkpoint: settled once, in any thread.

    Args:
        listen: Receives the answer, where nobody else does: returns when it is settled.
    """

    def __init__(self, listen: Callable[[Receipt], None] | None = None) -> None:
        self._listen = listen
        self._came = threading.Event()
        self._kept: Kept = "kept"
        self._hear: Callable[[Kept], object] | None = None

    @property
    def is_settled(self) -> bool:
        """Whether the answer has come."""
        return self._came.is_set()

    def settle(self, kept: Kept = "kept") -> None:
        """The answer has come."""
        self._kept = kept
        self._came.set()
        hear = self._hear
        if hear is not None:
            with contextlib.suppress(RuntimeError):  # the loop that waited is closed
                hear(kept)

    def on_settled(self, hear: Callable[[Kept], object]) -> None:
        """Call *hear* when it is settled, in the thread that settles it."""
        self._hear = hear

    def wait(self) -> None:
        """
        Block until the server has it.

        Raises:
            StaleAttemptError: The attempt no longer holds its job.
            HandlerError: The server does not take it.
        """
        if self._listen is not None:
            self._listen(self)
        self._came.wait()
        self._check()

    async def arrive(self) -> None:
        """As ``wait``, for async code."""
        import anyio
        from anyio.to_thread import run_sync

        if self._listen is not None:
            await run_sync(self.wait, abandon_on_cancel=True)
            return
        event = anyio.Event()
        call_in_loop = _caller()
        self._hear = lambda _: call_in_loop(event.set)
        if not self._came.is_set():  # asked after the line above: so it is noticed whenever it comes
            await event.wait()
        self._check()

    def _check(self) -> None:
        if self._kept == "lost":
            raise StaleAttemptError("this attempt no longer holds its job: what it has done is not remembered")
        if self._kept == "refused":
            raise HandlerError("the server cannot store the result of this step")


class Sent:
    """
    Done already; may be awaited or not, so that one method serves ``async def`` and plain ``def``.

    Awaiting it lets other tasks run and lets a cancellation come through: a handler that reports its progress can be
    stopped there.
    """

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, None]:
        from anyio.lowlevel import checkpoint

        return checkpoint().__await__()


def in_loop() -> bool:
    """Whether what is called here is async: to block would stop an event loop."""
    if _PLAIN.get():
        return False
    asyncio: Any = sys.modules.get("asyncio")  # not imported here: commands that need no loop start sooner
    if asyncio is not None:
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop()
            return True
    sniffio: Any = sys.modules.get("sniffio")  # trio tells it where it runs
    return sniffio is not None and sniffio.thread_local.name is not None


@contextlib.contextmanager
def plain() -> Generator[None]:
    """A plain handler is called here, whatever loop runs in this thread."""
    token = _PLAIN.set(True)
    try:
        yield
    finally:
        _PLAIN.reset(token)


def _caller() -> Callable[[Callable[[], object]], Any]:
    """Calls functions in the loop that runs here, from any thread."""
    import asyncio

    try:
        return asyncio.get_running_loop().call_soon_threadsafe
    except RuntimeError:
        trio: Any = sys.modules["trio"]  # it runs here, and so is imported
        return partial(trio.lowlevel.current_trio_token().run_sync_soon)
