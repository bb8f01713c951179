"""The way out, in one process: what is taken, published, forgotten, or waits. With NATS: test_outbox_system.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast
from uuid import UUID

import anyio
import pytest
from structlog.testing import capture_logs

from pulse.bridge import outbox
from pulse.bridge.outbox import MOST_RESULT_BYTES, Publisher, SubjectTemplate
from pulse.client.async_client import AsyncClient
from pulse.errors import ForbiddenError, InternalError, NobodyAnswersError, PulseError, UnavailableError

pytestmark = pytest.mark.anyio

TRACE: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
END_S: Final = 10.0


def end(number: int, topic: str = "orders", **more: object) -> dict[str, object]:
    job = UUID(int=number).bytes
    return {"job": job, "ended_at": number, "attempt": 1, "status": "COMPLETED", "topic": topic, "name": "n", **more}


class Shelf:
    """A broker, which stores nothing of the topic `refused`."""

    def __init__(self, max_bytes: int = 1_000_000) -> None:
        self.is_there = True
        self.max_bytes = max_bytes
        self.stored: list[tuple[str, Mapping[str, str]]] = []

    async def publish(self, subject: str, message_id: str, data: bytes, headers: Mapping[str, str]) -> None:
        assert message_id.encode()[:36] in data
        if subject == "refused":
            raise UnavailableError("nobody takes it")
        self.stored.append((subject, headers))


class Desk:
    """A server with some ends; it asks to stop when they are gone. *failures*: what it answers first."""

    def __init__(
        self, stopping: anyio.Event, *ends: dict[str, object], failures: list[PulseError] | None = None
    ) -> None:
        self.stopping = stopping
        self.ends = list(ends)
        self.failures = failures or []
        self.asked: list[tuple[str, Any]] = []

    async def request(self, kind: str, body: Mapping[str, Any], *, repeatable: bool) -> Mapping[str, object]:
        assert repeatable
        self.asked.append((kind, body))
        if self.failures:
            raise self.failures.pop(0)
        if kind == "outbox.done":
            return {"gone": len(body["ends"])}
        taken, self.ends = self.ends[:2], self.ends[2:]
        if not taken:
            self.stopping.set()
        return {"ends": taken}


async def run(desk: Desk, shelf: Shelf) -> list[Any]:
    """Publish until it ends; returns what was logged."""
    publisher = Publisher(shelf, cast("AsyncClient", desk), SubjectTemplate("{topic}"), stopping=desk.stopping)
    with capture_logs() as logged, anyio.fail_after(END_S):
        await publisher.run()
    return logged


async def test_ends_are_published_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """One batch after the other, without a pause; then it looks again until it is to stop."""
    monkeypatch.setattr(outbox, "IDLE_S", 10 * END_S)
    desk, shelf = Desk(anyio.Event(), end(1), end(2, traceparent=TRACE), end(3)), Shelf()
    logged = await run(desk, shelf)
    take = ("outbox.take", {"limit": 100, "lease_s": 30.0, "result_bytes": 967_232})
    forgotten = [[(UUID(int=number).bytes, number) for number in some] for some in ((1, 2), (3,))]
    first, second = [("outbox.done", {"ends": some}) for some in forgotten]
    assert desk.asked == [take, first, take, second, take]
    assert shelf.stored == [("orders", {}), ("orders", {"traceparent": TRACE}), ("orders", {})]
    assert logged == [{"event": "outbox_stopped", "published": 3, "log_level": "info"}]


async def test_what_the_broker_refuses_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are forgotten; it pauses before it takes more."""
    monkeypatch.setattr(outbox, "IDLE_S", 0.0)
    desk = Desk(anyio.Event(), end(1, "refused"), end(2), end(3, "refused"))
    logged = await run(desk, Shelf())
    assert [body["ends"] for kind, body in desk.asked if kind == "outbox.done"] == [[(UUID(int=2).bytes, 2)]]
    failed = {"event": "outbox_publish_failed", "log_level": "warning", "messages": 1, "again_s": 30.0}
    assert [{**failed, "error": "refused: nobody takes it"}] * 2 == logged[:2]
    assert logged[2]["published"] == 1
    monkeypatch.setattr(outbox, "IDLE_S", 10 * END_S)
    desk = Desk(anyio.Event(), end(1, "refused"), end(2), end(3))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, desk, Shelf())
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert [kind for kind, _ in desk.asked] == ["outbox.take", "outbox.done"]


@pytest.mark.parametrize("error", [NobodyAnswersError("no"), UnavailableError("no"), InternalError("no")], ids=repr)
async def test_a_server_that_is_away(error: PulseError, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked again, whatever was asked; until it is to stop."""
    monkeypatch.setattr(outbox, "AGAIN_S", 0.0)
    desk = Desk(anyio.Event(), end(1), failures=[error])
    logged = await run(desk, Shelf())
    assert [kind for kind, _ in desk.asked] == ["outbox.take", "outbox.take", "outbox.done", "outbox.take"]
    assert logged[0] == {"event": "outbox_waits", "error": "no", "again_s": 0.0, "log_level": "warning"}
    desk = Desk(anyio.Event(), end(1), failures=[error])
    desk.stopping.set()
    publisher = Publisher(Shelf(), cast("AsyncClient", desk), SubjectTemplate("{topic}"), stopping=desk.stopping)
    assert await publisher._take() == []
    with pytest.raises(ForbiddenError):
        await run(Desk(anyio.Event(), failures=[ForbiddenError("not allowed")]), Shelf())


async def test_a_broker_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is taken meanwhile."""
    monkeypatch.setattr(outbox, "IDLE_S", 0.0)
    desk, shelf = Desk(anyio.Event(), end(1)), Shelf()
    shelf.is_there = False
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, desk, shelf)
        await anyio.wait_all_tasks_blocked()
        assert desk.asked == []
        shelf.is_there = True
    assert len(shelf.stored) == 1


@pytest.mark.parametrize(("max_bytes", "most"), [
    (20_000, 0), (32_769, 1), (MOST_RESULT_BYTES + 32_768, MOST_RESULT_BYTES), (10**9, MOST_RESULT_BYTES),
])  # fmt: skip
async def test_how_long_a_result_may_be(max_bytes: int, most: int) -> None:
    desk = Desk(anyio.Event())
    await run(desk, Shelf(max_bytes))
    assert desk.asked[0][1]["result_bytes"] == most
