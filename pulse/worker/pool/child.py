"""One handler process, as its pool parent sees it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from dataclasses import dataclass
from typing import Final, NamedTuple

import anyio

from pulse.system import process_tree, processes
from pulse.worker.execution import stacks
from pulse.worker.execution.stacks import StackFile
from pulse.worker.options import HostOptions, PoolOptions, sent, worker_name
from pulse.worker.status_pipe import Kind, Note, NoteReader

__all__ = ["MESSAGE_MAX_BYTES", "Child", "ProcessFds", "ProcessPipes", "new_pipes", "start"]

MESSAGE_MAX_BYTES: Final = 4 * 1024  # to and from the template
_NOTES_BYTES: Final = 64 * 1024


class ProcessFds(NamedTuple):
    """Descriptors for a handler process: of its name, its notes and its stacks."""

    name_fd: int
    notes_fd: int
    stack_fd: int


@dataclass(frozen=True, slots=True)
class ProcessPipes:
    """
    The ends of what connects a handler process with its parent.

    Its name comes over a pipe of its own rather than over stdin, which an app may read during import.
    """

    mark: str
    name_fd: int
    notes_fd: int
    stack_file: StackFile
    theirs: ProcessFds


@contextlib.contextmanager
def new_pipes() -> Generator[ProcessPipes]:
    """For a process that is started meanwhile: then its own ends are closed; if it is not, all."""
    with contextlib.ExitStack() as undo, contextlib.ExitStack() as theirs:
        notes_fd, notes = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        undo.callback(os.close, notes_fd)
        theirs.callback(os.close, notes)
        name, name_fd = os.pipe2(os.O_CLOEXEC)
        undo.callback(os.close, name_fd)
        theirs.callback(os.close, name)
        stack_file = StackFile()
        undo.callback(stack_file.close)
        yield ProcessPipes(
            mark=process_tree.new_mark(),
            name_fd=name_fd,
            notes_fd=notes_fd,
            stack_file=stack_file,
            theirs=ProcessFds(name, notes, stack_file.fd),
        )
        undo.pop_all()


def start(options: PoolOptions, control_fd: int | None = None) -> Child:
    """
    Start a process that loads the app by itself.

    Args:
        options: Options of the pool.
        control_fd: The end of the template's socket, if it is to be one.

    Raises:
        OSError: It cannot be started; nothing of it is left.
    """
    with new_pipes() as pipes, contextlib.ExitStack() as undo:
        told = HostOptions(
            pool=options,
            parent_pid=os.getpid(),
            control_fd=control_fd,
            directory=os.getcwd(),  # noqa: PTH109 - a text
            **pipes.theirs._asdict(),
        )
        with sent(told) as told_fd:
            process = subprocess.Popen(
                [sys.executable, "-m", "pulse.worker.handler_process", str(told_fd)],
                stdin=subprocess.DEVNULL,
                pass_fds=(*pipes.theirs, told_fd, *(() if control_fd is None else (control_fd,))),
                start_new_session=True,
                env={**os.environ, process_tree.MARK: pipes.mark},
            )
        undo.callback(process.wait)
        undo.callback(process.kill)
        child = Child(pipes, process.pid, os.pidfd_open(process.pid), process=process)
        undo.pop_all()
    return child


class Child:
    """
    A process that serves the app from ``begin`` on. It leads a session of its own.

    Args:
        pipes: What connects it with this process; closed by ``reap``.
        pid: Its pid.
        pidfd: Its pidfd; closed by ``reap``.
        process: The same process, if subprocess has started it.

    Attributes:
        forked: Whether it was forked from the template.
        slot: Its slot in the pool; -1 before ``begin``.
        ended: Set when the process has ended, by ``watch``.
        worked: Whether it was connected to the server.
        drained: Whether the server asked it to end for good.
        replaced: Whether the server asked it to end so that another one follows.
        refused: Why it cannot work.
        fault: The stack at which it died of a fault; known once it is reaped.
        reaped: Whether it is: its pid may be another's.
    """

    def __init__(
        self, pipes: ProcessPipes, pid: int, pidfd: int, process: subprocess.Popen[bytes] | None = None
    ) -> None:
        self.pid: Final = pid
        self.pidfd: Final = pidfd
        self.notes_fd: Final = pipes.notes_fd
        self._process: Final = process
        self.forked: Final = process is None
        self._mark: Final = pipes.mark
        self._name_fd = pipes.name_fd
        self._stack_file: Final = pipes.stack_file
        self.slot = -1
        self.ended: Final = anyio.Event()
        self.worked = False
        self.drained = False
        self.replaced = False
        self.refused: str | None = None
        self.fault: str | None = None
        self.reaped = False
        self._notes: Final = NoteReader()
        self._taking: Final = anyio.Lock()

    def begin(self, slot: int) -> None:
        """Let it serve as this slot; without effect if it has died meanwhile."""
        self.slot = slot
        with contextlib.suppress(OSError):
            os.write(self._name_fd, f"{worker_name(slot)}\n".encode("ascii"))
        self._close_name()

    async def wait_ended(self) -> None:
        """Wait for its end, which ``watch`` notices."""
        await self.ended.wait()

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
            return None if self.reaped else await stacks.take(self.pid, self.pidfd, self._stack_file)

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
        code = processes.reap(self.pidfd) if self._process is None else self._process.wait()
        self.reaped = True
        self.fault = self._stack_file.read_fault()
        os.close(self.pidfd)
        os.close(self.notes_fd)
        self._close_name()
        self._stack_file.close()
        return code

    def bury(self) -> tuple[int, dict[str, object]]:
        """Reap it, which has never served, with its leftovers; its exit code, and what there is to say."""
        notes, _ = self.read_notes()
        self.kill_all()
        code = self.reap()
        facts: dict[str, object] = {"pid": self.pid}
        facts |= {"signal": signal.Signals(-code).name} if code < 0 else {"exit_code": code}
        for note in notes:
            if note.kind is Kind.REFUSED:
                facts["cause"] = note.text.decode("utf-8", "replace").rpartition("\n")[2]
        return code, facts

    def _close_name(self) -> None:
        if self._name_fd >= 0:
            os.close(self._name_fd)
            self._name_fd = -1
