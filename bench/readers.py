"""
`python -m bench.readers`: what peers that ask for long pages and read none of them cost everybody else.

A client gets and submits, one after the other, and is timed: alone, while so many peers come, and while all of them are
stuck, in turn. Each peer is a process that asks for pages of the longest size as fast as it is listened to, and never
reads; it is stuck when nobody listens to it any more. What counts is the ratio of two turns behind one another: its
median over all rounds.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Final
from uuid import UUID

from bench.dashboard import APP, runtime_dir
from bench.latency import percentile
from bench.load import Figure
from pulse.client.client import Client
from pulse.client.requests import NewJob
from pulse.ops.demo.server import running_server
from pulse.protocol import encode
from pulse.system import processes
from pulse.system.directories import CLIENT_SOCKET

PAGES: Final = 1000  # rows of one page
ARG_BYTES: Final = 3000  # so that a page is as long as pages get
SETTLED_S: Final = 4.0  # until killed peers are forgotten
STUCK_S: Final = 1.0  # for so long nobody has listened, though the first page is there
WELCOME_BYTES: Final = 64 * 1024  # at most
PERCENT: Final = 99
KINDS: Final = ("get", "submit")


def stuck_peer(path: str) -> None:
    """Ask, and never read; a line says that it is stuck, for the first time. Come again when cut."""
    number, is_stuck = 0, False
    while True:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(path)
            peer.sendall(encode("hello", 0, {"protocol": 1, "role": "client"}))
            peer.recv(WELCOME_BYTES)
            peer.setblocking(False)
            try:
                while True:
                    number += 1
                    frame = encode("jobs.list", number, {"limit": PAGES, "oldest": True})
                    while frame:
                        while not select.select([], [peer], [], STUCK_S)[1]:
                            if not is_stuck and select.select([peer], [], [], 0)[0]:
                                is_stuck = True
                                os.write(sys.stdout.fileno(), b"stuck\n")
                        frame = frame[peer.send(frame) :]
            except OSError:
                time.sleep(1.0)


def stuck_peers(path: str, number: int) -> None:
    """So many of them, each a process of its own, which ends with this one."""
    parent = os.getpid()
    for _ in range(number):
        if os.fork() == 0:
            processes.die_with_parent(parent, signal.SIGKILL)
            stuck_peer(path)
    signal.pause()


@contextmanager
def peers(path: str, number: int) -> Generator[Callable[[], None]]:
    """They come; what is given returns when all are stuck."""
    program = [sys.executable, "-m", "bench.readers", "--be-peers", path, "--peers", str(number)]
    with subprocess.Popen(program, stdout=subprocess.PIPE) as running:
        said = running.stdout
        assert said is not None

        def until_stuck() -> None:
            for _ in range(number):
                said.readline()

        try:
            yield until_stuck
        finally:
            running.kill()


def timed(ask: Callable[[], object]) -> float:
    """Milliseconds of one request."""
    start_s = time.perf_counter()
    ask()
    return 1000 * (time.perf_counter() - start_s)


def turn(client: Client, job: UUID, requests: int) -> dict[str, float]:
    """The p99 of each kind of request."""
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(requests):
        times["get"].append(timed(lambda: client.get(job)))
        times["submit"].append(timed(lambda: client.submit("noop", {}, topic="readers", delay_s=86400)))
    return {kind: percentile(values, PERCENT) for kind, values in times.items()}


def measured(rounds: int, number: int, requests: int) -> Iterator[Figure]:
    """Alone and beside them, and the ratios: after each round, of all until then."""
    with running_server(APP, {}, processes=1) as first:
        database = first.status()["database"]
        assert isinstance(database, dict)
        path = str(runtime_dir(str(database["dsn"])) / CLIENT_SOCKET)
        with Client(path) as client:
            job = client.submit("noop", {"pad": ""}, topic="readers", delay_s=86400)
            row: NewJob = {"name": "noop", "args": {"pad": "x" * ARG_BYTES}, "topic": "readers", "delay_s": 86400}
            for _ in range(2):
                client.submit_many([row] * (PAGES // 2))
            turn(client, job, requests // 4)  # statements are planned, caches warm
            found: dict[str, list[dict[str, float]]] = {"alone": [], "coming": [], "stuck": []}
            for _ in range(rounds):
                found["alone"].append(turn(client, job, requests))
                with peers(path, number) as until_stuck:
                    found["coming"].append(turn(client, job, requests))
                    until_stuck()
                    found["stuck"].append(turn(client, job, requests))
                time.sleep(SETTLED_S)
                yield from figures(found)


def figures(found: dict[str, list[dict[str, float]]]) -> Iterator[Figure]:
    """Medians of the rounds so far."""
    for kind in KINDS:
        for how, turns in found.items():
            yield Figure(f"{kind}, p{PERCENT}, {how}", statistics.median(one[kind] for one in turns), "ms")
        for how in ("coming", "stuck"):
            ratios = [one[kind] / alone[kind] for one, alone in zip(found[how], found["alone"], strict=True)]
            yield Figure(f"{kind}, p{PERCENT}, {how} / alone", statistics.median(ratios), "x")


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.readers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="medians of so many")
    parser.add_argument("--peers", type=int, default=20, help="that never read")
    parser.add_argument("--requests", type=int, default=1000, help="of each kind, in one turn")
    parser.add_argument("--be-peers", metavar="SOCKET", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be_peers:
        stuck_peers(options.be_peers, options.peers)
    for figure in measured(options.rounds, options.peers, options.requests):
        print(f"{figure.name:<36} {figure.value:8.2f} {figure.unit}", flush=True)


if __name__ == "__main__":
    main()
