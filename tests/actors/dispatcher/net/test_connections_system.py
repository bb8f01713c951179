"""Connections by the thousand, opened and dropped, and what was said before, said again: nothing is left of either."""

from __future__ import annotations

import contextlib
import resource
import socket
from collections.abc import Iterator
from typing import Final

import psutil
import pytest

from pulse import protocol
from tests.support.servers.postgres import Postgres
from tests.support.systems.system import System, running
from tests.support.waiting import until

pytestmark = [pytest.mark.postgres, pytest.mark.process, pytest.mark.system, pytest.mark.rest]

CONNECTIONS: Final = 10_000
MOST_MORE_BYTES: Final = 20 * 1024 * 1024
HELLO: Final = protocol.encode("hello", 0, {"protocol": 1, "role": "client"})
WORDS: Final = (b"", HELLO[:7], HELLO, HELLO + protocol.encode("ping", 1, {})[:5])


@pytest.fixture(scope="module")
def system(newest_server: Postgres) -> Iterator[System]:
    with newest_server.database() as dsn, running(dsn, {"PULSE_LISTEN": "127.0.0.1:0"}) as made:
        yield made


def test_ten_thousand_connections_leave_nothing(system: System) -> None:
    """Neither descriptors nor memory of dispatcher and supervisor; whoever is there is served all the time."""
    assert system.process is not None
    watched = [psutil.Process(pid) for pid in (system.process.pid, system.pids()["dispatcher"])]
    doors: list[str | tuple[str, int]] = [
        str(system.path),
        str(system.runtime_dir / "supervisor.sock"),
        ("127.0.0.1", system.tcp_port),
    ]

    served = [0] * len(doors)

    def come(number: int) -> None:
        where = doors[number % len(doors)]
        with socket.socket(socket.AF_UNIX if isinstance(where, str) else socket.AF_INET) as peer:
            peer.settimeout(10)
            with contextlib.suppress(ConnectionError, BlockingIOError, TimeoutError):  # it may be one too many just now
                peer.connect(where)
                peer.sendall(WORDS[number // len(doors) % len(WORDS)])
                served[number % len(doors)] += 1

    def at_rest() -> list[int]:
        return [one.num_fds() for one in watched]

    with system.client() as client:
        first = at_rest()
        for number in range(500):
            come(number)
        client.call("ping")
        until(lambda: all(fds <= was + 8 for fds, was in zip(at_rest(), first, strict=True)), "those are gone")
        before = [(fds, one.memory_info().rss) for one, fds in zip(watched, first, strict=True)]
        for number in range(CONNECTIONS):
            come(number)
            if number % 500 == 0:
                client.call("ping")
        client.call("ping")
    assert sum(served) > CONNECTIONS * 0.8  # the supervisor has few seats
    until(lambda: all(now <= fds + 8 for now, (fds, _) in zip(at_rest(), before, strict=True)), "descriptors are free")

    def is_small() -> bool:
        return all(
            one.memory_info().rss <= rss + MOST_MORE_BYTES for one, (_, rss) in zip(watched, before, strict=True)
        )

    until(is_small, "memory is free")


def test_no_core_files(system: System) -> None:
    """Whoever may read one would have the DSN: none is made, unless an administrator raises the limit."""
    for pid in system.pids().values():
        soft, _ = resource.prlimit(pid, resource.RLIMIT_CORE)
        assert soft == 0
