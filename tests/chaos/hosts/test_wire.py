"""The wire between hosts: what passes, how late, how much of it; between two namespaces with nothing but a device."""

from __future__ import annotations

import contextlib
import select
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.hosts.machine import NETWORK, set_address, why_not
from tests.chaos.hosts.wire import Link, Wire, in_network_of
from tests.support.waiting import until

pytestmark = [pytest.mark.chaos, pytest.mark.process]
FIRST, SECOND, THIRD = 41, 42, 43
PORT = 9000


class Ends:
    def __init__(self, wire: Wire, sockets: dict[int, socket.socket]) -> None:
        self.wire = wire
        self._sockets = sockets

    def send(self, source: int, sink: int, data: bytes) -> None:
        self._sockets[source].sendto(data, (f"{NETWORK}.{sink}", PORT))

    def arrived(self, sink: int, last: bytes, within_s: float = 10.0) -> list[bytes]:
        """What has come to *sink*, up to and with *last*."""
        found: list[bytes] = []
        deadline_s = time.monotonic() + within_s
        while last not in found:
            left_s = deadline_s - time.monotonic()
            assert select.select([self._sockets[sink]], [], [], max(0.0, left_s))[0], f"{last!r} did not come: {found}"
            found.append(self._sockets[sink].recv(2000))
        return found


@pytest.fixture(scope="module")
def ends() -> Iterator[Ends]:
    if why := why_not():
        pytest.skip(why)
    with contextlib.ExitStack() as stack:
        wire, sockets = stack.enter_context(Wire()), dict[int, socket.socket]()
        for number in (FIRST, SECOND, THIRD):
            pid = stack.enter_context(_namespace())
            wire.plug(f"h{number}", pid)
            set_address(pid, number)
            with in_network_of(pid):
                sockets[number] = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
                sockets[number].bind((f"{NETWORK}.{number}", PORT))
        made = Ends(wire, sockets)
        for source, sink in ((FIRST, SECOND), (SECOND, FIRST), (FIRST, THIRD), (THIRD, SECOND)):  # they find each other
            made.send(source, sink, b"hello")
            made.arrived(sink, b"hello")
        yield made


@pytest.fixture
def whole(ends: Ends) -> Iterator[Ends]:
    yield ends
    for number in (FIRST, SECOND, THIRD):
        ends.wire.heal(f"h{number}")


@contextlib.contextmanager
def _namespace() -> Iterator[int]:
    with subprocess.Popen(["unshare", "--net", "sleep", "300"]) as process:
        try:
            here, there = Path("/proc/self/ns/net"), Path(f"/proc/{process.pid}/ns/net")
            until(lambda: not there.samefile(here), "the namespace")
            yield process.pid
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("link", "to_it", "from_it"),
    [
        (Link(deaf=True), False, True),
        (Link(mute=True), True, False),
        (Link(deaf=True, mute=True), False, False),
        (Link(apart=(f"h{SECOND}",)), False, False),
        (Link(apart=("another",)), True, True),
    ],
)
def test_a_cut_stops_one_direction_or_both(whole: Ends, link: Link, to_it: bool, from_it: bool) -> None:
    """What is sent while it lasts never comes; afterwards all does."""
    for source, sink, passes in ((SECOND, FIRST, to_it), (FIRST, SECOND, from_it)):
        whole.wire.set(f"h{FIRST}", link)
        whole.send(source, sink, b"meanwhile")
        if passes:
            whole.arrived(sink, b"meanwhile")
        whole.send(THIRD, SECOND, b"beside")  # others do not notice, and by now the wire has dropped the one before
        whole.arrived(SECOND, b"beside")
        whole.wire.heal(f"h{FIRST}")
        whole.send(source, sink, b"after")
        assert whole.arrived(sink, b"after") == [b"after"]


def test_a_host_that_is_apart_from_one_reaches_the_others(whole: Ends) -> None:
    whole.wire.set(f"h{FIRST}", Link(apart=(f"h{SECOND}",)))
    whole.send(FIRST, THIRD, b"third")
    whole.arrived(THIRD, b"third")


def test_frames_are_late_in_each_direction(whole: Ends) -> None:
    whole.wire.set(f"h{FIRST}", Link(delay_s=0.1))
    sent_s = time.monotonic()
    whole.send(FIRST, SECOND, b"there")
    whole.arrived(SECOND, b"there")
    assert time.monotonic() - sent_s >= 0.1
    whole.send(SECOND, FIRST, b"back")
    whole.arrived(FIRST, b"back")
    assert time.monotonic() - sent_s >= 0.2


def test_some_frames_are_lost(whole: Ends) -> None:
    whole.wire.set(f"h{FIRST}", Link(loss=0.5))
    for frame in (b"some", b"last"):  # some of the last arrive, too; a link that is healed at once loses none
        for _ in range(100):
            whole.send(FIRST, SECOND, frame)
    arrived = whole.arrived(SECOND, b"last").count(b"some")
    whole.wire.heal(f"h{FIRST}")
    whole.send(FIRST, SECOND, b"end")
    whole.arrived(SECOND, b"end")
    assert 20 < arrived < 80


def test_a_slow_link_takes_its_time(whole: Ends) -> None:
    whole.wire.set(f"h{SECOND}", Link(bytes_s=20_000))
    sent_s = time.monotonic()
    for _ in range(10):
        whole.send(FIRST, SECOND, b"x" * 1000)
    whole.send(FIRST, SECOND, b"last")
    assert len(whole.arrived(SECOND, b"last")) == 11
    assert time.monotonic() - sent_s >= 0.5
