"""
Forks actors from their template, a process that has imported what they need: they are there in milliseconds.

A new interpreter takes half a second of a core for the same, and most memory of a forked one is shared. A template that
dies or hangs costs only time: the next actor has another one made, and is started by itself if that dies, too.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import trio

from pulse.system.fork import receive
from pulse_supervisor.children.process import ChildProcess, spawn, start
from pulse_supervisor.children.spec import DESCRIPTORS, ChildSpec, Placeholder

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

FIRST_S: Final = 10.0  # until its first answer: start and imports, on a busy machine
FORK_S: Final = 3.0  # a fork takes milliseconds; a template that needs longer is stopped, or hangs
REST_S: Final = 60.0  # without templates, once two in a row were of no use
_TRIES: Final = 2
_NAME: Final = "template"
_ANSWER_MAX_BYTES: Final = 64


class NoAnswerError(Exception):
    """The template has died, or hangs."""


class TemplateLink:
    """One process."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            options = (Placeholder.BUS_FD.value, str(theirs.fileno()), Placeholder.PARENT_PID.value, str(os.getpid()))
            try:
                words = (sys.executable, "-P", "-m", "pulse_actors", _NAME, *options)
                self._process = start(words, [theirs.fileno()], {}, None)
            except OSError:
                self._control.close()
                raise
        self._control.setblocking(False)
        self._limit_s = FIRST_S

    async def fork(self, name: str, fds: Mapping[str, int]) -> tuple[int, int]:
        """
        Fork an actor; for one caller at a time.

        Returns:
            Its pid and a pidfd.

        Raises:
            OSError: It cannot be forked.
            NoAnswerError: There will be no answer.
        """
        try:
            socket.send_fds(self._control, [" ".join([name, *fds]).encode("ascii")], [*fds.values()])
            with trio.fail_after(self._limit_s):
                await trio.lowlevel.wait_readable(self._control)
            told, found = receive(self._control, _ANSWER_MAX_BYTES, 1)
        except (ConnectionError, trio.TooSlowError) as error:
            raise NoAnswerError(repr(error)) from error
        if not told:
            raise NoAnswerError("it has ended")
        self._limit_s = FORK_S
        number = int(told)
        if number < 0:
            raise OSError(-number, os.strerror(-number))
        if not found:  # this process has no room for a descriptor
            os.kill(number, signal.SIGKILL)  # nobody reaps meanwhile, so the number is still its own
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return number, found[0]

    def kill(self) -> None:
        """Kill it: a fork that waits for its answer ends with NoAnswerError."""
        self._process.send_signal(signal.SIGKILL)

    async def end(self) -> None:
        """Kill it, and wait for its end."""
        self._control.close()
        await self._process.end()


class ActorTemplate:
    """The present template of a supervisor; made when the first actor is."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log
        self._template: TemplateLink | None = None
        self._forking = trio.Lock()
        self._rests_until_s = float("-inf")
        self._has_ended = False

    async def spawn(self, child: ChildSpec, shared: Mapping[Placeholder, int]) -> ChildProcess:
        """
        The same as ``process.spawn``, for an actor.

        Nothing may reap orphans meanwhile: until this returns, the new process would be taken for one.
        """
        async with self._forking:
            if trio.current_time() >= self._rests_until_s:
                for _ in range(_TRIES):
                    if self._has_ended:
                        raise OSError(errno.ECANCELED, "no actor is started any more")
                    try:
                        return await self._fork(child, shared)
                    except NoAnswerError as error:
                        self._log.warning("actor_template_died", name=child.name, reason=str(error))
                        await self._end()
                self._rests_until_s = trio.current_time() + REST_S
        return spawn(child, shared)

    async def end(self) -> None:
        """End the template, if there is one, and make no other; who waits for an actor gets none."""
        self._has_ended = True
        if self._template is not None:
            self._template.kill()
        async with self._forking:
            await self._end()

    async def _fork(self, child: ChildSpec, shared: Mapping[Placeholder, int]) -> ChildProcess:
        if self._template is None:
            self._template = TemplateLink()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                values = {**shared, Placeholder.BUS_FD: theirs.fileno()}
                fds = {slot.value: values[slot] for slot in DESCRIPTORS if slot in child.argv}
                pid, pidfd = await self._template.fork(child.name, fds)
            except BaseException:
                ours.close()
                raise
        return ChildProcess(pid, pidfd, ours)

    async def _end(self) -> None:
        if self._template is not None:
            template, self._template = self._template, None
            await template.end()
