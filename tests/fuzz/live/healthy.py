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
from typing import BinaryIO, Final, TypeVar

import pulse
from pulse.common.ids import uuid7
from tests.fuzz.live.app import LIMITED, TOPIC

TURN_S: Final = 0.02  # between two beginnings of a round
LIMITED_ROUND: Final = 16  # every so many rounds some jobs under a limit are submitted, too
GROUPS: Final = (None, "a", "a", "b")  # of these
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
    """Submit a job, wait until it is done, read it, ping the supervisor, again and again; and jobs under a limit."""
    path, supervisor, directory = map(Path, sys.argv[1:])
    is_over = threading.Event()
    threading.Thread(target=_hear, args=(is_over,), daemon=True).start()
    watch, number = Watch(directory / "latencies"), 0
    with (
        pulse.Client(path) as client,
        pulse.Client(supervisor) as operator,
        (directory / "healthy").open("ab", buffering=0) as ids,
        (directory / "limited").open("ab", buffering=0) as limited,
    ):
        while not is_over.is_set():
            began_s = time.monotonic()
            job, number = uuid7(), number + 1
            ids.write(job.bytes)
            watch.timed("job", lambda: _done(watch, client, job, number))  # noqa: B023 - it is called at once
            watch.timed("get", lambda: client.get(job))  # noqa: B023 - the same
            watch.timed("ping", client.ping)
            watch.timed("supervisor", operator.ping)
            if number % LIMITED_ROUND == 0:
                _submit_limited(client, limited, number // LIMITED_ROUND)
            is_over.wait(max(0.0, TURN_S - (time.monotonic() - began_s)))


def _submit_limited(client: pulse.Client, ids: BinaryIO, turn: int) -> None:
    """More at once than may run, of a group as well as in all."""
    first = (turn - 1) * len(GROUPS) + 1
    new = [uuid7() for _ in GROUPS]
    ids.write(b"".join(one.bytes for one in new))
    client.submit_many(
        {"name": "work", "args": {"n": number}, "id": one, "topic": LIMITED, "group_key": group}
        for number, (one, group) in enumerate(zip(new, GROUPS, strict=True), first)
    )


def _hear(is_over: threading.Event) -> None:
    sys.stdin.read()
    is_over.set()


def _done(watch: Watch, client: pulse.Client, job: object, number: int) -> None:
    watch.timed("submit", lambda: client.submit("echo", {"n": number}, topic=TOPIC, id=job))  # type: ignore[arg-type]  # a UUID
    client.wait(job, timeout_s=30.0)  # type: ignore[arg-type]  # the same


if __name__ == "__main__":
    main()
