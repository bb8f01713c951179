"""One handler process, as its pool parent sees it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import Final

import anyio
import msgspec

from pulse.system import process_tree
from pulse.worker.execution import stacks
from pulse.worker.execution.stacks import StackFile
from pulse.worker.options import HostOptions, PoolOptions, worker_name
from pulse.worker.status_pipe import Kind, Note, NoteReader

__all__ = ["Child"]

_NOTES_BYTES: Final = 64 * 1024


class Child:
    """
    A process that loads the app, and serves it from ``begin`` on. It leads a session of its own.

    Its name comes over a pipe of its own rather than over stdin, which an app may read during import.

    Attributes:
        slot: Its slot in the pool; -1 before ``begin``.
        ended: Set when the process has ended, by ``watch``.
        worked: Whether it was connected to the server.
        drained: Whether the server asked it to end for good.
        replaced: Whether the server asked it to end so that another one follows.
        refused: Why it cannot work.
        fault: The stack at which it died of a fault; known once it is reaped.

    Raises:
        OSError: It cannot be started; nothing of it is left.
    """

    def __init__(self, options: PoolOptions) -> None:
        self._mark: Final = process_tree.new_mark()
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as theirs:
            self.notes_fd, notes = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            undo.callback(os.close, self.notes_fd)
            theirs.callback(os.close, notes)
            name, self._name_fd = os.pipe2(os.O_CLOEXEC)
            undo.callback(os.close, self._name_fd)
            theirs.callback(os.close, name)
            self._stack_file: Final = StackFile()
            undo.callback(self._stack_file.close)
            host = HostOptions(
                pool=options, parent_pid=os.getpid(), name_fd=name, notes_fd=notes, stack_fd=self._stack_file.fd
            )
            self._process: Final = subprocess.Popen(
                [sys.executable, "-m", "pulse.worker.handler_process", msgspec.json.encode(host).decode()],
                stdin=subprocess.DEVNULL,
                pass_fds=(name, notes, self._stack_file.fd),
                start_new_session=True,
                env={**os.environ, process_tree.MARK: self._mark},
            )
            undo.callback(self._process.wait)
            undo.callback(self._process.kill)
            self.pidfd: Final = os.pidfd_open(self._process.pid)
            undo.pop_all()
        self.pid: Final = self._process.pid
        self.slot = -1
        self.ended: Final = anyio.Event()
        self.worked = False
        self.drained = False
        self.replaced = False
        self.refused: str | None = None
        self.fault: str | None = None
        self._notes: Final = NoteReader()
        self._taking: Final = anyio.Lock()
        self._is_reaped = False

    def begin(self, slot: int) -> None:
        """Let it serve as this slot; without effect if it has died meanwhile."""
        self.slot = slot
        with contextlib.suppress(OSError):
            os.write(self._name_fd, f"{worker_name(slot)}\n".encode("ascii"))
        self._close_name()

    async def watch(self) -> None:
        """Wait for its end; call it once."""
        await anyio.wait_readable(self.pidfd)
        self.ended.set()

    def has_ended(self) -> bool:
        """Whether it has ended, even if ``watch`` has not noticed; before ``reap``."""
        return os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def notes_lost(self) -> bool:
        """Whether something malformed came over the pipe: a handler has written there."""
        return self._notes.is_lost()

    def hear(self, note: Note) -> None:
        """It says why it is about to end."""
        match note.kind:
            case Kind.DRAINED:
                self.drained = True
            case Kind.REPLACED:
                self.replaced = True
            case Kind.REFUSED:
                self.refused = note.text.decode("utf-8", "replace")
            case _:
                pass

    def read_notes(self) -> tuple[list[Note], bool]:
        """The notes since the last time, and whether there may be more valid ones."""
        if self._notes.is_lost():
            return [], False
        try:
            data = os.read(self.notes_fd, _NOTES_BYTES)
        except BlockingIOError:
            return [], True
        notes = self._notes.feed(data)
        return notes, bool(data) and not self._notes.is_lost()

    async def take_stack(self) -> str | None:
        """Its stacks; None: it has died, or is stopped."""
        async with self._taking:
            return None if self._is_reaped else await stacks.take(self.pid, self.pidfd, self._stack_file)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this process, never to another one with the same pid."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def kill_all(self) -> None:
        """Kill the process and all its leftovers; before ``reap``, while the pid is still its own."""
        self.signal(signal.SIGKILL)
        with contextlib.suppress(OSError):  # no descriptor is left to look for them
            process_tree.kill_tree(self._mark, leader=self.pid)

    def reap(self) -> int:
        """The exit code of the process, which has ended; negative: killed by that signal."""
        code = self._process.wait()
        self._is_reaped = True
        self.fault = self._stack_file.read_fault()
        os.close(self.pidfd)
        os.close(self.notes_fd)
        self._close_name()
        self._stack_file.close()
        return code

    def _close_name(self) -> None:
        if self._name_fd >= 0:
            os.close(self._name_fd)
            self._name_fd = -1
