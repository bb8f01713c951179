"""Pulse, through its real SDK and socket, with the handlers of `bench.app`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench.app import STAMPS
from bench.count import VARIABLE, Count
from bench.load import new_jobs, submit_evenly
from bench.peers.peer import Facts, Mark, Place, Queue
from pulse.client.client import Client
from pulse.common.version import VERSION
from pulse.ops.demo.server import running_server

CONCURRENCY: Final = 1000
STAMP_S: Final = 20.0
_FINISHED: Final = (
    "SELECT count(*) FROM pulse.jobs WHERE name = 'noop' AND status = 'COMPLETED' AND completed_at <= to_timestamp($1)"
)
_LEFT: Final = "SELECT count(*) FROM pulse.jobs WHERE name = 'noop' AND status IN ('PENDING', 'RETRYING', 'RUNNING')"


class PulsePeer:
    """A supervisor, its actors, and a pool of one process."""

    facts = Facts(
        name="pulse",
        version=VERSION,
        settings=f"1 process, concurrency {CONCURRENCY}",
        source="docs/operations.md",
        fence="yes",
        keeps="the row, its result, its timings",
    )

    def install(self, cache: Path) -> None:
        """It is here."""

    @contextmanager
    def open(self, place: Place) -> Iterator[Queue]:
        """Start it with the gate closed."""
        with _server(place) as client:
            yield PulseQueue(client, place)


class PulseKeepsNothing(PulsePeer):
    """The same, and jobs are deleted when they have completed, as other queues do it."""

    facts = replace(
        PulsePeer.facts,
        name="pulse-keeps-nothing",
        settings=f"{PulsePeer.facts.settings}, retention 0",
        keeps="nothing",
    )

    @contextmanager
    def open(self, place: Place) -> Iterator[Queue]:
        """Likewise."""
        with _server(place) as client:
            client.topics_set("default", retention_s=0.0)
            yield ForgetfulQueue(client, place)


@contextmanager
def _server(place: Place) -> Iterator[Client]:
    settings = {
        "PULSE_DSN": place.dsn,
        VARIABLE: str(place.directory / "count"),
        STAMPS: str(place.stamps),
    }
    with running_server("bench.app:app", settings, processes=1, concurrency=CONCURRENCY, log=place.log) as client:
        client.pause(reason="bench")
        yield client


class PulseQueue:
    """It, with a client in the bench's own process, which is the producer."""

    def __init__(self, client: Client, place: Place) -> None:
        self._client, self._place = client, place
        self._submitted = 0
        self._begun = Count(place.directory / "count")

    def submit(self, count: int) -> None:
        """By the SDK, through the socket."""
        self._client.submit_many(new_jobs("noop", self._submitted, count))
        self._submitted += count

    @contextmanager
    def working(self) -> Iterator[None]:
        """The worker is there already; the gate opens."""
        self._client.resume()
        yield

    def waiting(self) -> int:
        """By what the handlers have counted."""
        return self._submitted - self._begun.value

    def mark(self) -> Mark:
        """The rows will tell."""
        return Mark(time.time(), 0)

    def finished(self, mark: Mark) -> int:
        """Rows."""
        return self._place.observer.value(_FINISHED, mark.at_s)

    def left(self) -> int:
        """Rows."""
        return self._place.observer.value(_LEFT)

    def latencies_ms(self, count: int, per_second: float) -> Sequence[float]:
        """The handler answers with the time since the submit call."""
        ids = submit_evenly(lambda args: self._client.submit("stamp", args), count, per_second)
        return [1000 * float(str(self._client.wait(one, timeout_s=STAMP_S).result)) for one in ids]


class ForgetfulQueue(PulseQueue):
    """No row tells what has completed: the calls of the handler are counted, and the stamps are in a file."""

    def mark(self) -> Mark:
        """With what the handlers have counted."""
        return Mark(time.time(), self._begun.value)

    def finished(self, mark: Mark) -> int:
        """By that."""
        return mark.called

    def latencies_ms(self, count: int, per_second: float) -> Sequence[float]:
        """As the handlers wrote them down."""
        submit_evenly(lambda args: self._client.submit("stamp", args), count, per_second)
        return self._place.stamps_ms(count)
