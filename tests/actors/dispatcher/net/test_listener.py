"""Connections that are not accepted; the chaos run takes the descriptors for them from a real dispatcher."""

from __future__ import annotations

import errno
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from structlog.testing import capture_logs

from pulse.config import Settings
from pulse.protocol.roles import NOTHING
from pulse.system.sockets.unix_stream import UnixStream
from pulse_actors.dispatcher.admission.connection_limits import MOST_BEFORE_HELLO_OF_ALL, ConnectionLimits
from pulse_actors.dispatcher.net import listener as listening_at
from pulse_actors.dispatcher.net.connection import PeerConnection
from pulse_actors.dispatcher.net.listener import ACCEPT_PAUSE_S, OWN_DESCRIPTORS, Listener, check_descriptors
from pulse_actors.dispatcher.net.peer import LocalPeerAuth, PeerAuth, RemotePeerAuth
from pulse_actors.shared.identity import Peer
from tests.support.checking.descriptors import free_descriptors

pytestmark = pytest.mark.anyio


class Full:
    """A listener without a descriptor for new connections, in each of the ways to say so; and then with one."""

    def __init__(self) -> None:
        self.errors: list[Exception] = [OSError(errno.EMFILE, "Too many open files"), anyio.BrokenResourceError()] * 2
        self.has_come = False
        self.errors[1].__cause__ = OSError(errno.ENFILE, "Too many open files in system")

    async def accept(self) -> object:
        if self.errors:
            raise self.errors.pop(0)
        if self.has_come:
            await anyio.sleep_forever()
        self.has_come = True
        return "somebody"


async def test_accept_does_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    came = anyio.Event()

    async def sleep(pause_s: float) -> None:
        pauses.append(pause_s)
        await anyio.lowlevel.checkpoint()

    async def attend(_stream: object, _number: int) -> None:
        came.set()

    monkeypatch.setattr(anyio, "sleep", sleep)
    reception = Listener(cast("Any", SimpleNamespace(host=None)), Settings())
    monkeypatch.setattr(reception, "_attend_local", attend)
    with capture_logs() as logs, anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reception.serve, cast("Any", Full()))
            await came.wait()
            tasks.cancel_scope.cancel()
    assert pauses == [ACCEPT_PAUSE_S] * 4
    assert [line["error"] for line in logs] == [
        "[Errno 24] Too many open files",
        "[Errno 23] Too many open files in system",
    ] * 2


async def is_served(reception: Listener, listening: socket.socket) -> bool:
    """Whether the next peer is served; else its connection must be closed."""
    served: list[object] = []

    async def serve(stream: object, *_: object) -> None:
        assert isinstance(stream, UnixStream)
        served.append(stream)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reception, "_serve_peer", serve)
        async with await anyio.abc.SocketListener.from_socket(listening.dup()) as listener:
            stream = await listener.accept()
            await reception._attend_local(stream, 1)
    if served:
        await stream.aclose()
    with pytest.raises(anyio.ClosedResourceError):
        await stream.receive()
    return bool(served)


async def test_who_is_not_served_here(tmp_path: Path) -> None:
    """A process that ended before it was accepted, and one of an account that has too many connections."""
    path = str(tmp_path / "socket")
    connects = f"import socket; socket.socket(socket.AF_UNIX).connect({path!r})"
    reception = Listener(cast("Any", SimpleNamespace(host=SimpleNamespace(id="h"), process_watch=None)), Settings())
    listening, one, other = (socket.socket(socket.AF_UNIX) for _ in range(3))
    with listening, one, other:
        listening.bind(path)
        listening.listen()
        await anyio.run_process([sys.executable, "-S", "-c", connects])
        assert not await is_served(reception, listening)
        one.connect(path)
        assert await is_served(reception, listening)
        reception._own_limits = reception._limits = ConnectionLimits(0)
        other.connect(path)
        assert not await is_served(reception, listening)


def test_who_is_anywhere_closes_no_connection_of_an_account() -> None:
    reception = Listener(cast("Any", SimpleNamespace(host=None)), Settings())
    closed: list[str] = []
    reception._limits.enter("uid 1", lambda: closed.append("uid 1"))
    for number in range(MOST_BEFORE_HELLO_OF_ALL):
        reception._remote_limits.enter(f"10.{number >> 8}.{number & 255}.1", lambda: closed.append("anywhere"))
    assert closed == []
    reception._remote_limits.enter("10.0.0.1", lambda: None)
    assert closed == ["anywhere"]


@pytest.mark.parametrize("entry", [
    RemotePeerAuth("10.1.2.3:50000", "10.1.2.3", None, "h", lambda: None),
    LocalPeerAuth(Peer(1, 0, 0, 7, 1), NOTHING, "h", lambda: None),
], ids=["remote", "local"])  # fmt: skip
@pytest.mark.parametrize("is_cut", [True, False])
async def test_remote_peers_that_were_cut_are_logged(
    monkeypatch: pytest.MonkeyPatch, entry: PeerAuth, *, is_cut: bool
) -> None:
    class Visit:
        def __init__(self, _services: object, connection: PeerConnection, *_: object, **__: object) -> None:
            connection.is_cut = is_cut

        async def run(self) -> None:
            """It is over already."""

    monkeypatch.setattr(listening_at, "PeerSession", Visit)
    reception = Listener(cast("Any", SimpleNamespace(host=None)), Settings())
    with capture_logs() as logs:
        await reception._serve_peer(cast("Any", None), entry, "10.1.2.3", None, 1)
    expected = [("peer_cut", "10.1.2.3:50000")] if is_cut and isinstance(entry, RemotePeerAuth) else []
    assert [(line["event"], line["address"]) for line in logs] == expected


def test_without_a_certificate_none_is_read_again() -> None:
    with capture_logs() as logs:
        Listener(cast("Any", SimpleNamespace(host=None)), Settings()).reload()
    assert logs == []


def test_some_descriptors_are_no_connections() -> None:
    with free_descriptors(OWN_DESCRIPTORS):
        check_descriptors()
    with free_descriptors(OWN_DESCRIPTORS - 1), pytest.raises(OSError, match=f"{OWN_DESCRIPTORS} of .* are kept"):
        check_descriptors()
