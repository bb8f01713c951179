"""
The wire between hosts, in user space: a process that passes frames between their TAP devices, as a switch does.

Each host is a network namespace with one device. Its link can be cut, in one direction or for some other hosts only;
it can delay frames, lose some, and be slow. ``python -m tests.chaos.hosts.wire FD`` takes orders from that socket, a
line of JSON each, and ends with it. It needs no bridge, no netem and no filter of packets in the kernel.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import json
import os
import random
import selectors
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

ROOT: Final = Path(__file__).parents[3]
TUN: Final = Path("/dev/net/tun")
DEVICE: Final = "eth0"
_TUNSETIFF: Final = 0x400454CA
_TAP_WITHOUT_HEADER: Final = 0x0002 | 0x1000
_CLONE_NEWNET: Final = 0x40000000
_FRAME_BYTES: Final = 65_536
_FRAMES: Final = 64  # of one link, then the others have their turn
_QUEUE_BYTES: Final = 100_000  # of a slow link; what comes on top is lost
_MAC: Final = 6


@dataclass(frozen=True, slots=True)
class Link:
    """
    How the link of a host is.

    Attributes:
        deaf: Nothing reaches the host.
        mute: Nothing leaves it.
        apart: Hosts that it cannot reach, and that do not reach it.
        delay_s: Of each frame, in each direction.
        loss: Share of frames that are lost, in each direction.
        bytes_s: How much it carries to the host in a second; 0: as much as comes.
    """

    deaf: bool = False
    mute: bool = False
    apart: tuple[str, ...] = ()
    delay_s: float = 0.0
    loss: float = 0.0
    bytes_s: float = 0.0


GOOD: Final = Link()


class Wire:
    """The process, as the test sees it."""

    def __init__(self) -> None:
        self._orders, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "tests.chaos.hosts.wire", str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=ROOT)
        self._answers = self._orders.makefile("r", encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._answers.close()
        self._orders.close()
        self._process.wait(10)

    def plug(self, host: str, pid: int) -> None:
        """Give the network namespace of process *pid* a device, and a good link; it replaces what *host* had."""
        self._order(host, pid=pid)

    def cut(self, host: str) -> None:
        """Nothing gets to it or from it."""
        self.set(host, Link(deaf=True, mute=True))

    def heal(self, host: str) -> None:
        self.set(host, GOOD)

    def set(self, host: str, link: Link) -> None:
        self._order(host, link=asdict(link))

    def _order(self, host: str, **words: object) -> None:
        self._orders.sendall(json.dumps({"host": host, **words}).encode() + b"\n")
        assert self._answers.readline() == "done\n", "the wire has ended"


@dataclass(slots=True)
class _Port:
    host: str
    descriptor: int
    link: Link = GOOD
    free_s: float = 0.0  # a slow link: when what it has taken is through


@dataclass(order=True, slots=True)
class _Late:
    at_s: float
    number: int
    port: _Port = field(compare=False)
    frame: bytes = field(compare=False)


class _Switch:
    def __init__(self, orders: socket.socket) -> None:
        self._orders = orders
        self._lines = b""
        self._ports: dict[str, _Port] = {}
        self._known: dict[bytes, _Port] = {}
        self._late: list[_Late] = []
        self._number = 0
        self._rng = random.Random(0)
        self._selector = selectors.DefaultSelector()
        self._selector.register(orders, selectors.EVENT_READ, None)

    def run(self) -> None:
        while True:
            wait_s = max(0.0, self._late[0].at_s - time.monotonic()) if self._late else None
            for key, _ in self._selector.select(wait_s):
                port: _Port | None = key.data
                if port is None:
                    if not self._obey():
                        return
                elif self._ports.get(port.host) is port:  # else it was unplugged just now
                    self._read(port)
            while self._late and self._late[0].at_s <= time.monotonic():
                late = heapq.heappop(self._late)
                _write(late.port, late.frame)

    def _obey(self) -> bool:
        data = self._orders.recv(_FRAME_BYTES)
        *lines, self._lines = (self._lines + data).split(b"\n")
        for line in lines:
            order: dict[str, Any] = json.loads(line)
            host = order["host"]
            if "pid" in order:
                self._unplug(host)
                port = self._ports[host] = _Port(host, _open_tap(order["pid"]))
                self._selector.register(port.descriptor, selectors.EVENT_READ, port)
            elif host in self._ports:
                link = order["link"]
                self._ports[host].link = Link(**{**link, "apart": tuple(link["apart"])})
            self._orders.sendall(b"done\n")
        return bool(data)

    def _unplug(self, host: str) -> None:
        port = self._ports.pop(host, None)
        if port is not None:
            self._selector.unregister(port.descriptor)
            os.close(port.descriptor)
            self._known = {mac: one for mac, one in self._known.items() if one is not port}

    def _read(self, port: _Port) -> None:
        for _ in range(_FRAMES):
            try:
                frame = os.read(port.descriptor, _FRAME_BYTES)
            except BlockingIOError:
                return
            except OSError:  # its namespace has ended
                self._unplug(port.host)
                return
            self._known[frame[_MAC : 2 * _MAC]] = port
            to = self._known.get(frame[:_MAC])
            for other in [one for one in self._ports.values() if one is not port] if to is None else [to]:
                self._pass_on(port, other, frame)

    def _pass_on(self, source: _Port, sink: _Port, frame: bytes) -> None:
        one, other = source.link, sink.link
        if one.mute or other.deaf or sink.host in one.apart or source.host in other.apart:
            return
        if self._rng.random() < one.loss or self._rng.random() < other.loss:
            return
        now_s = time.monotonic()
        at_s = now_s + one.delay_s + other.delay_s
        if other.bytes_s:
            if (sink.free_s - now_s) * other.bytes_s > _QUEUE_BYTES:
                return
            at_s = sink.free_s = max(at_s, sink.free_s) + len(frame) / other.bytes_s
        if at_s > now_s:
            self._number += 1
            heapq.heappush(self._late, _Late(at_s, self._number, sink, frame))
        else:
            _write(sink, frame)


def _write(port: _Port, frame: bytes) -> None:
    with suppress(OSError):  # the device is down, full or gone, and so is the frame
        os.write(port.descriptor, frame)


def _open_tap(pid: int) -> int:
    with in_network_of(pid):
        descriptor = os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), _TAP_WITHOUT_HEADER))
    return descriptor


@contextmanager
def in_network_of(pid: int) -> Iterator[None]:
    """Sockets that are made in here are of that network namespace; for one thread."""
    with Path("/proc/self/ns/net").open("rb") as here, Path(f"/proc/{pid}/ns/net").open("rb") as there:
        _set_network(there.fileno())
        try:
            yield
        finally:
            _set_network(here.fileno())


def _set_network(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as given:
        _Switch(given).run()
