"""One isolated attempt in the handler process: its cell, the messages from it, and its outcome."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol, cast
from uuid import UUID

import anyio

from pulse.app.outcome import DONE, RELEASED, Detail, Outcome
from pulse.app.tracing import Spans, with_parent
from pulse.app.workflows.receipt import Kept, Receipt
from pulse.system import processes
from pulse.system.failure_log import Log
from pulse.worker.execution import stacks
from pulse.worker.execution.attempt import HUNG, Attempt
from pulse.worker.execution.link import AttemptOwner
from pulse.worker.isolation.death import death
from pulse.worker.isolation.messages import (
    BadCellError,
    Begun,
    CellCheckpoint,
    CellEnded,
    CellFence,
    CellJob,
    CellProgress,
    CellReader,
    CellResult,
    CellSaved,
    CellStack,
    FromCell,
    Interrupt,
    Lease,
    frame,
    from_cell,
)

__all__ = ["CellRun", "CellRunOwner"]

BEGIN_S: Final = 30.0  # for a cell to call its handler: milliseconds, unless the machine or the zygote is stuck
GONE_S: Final = 1.0  # for a killed cell to end if its zygote can no longer report that
_RECEIVE_BYTES: Final = 256 * 1024


class CellRunOwner(AttemptOwner, Protocol):
    """The owner of a cell's run."""

    def begun(self, attempt: Attempt) -> None:
        """The handler is called now."""

    def ended_apart(self, attempt: Attempt, ending: Outcome, used: Mapping[str, object]) -> None:
        """The handler and its process have really ended."""


class CellRun:
    """
    One attempt in a cell; also the attempt's ``Task``.

    Args:
        owner: Its owner.
        grace_s: Longest time for the handler to end after it was stopped, seconds.
        zygote_is_stuck: Called when no cell is made for too long.
        tracing: Makes its span here, so that the span ends however the cell does; None: tracing is off.

    Raises:
        OSError: No descriptors are left.
    """

    def __init__(
        self,
        attempt: Attempt,
        owner: CellRunOwner,
        log: Log,
        grace_s: Callable[[str], float],
        zygote_is_stuck: Callable[[], None],
        tracing: Spans | None = None,
    ) -> None:
        self.attempt: Final = attempt
        self._owner = owner
        self._log = log
        self._job = str(UUID(bytes=attempt.job.id))
        self._grace_s = grace_s
        self._tracing = tracing
        self._span = None if tracing is None else tracing.detached(attempt.job)
        self._zygote_is_stuck = zygote_is_stuck
        self._channel, self._cells_end = socket.socketpair()
        self._channel.setblocking(False)
        self._stack_file: Final = stacks.StackFile()
        self._reader: CellReader[FromCell] = CellReader(from_cell)
        self._sending: Final = anyio.Lock()
        self._taking: Final = anyio.Lock()
        self._pid = 0
        self._pidfd: int | None = None
        self._made: Final = anyio.Event()
        self._began: Final = anyio.Event()
        self._asked: Final = anyio.Event()  # it must end
        self._told: Final = anyio.Event()  # its result has come
        self._silent: Final = anyio.Event()  # it has closed its end
        self._alone: Final = anyio.Event()  # no zygote will report how it ended
        self._over: Final = anyio.Event()
        self._result: CellResult | None = None
        self._failure: Outcome | None = None  # the outcome if the cell sends none
        self._ended: CellEnded | None = None
        self._where = ""
        self._threads: str | None = None
        self._oom: processes.OomKills | None = None
        self._told_lost = False
        self._broken = False

    # The task of the attempt.

    def cancel(self) -> None:
        """End the handler: it is asked, and killed if it does not end."""
        self._asked.set()

    def get_coro(self) -> object:
        """It has none here."""
        return None

    @property
    def pid(self) -> int | None:
        """Pid of the cell; None: it does not exist yet."""
        return self._pid or None

    async def where(self) -> str | None:
        """The stacks of all threads of the cell; None: it has not begun, or shows none."""
        if self._pidfd is None or not self._began.is_set() or self._over.is_set():
            return None  # before, the signal would kill it
        async with self._taking:
            return None if self._over.is_set() else await stacks.take(self._pid, self._pidfd, self._stack_file)

    # Reports of the zygote.

    @property
    def parts(self) -> list[int]:
        """The descriptors for the cell: its end of the channel, and its stack file."""
        return [self._cells_end.fileno(), self._stack_file.fd]

    def forked(self, pid: int, pidfd: int) -> None:
        """The cell exists; *pidfd* belongs to this object from now on."""
        self._pid, self._pidfd = pid, pidfd
        self._made.set()

    def refused(self, ending: Outcome) -> None:
        """There will be no cell."""
        self._failure = ending
        self._over.set()

    def ended(self, message: CellEnded) -> None:
        """The cell and all its processes have ended."""
        self._ended = message
        self._over.set()

    def orphaned(self, ending: Outcome) -> None:
        """The zygote and its cells have died. An attempt that had begun ends so; others are given back."""
        self._hear_out()  # if it killed the zygote at once, its message that it begins is still unread
        self._failure = ending if self._began.is_set() else RELEASED
        self._alone.set()

    def look_at_lease(self) -> None:
        """Tell the cell whether the lease is lost, if that has changed."""
        lost = self._owner.lease_lost(self.attempt)
        if lost != self._told_lost and self._began.is_set():
            self._told_lost = lost
            with contextlib.suppress(OSError):
                self._channel.send(frame(Lease(lost)))  # a few bytes; a cell that does not read misses nothing

    async def run(self, oom: processes.OomKills | None) -> None:
        """Run the cell to its end, and report that; it was requested from the zygote before."""
        self._oom = oom
        self._cells_end.close()
        async with anyio.create_task_group() as group:
            for work in (self._begin, self._listen, self._stop, self._see_off, self._outlive):
                group.start_soon(work)
            await self._over.wait()
            group.cancel_scope.cancel()
        self._hear_out()
        attempt = self.attempt
        ending = self._ending()  # reads the stack file
        attempt.stack = self._stack(ending) or None
        self._channel.close()
        self._stack_file.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
        if self._tracing is not None:
            self._tracing.end(self._span, ending)
        self._owner.ended_apart(attempt, ending, self._used())

    async def _begin(self) -> None:
        job = self.attempt.job
        job = job if self._span is None else with_parent(job, self._span)
        await self._send(frame(CellJob(job, self._owner.identity, self._owner.schema)))
        with anyio.move_on_after(BEGIN_S):
            await self._began.wait()
        if not self._began.is_set():
            self._log.warning("cell_stuck", job=self._job, pid=self._pid)
            self._failure = Outcome("error", f"its process had not begun after {BEGIN_S:g} s")
            if not self._made.is_set():
                self._zygote_is_stuck()
            await self._kill()

    async def _listen(self) -> None:
        while True:
            await anyio.wait_readable(self._channel)
            data = self._receive()
            if data:
                self._feed(data)
            elif data is not None:
                self._silent.set()
                return

    def _receive(self) -> bytes | None:
        """What has arrived; None: nothing now; b"": the stream has ended."""
        try:
            return self._channel.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def _feed(self, data: bytes) -> None:
        if self._broken:
            return  # read all the same: a cell that waits to write cannot end
        try:
            for message in self._reader.feed(data):
                self._hear(message)
        except BadCellError as error:
            self._broken = True
            self._log.warning("cell_not_understood", job=self._job, pid=self._pid, cause=str(error))

    def _hear(self, message: FromCell) -> None:
        attempt = self.attempt
        match message:
            case Begun() if not self._began.is_set():
                self._oom = None if self._oom is None else self._oom.again()
                self._began.set()
                self._owner.begun(attempt)
            case CellProgress():
                self._owner.progressed(attempt, message.text)
            case CellCheckpoint():
                self._owner.checkpointed(attempt, message.text, self._receipt(message.number))
            case CellFence():
                attempt.fenced_apart(message.phase)
            case CellStack():
                self._where = message.text
            case CellResult():
                self._result = message
                self._told.set()
            case _:
                pass

    def _receipt(self, number: int | None) -> Receipt | None:
        """Tells the cell what became of its checkpoint *number*."""
        if number is None:
            return None

        def tell(kept: Kept) -> None:
            with contextlib.suppress(OSError):  # it has ended; else a few bytes, which it waits for
                self._channel.send(frame(CellSaved(number, kept)))

        receipt = Receipt()
        receipt.on_settled(tell)
        return receipt

    def _hear_out(self) -> None:
        """Read what is left in the socket. Its end may never come, if a child of the cell holds it open."""
        while data := self._receive():
            self._feed(data)

    async def _see_off(self) -> None:
        """After its result the cell has nothing more to do."""
        await self._told.wait()
        await anyio.sleep(GONE_S)
        await self._kill()

    async def _outlive(self) -> None:
        await self._alone.wait()
        with anyio.move_on_after(GONE_S):
            if self._pidfd is None:
                await self._silent.wait()
            else:
                await self._kill()
                await anyio.wait_readable(self._pidfd)
        self._over.set()

    async def _stop(self) -> None:
        await self._asked.wait()
        reason = self.attempt.stopped or "canceled"
        grace_s = self._grace_s(reason)
        kill_s = time.monotonic() + grace_s
        if reason in HUNG and self._pidfd is not None and self._began.is_set():  # before, the signal would kill it
            async with self._taking:
                self._threads = await stacks.take(self._pid, self._pidfd, self._stack_file)
        await self._send(frame(Interrupt(reason)))
        await anyio.sleep(max(0.0, kill_s - time.monotonic()))
        self._log.warning("cell_killed", job=self._job, pid=self._pid, why=reason, after_s=grace_s)
        await self._kill()

    async def _kill(self) -> None:
        """Kill it, as soon as it exists."""
        await self._made.wait()
        if self._pidfd is not None:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def _send(self, data: bytes) -> None:
        async with self._sending:
            left = memoryview(data)
            while left:
                try:
                    left = left[self._channel.send(left) :]
                except BlockingIOError:
                    await anyio.wait_writable(self._channel)
                except OSError:
                    return  # it has ended: the zygote reports how

    # How it ended.

    def _ending(self) -> Outcome:
        if self.attempt.is_completed:
            return DONE  # however its process has ended
        if self._result is not None:
            return Outcome(self._result.outcome, cast("Detail", self._result.detail))
        if self.attempt.stopped is not None:
            return self.attempt.interrupted()
        if self._failure is not None:
            return self._failure
        return (
            RELEASED
            if self._ended is None
            else death(self._ended, self.attempt.handler, self._oom, has_meddled=self._broken)
        )

    def _stack(self, ending: Outcome) -> str:
        """The stack where it hung, or the one that it wrote itself when it died of a fault or a limit."""
        if self.attempt.stopped in HUNG:
            return stacks.join(self._where, self._threads)
        is_over = self._result is not None or ending.outcome not in {"crash", "error"}
        return "" if is_over else stacks.join(self._stack_file.read())

    def _used(self) -> Mapping[str, object]:
        ended = self._ended
        return {} if ended is None else {"cpu_s": ended.cpu_s, "peak_rss_bytes": ended.peak_rss_bytes}
