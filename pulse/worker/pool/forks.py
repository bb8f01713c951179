"""
Handler processes that are forked from a template, which has loaded the app: they are there in milliseconds.

The first process of a pool is the template. If the app has started or opened what a fork cannot bear, that process
becomes a handler process itself, and all others are started by themselves, as they are with ``--no-preload``.

A template that dies costs no job. It is started again; if it fails then, only with the next process that is needed.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from collections.abc import Callable
from typing import Final

import anyio
import msgspec
from anyio.abc import TaskGroup

from pulse.common.waiting import WakeupEvent
from pulse.system import processes
from pulse.system.failure_log import Log
from pulse.system.fork import receive
from pulse.system.restart_policy import Intensity, RestartLog
from pulse.worker.options import PoolOptions
from pulse.worker.pool.child import MESSAGE_MAX_BYTES, Child, ProcessPipes, new_pipes, start
from pulse.worker.pool.restart import RESTART_DELAY

__all__ = ["Forks"]

FORK_S: Final = 5.0  # a fork takes milliseconds; a template that needs longer is stopped, or hangs
TRIES: Final = 2  # templates for one process; then it is started by itself


class TemplateProcess:
    """
    The template, as the pool sees it.

    Attributes:
        child: Its process.
        settled: Set when it is known whether it forks; by ``settle``.
        forks: Whether it does.
    """

    def __init__(self, options: PoolOptions) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self.child: Final = start(options, theirs.fileno())
            except OSError:
                self._control.close()
                raise
        self._control.setblocking(False)
        self.settled: Final = anyio.Event()
        self.forks = False

    async def settle(self) -> list[str]:
        """Wait until it has loaded the app; returns what is against forking."""
        told, _ = await self._receive()
        try:
            found = msgspec.json.decode(told, type=list[str])
            self.forks = not found
        except msgspec.MsgspecError:  # nothing: it has died; or the app wrote there
            found = []
        return found

    async def fork(self, pipes: ProcessPipes) -> tuple[int, int]:
        """
        Fork a process, which gets its ends; for one caller at a time.

        Returns:
            Its pid and a pidfd.

        Raises:
            OSError: It cannot be forked.
            EOFError: The template has died, or hangs.
        """
        try:
            socket.send_fds(self._control, [pipes.mark.encode("ascii")], pipes.theirs)
        except OSError:
            raise EOFError from None
        with anyio.move_on_after(FORK_S):
            told, fds = await self._receive()
            if fds:
                return int(told), fds[0]
            if told:
                raise OSError(told.decode("utf-8", "replace"))
        raise EOFError

    def kill(self) -> None:
        """Kill it, with all that the app has started there."""
        self.child.kill_all()

    def close(self) -> None:
        """Close the socket; it ends by that, if it still forks."""
        self._control.close()

    async def _receive(self) -> tuple[bytes, list[int]]:
        """Its next message; empty: it has died."""
        received: tuple[bytes, list[int]] = b"", []

        async def end(group: TaskGroup) -> None:
            await self.child.wait_ended()
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(end, group)
            await anyio.wait_readable(self._control)
            with contextlib.suppress(OSError):
                received = receive(self._control, MESSAGE_MAX_BYTES, 1)
            group.cancel_scope.cancel()
        return received


class Forks:
    """
    Makes handler processes from a template, as far as the app allows it.

    Args:
        options: Options of the pool.
        group: Outlives every process.
        own: Called with each new process at once, to watch it.

    Attributes:
        are_off: Whether no process is forked.
        forking: Held while a process is forked, and is not known yet.
    """

    def __init__(self, options: PoolOptions, group: TaskGroup, log: Log, own: Callable[[Child], Child]) -> None:
        self._options: Final = options
        self._group: Final = group
        self._log: Final = log
        self._own: Final = own
        self.are_off = not (options.preload and processes.adopt_orphans())
        self.forking: Final = anyio.Lock()
        self._template: TemplateProcess | None = None
        self._tended = 0  # templates that are not reaped, or were not given away
        self._gone: Final = WakeupEvent()
        self._starts = RestartLog()
        self._waiters = 0
        self._given: Child | None = None  # a template that does not fork, for one who waits
        self._dismissed = False

    async def take(self) -> Child | None:
        """
        A process that was forked; or the template, if that could not load the app or is to be none.

        Returns:
            None: the process has to be started by itself.

        Raises:
            OSError: It cannot be started at all.
        """
        for _ in range(TRIES):
            if self.are_off or self._dismissed:
                break
            template = self._template or self._start()
            self._waiters += 1
            await template.settled.wait()
            self._waiters -= 1
            if template.forks:
                child = await self._fork(template)
            else:
                child, self._given = self._given, None
            if child is not None:
                return child
        return None

    def turn_off(self, found: list[str]) -> None:
        """Fork no more, because of what was *found*."""
        if not self.are_off:
            self.are_off = True
            self._log.info("fork_unsafe", found=found)
            if self._template is not None and self._template.forks:
                self._template.kill()

    def dismiss(self) -> None:
        """Kill the template, and start none from now on."""
        self._dismissed = True
        if self._template is not None:
            self._template.kill()

    async def wait_dismissed(self) -> None:
        """Wait until it is reaped."""
        while self._tended:
            await self._gone.wait()

    def _start(self) -> TemplateProcess:
        template = self._template = TemplateProcess(self._options)
        self._starts = self._starts.record(time.monotonic(), Intensity())
        self._own(template.child)
        self._tended += 1
        self._group.start_soon(self._tend, template)
        return template

    async def _tend(self, template: TemplateProcess) -> None:
        """From its start until it is reaped or given away."""
        found = await template.settle()
        if found:
            self.turn_off(found)
        if not template.forks and self._waiters and not self._dismissed:
            self._given = template.child
            self._forget(template)
        else:
            template.settled.set()
            if not template.forks:
                template.kill()
            await template.child.wait_ended()
            _, facts = template.child.bury()
            self._forget(template)
            if not self.are_off and not self._dismissed:
                self._log.warning("template_died", **facts)
                if template.forks:
                    await self._start_again()

    def _forget(self, template: TemplateProcess) -> None:
        template.close()
        template.settled.set()
        if self._template is template:
            self._template = None
        self._tended -= 1
        self._gone.wake()

    async def _start_again(self) -> None:
        await anyio.sleep(RESTART_DELAY.after(self._starts.earlier))
        if self._template is None and not self._dismissed:
            try:
                self._start()
            except OSError as error:  # no memory or processes at this moment
                self._log.warning("template_died", cause=f"cannot be started: {error}")

    async def _fork(self, template: TemplateProcess) -> Child | None:
        """None: the template has died, or hangs, and is killed."""
        try:
            async with self.forking:
                with new_pipes() as pipes:
                    pid, pidfd = await template.fork(pipes)
                    return self._own(Child(pipes, pid, pidfd))
        except EOFError:
            if not template.child.ended.is_set():
                template.child.signal(signal.SIGKILL)
            if self._template is template:
                self._template = None
            return None
