"""Templates that die at once, and what the real one answers."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import msgspec
import psutil
import pytest
import structlog
import trio
from structlog.testing import capture_logs

from pulse_supervisor.children import template
from pulse_supervisor.children.process import ChildProcess, start
from pulse_supervisor.children.spec import actor
from pulse_supervisor.children.template import ActorTemplate, TemplateLink
from tests.support.waiting import until_async

pytestmark = pytest.mark.process


@pytest.mark.parametrize("program", ["", "socket.socket(fileno=int(sys.argv[1])).recv(99)"], ids=["at once", "ordered"])
def test_one_that_dies_costs_no_actor(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, or when it has read an order; after two of them actors are started by themselves, for a while."""

    def short_lived(_words: object, fds: list[int], env: dict[str, str], bus: socket.socket | None) -> ChildProcess:
        return start([sys.executable, "-c", f"import socket, sys; {program}", *map(str, fds)], fds, env, bus)

    monkeypatch.setattr(template, "start", short_lived)
    child = msgspec.structs.replace(actor("pause"), argv=("sleep", "60"))

    async def main() -> None:
        made = ActorTemplate(structlog.get_logger())
        process = await made.spawn(child, {})
        await until_async(lambda: psutil.Process(process.pid).name() == "sleep", "it is the program")
        await process.end()
        other = await made.spawn(child, {})
        await other.end()
        await made.end()

    with capture_logs() as logged:
        trio.run(main)
    assert [(one["event"], one["name"]) for one in logged] == [("actor_template_died", "pause")] * 2


def _answering(
    number: int, _words: object, fds: list[int], env: dict[str, str], bus: socket.socket | None
) -> ChildProcess:
    """A template whose answer is *number*."""
    program = f"import socket, sys; s = socket.socket(fileno=int(sys.argv[1])); s.recv(99); s.send(b'{number}')"
    return start([sys.executable, "-c", program, str(fds[0])], fds, env, bus)


def test_an_actor_that_cannot_be_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """No descriptor is left for its pidfd: it is killed, and that is a shortage, which passes."""
    sleeper = subprocess.Popen(["sleep", "60"])

    async def main() -> None:
        link = TemplateLink()
        with pytest.raises(OSError, match="Too many open files"):
            await link.fork("pause", {})
        await link.end()

    monkeypatch.setattr(template, "start", partial(_answering, sleeper.pid))
    trio.run(main)
    assert sleeper.wait(10) == -signal.SIGKILL


def test_no_actor_is_started_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_late() -> TemplateLink:
        pytest.fail("another template is made")

    async def main() -> None:
        made = ActorTemplate(structlog.get_logger())
        await made.end()
        with pytest.raises(OSError, match="no actor is started any more"):
            await made.spawn(actor("pause"), {})

    monkeypatch.setattr(template, "TemplateLink", too_late)
    trio.run(main)


def test_an_actor_that_cannot_be_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        link = TemplateLink()
        with pytest.raises(OSError, match=os.strerror(errno.EAGAIN)):
            await link.fork("pause", {})
        await link.end()

    monkeypatch.setattr(template, "start", partial(_answering, -errno.EAGAIN))
    trio.run(main)


@contextlib.contextmanager
def real_template() -> Iterator[tuple[socket.socket, list[str]]]:
    """The supervisor's end; and what all that were forked have complained of, when it hears the end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    complaints: list[str] = []
    with ours:
        options = ("--bus-fd", str(theirs.fileno()), "--parent-pid", str(os.getpid()))
        words = (sys.executable, "-P", "-m", "pulse_actors", "template", *options)
        with theirs:
            process = subprocess.Popen(
                words, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            )
        with process:
            yield ours, complaints
            ours.close()
            complaints += process.communicate(timeout=10)[1].splitlines()
        assert process.returncode == 0


def test_an_order_without_its_descriptors_is_refused() -> None:
    """The kernel leaves out those for which there is no room; the template goes on, until it hears the end."""
    with real_template() as (ours, _):
        for _ in range(2):
            ours.send(b"pause --bus-fd")
            assert int(ours.recv(64)) == -errno.EMFILE


def test_each_order_makes_one_actor() -> None:
    """It reads its own words, and the template waits for the next order."""
    with real_template() as (ours, complaints):
        for _ in range(2):
            ours.send(b"nobody")
            pid, (pidfd,), *_ = socket.recv_fds(ours, 64, 1)
            os.close(pidfd)
            assert int(pid) > 0
    assert len([line for line in complaints if "invalid choice: 'nobody'" in line]) == 2
