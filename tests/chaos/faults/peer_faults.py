"""Faults of peers: clients that do not read, or speak nonsense; sockets and descriptors that are gone."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import resource
import signal
import subprocess
import sys
import threading
from typing import ClassVar, Final

from pulse.common.ids import uuid7
from tests.chaos.faults.fault import Fault, actors, found, send
from tests.chaos.site import Site
from tests.support.systems.peers import Peer
from tests.support.systems.system_kit import PATHS, ROOT

SPARE_DESCRIPTORS: Final = 2
CROWD: Final = 50
# Asks for more than any buffer holds, reads nothing of it, and says so.
GREEDY: Final = """
import pathlib, sys, time
from tests.support.systems.peers import Peer
with Peer(pathlib.Path(sys.argv[1])).hello() as peer:
    print("greedy", flush=True)
    for number in range(2000):
        peer.send("jobs.list", number + 1, limit=100)
    sys.stdin.read()
"""
MAP_BOMB: Final = b"\xdd\x00\x0f\x42\x40" + b"\x80" * 1_000_000  # a million empty maps in a frame that is allowed
NONSENSE: Final = (
    b"GET / HTTP/1.1\r\nHost: pulse\r\n\r\n",
    b"\xff\xff\xff\xff",  # a frame of 4 GiB
    b"\x00\x00\x00\x00",
    b"\x00\x00\x00\x05\xdd\xff\xff\xff\xff",  # an array of 2**32 elements
    b"\x00\x00\x04\x4c" + b"\x91" * 1100,  # 1100 levels deep
    len(MAP_BOMB).to_bytes(4, "big") + MAP_BOMB,
    b"\x00\x00\x00\x06\x93\xa3\xff\xfe\xfd\xc0",  # no UTF-8
)


class ExhaustDescriptors(Fault):
    """The dispatcher has no descriptor left for another connection (EMFILE)."""

    row, name = 28, "exhaust-descriptors"
    stalls = True
    held_s: ClassVar = (2.0, 5.0)
    _pid = 0

    def __init__(self, site: Site, rng: random.Random) -> None:
        super().__init__(site, rng)
        self._crowd: list[Peer] = []

    def inject(self) -> None:
        self._pid = found(lambda: actors(self.site).get("dispatcher")) or 0
        if not self._pid:
            self.gave_up = "no dispatcher runs"
            return
        with contextlib.suppress(OSError):
            used = set(map(int, os.listdir(f"/proc/{self._pid}/fd")))  # noqa: PTH208 - names only
            free = (number for number in itertools.count() if number not in used)
            limit = next(itertools.islice(free, SPARE_DESCRIPTORS, None))
            self._limits = resource.prlimit(self._pid, resource.RLIMIT_NOFILE)
            resource.prlimit(self._pid, resource.RLIMIT_NOFILE, (limit, self._limits[1]))
        for _ in range(CROWD):
            with contextlib.suppress(OSError):
                self._crowd.append(Peer(self.site.whole.path))

    def heal(self) -> None:
        for peer in self._crowd:
            peer.close()
        if self._pid and actors(self.site).get("dispatcher") == self._pid:
            with contextlib.suppress(OSError):
                resource.prlimit(self._pid, resource.RLIMIT_NOFILE, self._limits)


class StopClient(Fault):
    """SIGSTOP of a client that has asked for a lot, and reads nothing of it."""

    row, name = 30, "stop-client"
    held_s: ClassVar = (3.0, 10.0)
    _process: subprocess.Popen[str] | None = None

    def inject(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", GREEDY, str(self.site.whole.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, cwd=ROOT, env={**os.environ, "PYTHONPATH": PATHS}, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        self._process.stdout.readline()
        send(self._process.pid, signal.SIGSTOP)

    def heal(self) -> None:
        if self._process is not None:
            with self._process:
                self._process.kill()


class RemoveSocket(Fault):
    row, name = 31, "remove-socket"
    stalls = True
    bar_s = 20.0

    def inject(self) -> None:
        self.site.whole.path.unlink(missing_ok=True)


class SlowLoris(Fault):
    """Connections that send a frame a byte at a time, and connections that never say hello."""

    row, name = 36, "slow-loris"
    held_s: ClassVar = (3.0, 8.0)
    BYTE_S: ClassVar = 0.5

    def __init__(self, site: Site, rng: random.Random) -> None:
        super().__init__(site, rng)
        self._over = threading.Event()
        self._peers: list[Peer] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def inject(self) -> None:
        for _ in range(20):
            with contextlib.suppress(OSError):
                self._peers.append(Peer(self.site.whole.path))
        if not self._peers:
            self.gave_up = "nobody accepts a connection"
        self._thread.start()

    def heal(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        for peer in self._peers:
            peer.close()

    def _run(self) -> None:
        for byte in b"\x00\x00\x00\x40" + bytes(64):
            if self._over.wait(self.BYTE_S):
                return
            for peer in self._peers[::2]:
                peer.send_bytes(bytes([byte]))


class Nonsense(Fault):
    """Frames that are too long, empty, no MessagePack, or made to hurt; before and after hello."""

    row, name = 37, "nonsense"

    def inject(self) -> None:
        for data in NONSENSE:
            for greet in (False, True):
                with contextlib.suppress(OSError, AssertionError), Peer(self.site.whole.path) as peer:
                    if greet:
                        peer.hello()
                    peer.send_bytes(data)
                    peer.stop_sending()
        with contextlib.suppress(OSError, AssertionError), Peer(self.site.whole.path) as peer:
            peer.send("hello", 0, protocol=99, role="client")
            peer.expect_end()


class Malice(Fault):
    """Well-formed requests that ask for what must be refused."""

    row, name = 38, "malice"

    def __init__(self, site: Site, rng: random.Random) -> None:
        super().__init__(site, rng)
        self.refusals: list[tuple[str, str]] = []

    def inject(self) -> None:
        deep = "[" * 20_000 + "]" * 20_000
        with contextlib.suppress(OSError, AssertionError), Peer(self.site.whole.path) as peer:
            peer.hello()
            for args in ('{"a": "\\u0000"}', '{"a": NaN}', '{"a": "\\ud800"}', f'{{"a": {deep}}}', "[]", "nonsense"):
                self.refusals.append(
                    peer.refusal("submit", jobs=[{"name": "short", "id": uuid7().bytes, "args": args}])
                )
            self.refusals.append(peer.refusal("submit", jobs=[{"name": "", "id": uuid7().bytes}]))
            self.refusals.append(peer.refusal("no.such.kind"))
            return
        self.gave_up = f"{len(self.refusals)} requests were refused, then nobody answered"
