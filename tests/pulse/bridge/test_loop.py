"""The loop of a bridge, in one process: how much it pulls, and what it answers. With NATS: test_nats_system.py."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, cast
from uuid import UUID

import anyio
import pytest
from structlog.testing import capture_logs

from pulse.app.call import Call
from pulse.bridge import loop
from pulse.bridge.broker import BrokerMessage
from pulse.bridge.jobs import BridgeOptions
from pulse.bridge.loop import Bridge
from pulse.client.async_client import AsyncClient
from pulse.client.requests import NewJob
from pulse.errors import BadRequestError, NobodyAnswersError, PulseError
from pulse.job import Job, Status
from pulse.protocol.answers import read
from pulse.protocol.stats import Stats
from tests.support.commandline import cli_answers as answers

pytestmark = pytest.mark.anyio

TOPIC: Final = "orders"
END_S: Final = 10.0


class Source:
    """A broker with one message for each of *data*; it asks to stop when they are gone."""

    keeps_terminated = True

    def __init__(self, stopping: anyio.Event, data: Iterable[bytes]) -> None:
        self.stopping = stopping
        self.left = [BrokerMessage(f"k{n}", f"S/{n}", "s", {}, one, 1, None) for n, one in enumerate(data)]
        self.pulled: list[int] = []
        self.answers: list[tuple[str, str]] = []

    async def pull(self, most: int, within_s: float) -> Sequence[BrokerMessage]:
        assert within_s
        self.pulled.append(most)
        taken, self.left = self.left[:most], self.left[most:]
        if not taken:
            self.stopping.set()
        return taken

    async def ack(self, message: BrokerMessage) -> None:
        self.answers.append(("ack", message.position))

    async def nak(self, message: BrokerMessage, delay_s: float) -> None:
        assert delay_s == 0
        self.answers.append(("nak", message.position))

    async def extend(self, message: BrokerMessage) -> None:
        self.answers.append(("extend", message.position))

    async def terminate(self, message: BrokerMessage) -> None:
        self.answers.append(("terminate", message.position))


class Counter:
    """A server that refuses all of a submit with bad args; at each third look its workers have taken all that waits."""

    def __init__(self, *failures: PulseError) -> None:
        self.failures = list(failures)
        self.looks = self.waiting = self.most = 0

    async def submit_many(self, jobs: Sequence[NewJob]) -> list[UUID]:
        if self.failures:
            raise self.failures.pop(0)
        if any("bad" in cast("Call[Any]", job["name"]).args for job in jobs):
            raise BadRequestError("bad args")
        self.waiting += len(jobs)
        self.most = max(self.most, self.waiting)
        return [cast("UUID", job.get("id")) for job in jobs]

    async def get(self, job: UUID) -> Job:
        return Job(id=job, name="n", topic=TOPIC, status=Status.PENDING)

    async def stats(self, **_: object) -> Stats:
        self.looks += 1
        self.waiting = self.waiting if self.looks % 3 else 0
        return read(Stats, answers.stats(topics=[{"topic": TOPIC, "ready": self.waiting}], depth_age_s=0.0))


async def run(server: Counter, source: Source, topic: str | None = TOPIC, **options: Any) -> dict[str, Any]:
    """Pass the messages on; returns what it says at its end."""
    made = BridgeOptions("ship", topic, **options)
    with capture_logs() as logged, anyio.fail_after(END_S):
        await Bridge(source, cast("AsyncClient", server), made, stopping=source.stopping).run()
    return dict(logged[-1])


@pytest.mark.parametrize("topic", [TOPIC, None])
async def test_a_full_topic_gets_no_more(topic: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """One message tells that there are some, and which topic the handler has; then as many as there is room for."""
    monkeypatch.setattr(loop, "FULL_S", 0.0)
    server, source = Counter(), Source(anyio.Event(), [b"{}"] * 6)
    said = await run(server, source, topic, max_waiting=3)
    assert (said["jobs"], server.most) == (6, 3)
    assert source.pulled[:3] == [1, 2, 3]
    assert min(source.pulled) == 1


async def test_one_that_is_refused_is_refused_alone() -> None:
    server, source = Counter(), Source(anyio.Event(), [b"{}", b"{}", b'{"a": "bad"}', b"{}"])
    said = await run(server, source)
    assert (said["jobs"], said["refused"], server.waiting) == (3, 1, 3)
    assert sorted(source.answers) == [("ack", "S/0"), ("ack", "S/1"), ("ack", "S/3"), ("terminate", "S/2")]


@pytest.mark.parametrize("is_stopping", [True, False])
async def test_while_nobody_answers(monkeypatch: pytest.MonkeyPatch, *, is_stopping: bool) -> None:
    """Messages are kept, and submitted again; a bridge that is to end gives them back."""
    monkeypatch.setattr(loop, "PAUSES_S", (0.0,))
    source = Source(anyio.Event(), [b"{}"])
    server = Counter(NobodyAnswersError("away"))
    if is_stopping:
        submit = server.submit_many

        async def stop(jobs: Sequence[NewJob]) -> list[UUID]:
            source.stopping.set()
            return await submit(jobs)

        monkeypatch.setattr(server, "submit_many", stop)
    said = await run(server, source)
    assert (said["jobs"], said["given_back"]) == ((0, 1) if is_stopping else (1, 0))
    assert source.answers == [("nak", "S/0")] if is_stopping else [("extend", "S/0"), ("ack", "S/0")]
