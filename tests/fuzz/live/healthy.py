"""
``python -m tests.fuzz.live.healthy SOCKET SUPERVISOR DIRECTORY``: a client that works, until its input ends.

Each line that it writes: when (monotonic clock), what, and the seconds that it took.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import pulse
from pulse.common.ids import uuid7
from tests.fuzz.live.app import TOPIC

TURN_S: Final = 0.02  # between two beginnings of a round
T = TypeVar("T")


class Watch:
    def __init__(self, file: Path) -> None:
        self._file = file.open("w", encoding="ascii", buffering=1)

    def timed(self, what: str, act: Callable[[], T]) -> T:
        began_s = time.monotonic()
        done = act()
        self._file.write(f"{began_s:.6f} {what} {time.monotonic() - began_s:.6f}\n")
        return done


def main() -> None:
    """Submit a job, wait until it is done, read it, and ping the supervisor; again and again."""
    path, supervisor, directory = map(Path, sys.argv[1:])
    is_over = threading.Event()
    threading.Thread(target=_hear, args=(is_over,), daemon=True).start()
    watch, number = Watch(directory / "latencies"), 0
    with (
        pulse.Client(path) as client,
        pulse.Client(supervisor) as operator,
        (directory / "healthy").open("ab", buffering=0) as ids,
    ):
        while not is_over.is_set():
            began_s = time.monotonic()
            job, number = uuid7(), number + 1
            ids.write(job.bytes)
            watch.timed("job", lambda: _done(watch, client, job, number))  # noqa: B023 - it is called at once
            watch.timed("get", lambda: client.get(job))  # noqa: B023 - the same
            watch.timed("ping", client.ping)
            watch.timed("supervisor", operator.ping)
            is_over.wait(max(0.0, TURN_S - (time.monotonic() - began_s)))


def _hear(is_over: threading.Event) -> None:
    sys.stdin.read()
    is_over.set()


def _done(watch: Watch, client: pulse.Client, job: object, number: int) -> None:
    watch.timed("submit", lambda: client.submit("echo", {"n": number}, topic=TOPIC, id=job))  # type: ignore[arg-type]  # a UUID
    client.wait(job, timeout_s=30.0)  # type: ignore[arg-type]  # the same


if __name__ == "__main__":
    main()
