"""The one retry path: what follows an attempt that ended without success, and what is remembered of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import pytest

from pulse.protocol import HandlerInfo
from pulse.store.rows import Ended, Ending, EndingKind
from pulse.store.store import Store
from tests.support.store.helpers import NOW, TOPIC, WORKER, Sql, at, changes, fence, forge, history, read, remember

CHARGED: Final = (
    EndingKind.ERROR, EndingKind.RETRY, EndingKind.TIMEOUT, EndingKind.STALLED, EndingKind.LEASE_EXPIRED,
    EndingKind.SILENT,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """An attempt before its end, and the expected outcome."""

    kind: EndingKind
    attempts: int
    uncharged: int
    crashes: int
    given_s: float | None
    status: str
    delay_s: float
    uncharged_after: int
    crashes_after: int = 0

    def __str__(self) -> str:
        return f"{self.kind.value}-{self.attempts}-{self.uncharged}-{self.crashes}-{self.given_s}"


def _charged(kind: EndingKind) -> list[Case]:
    return [
        Case(kind, 1, 0, 0, None, "RETRYING", 1.0, 0),
        Case(kind, 3, 0, 0, None, "RETRYING", 9.0, 0),
        Case(kind, 4, 0, 0, 2.5, "RETRYING", 2.5, 0),
        Case(kind, 5, 0, 0, None, "DEAD_LETTERED", 25.0, 0),
        Case(kind, 6, 0, 0, None, "DEAD_LETTERED", 36.0, 0),
        Case(kind, 9, 5, 1, None, "RETRYING", 16.0, 5, 1),  # four tries count
        Case(kind, 10, 5, 1, 0.0, "DEAD_LETTERED", 0.0, 5, 1),
    ]


CASES: Final = [
    *(case for kind in CHARGED for case in _charged(kind)),
    # Discarded: dead at once, whatever the budget.
    Case(EndingKind.DISCARDED, 1, 0, 0, None, "DEAD_LETTERED", 1.0, 0),
    # Given back: counted in uncharged as well; due at once; PENDING only when no charged attempt lies behind it.
    Case(EndingKind.RELEASED, 1, 0, 0, None, "PENDING", 0.0, 1),
    Case(EndingKind.RELEASED, 4, 3, 0, None, "PENDING", 0.0, 4),
    Case(EndingKind.RELEASED, 4, 2, 0, None, "RETRYING", 0.0, 3),
    Case(EndingKind.RELEASED, 5, 0, 0, 5.0, "RETRYING", 5.0, 1),
    Case(EndingKind.RELEASED, 9, 0, 0, None, "RETRYING", 0.0, 1),
    # Given back before any worker saw it: the same.
    Case(EndingKind.UNASSIGNED, 1, 0, 0, None, "PENDING", 0.0, 1),
    Case(EndingKind.UNASSIGNED, 5, 0, 0, 5.0, "RETRYING", 5.0, 1),
    Case(EndingKind.UNASSIGNED, 6, 0, 0, None, "RETRYING", 0.0, 1),
    # Snoozed: the same, after the handler's own time.
    Case(EndingKind.SNOOZED, 1, 0, 0, 60.0, "PENDING", 60.0, 1),
    Case(EndingKind.SNOOZED, 5, 0, 0, 60.0, "RETRYING", 60.0, 1),
    # Crashed: a budget of its own (3), the first restart is immediate, never PENDING.
    Case(EndingKind.CRASHED, 1, 0, 0, None, "RETRYING", 0.0, 1, 1),
    Case(EndingKind.CRASHED, 2, 1, 1, None, "RETRYING", 1.0, 2, 2),
    Case(EndingKind.CRASHED, 3, 2, 2, None, "DEAD_LETTERED", 4.0, 3, 3),
    Case(EndingKind.CRASHED, 5, 0, 0, None, "RETRYING", 0.0, 1, 1),  # not the retry budget
    Case(EndingKind.CRASHED, 1, 0, 1, 7.0, "RETRYING", 7.0, 1, 2),
]


def _ending(identity: bytes, kind: EndingKind, attempt: int = 1, **fields: Any) -> Ending:
    return Ending(*fence(identity, attempt), kind)._replace(**fields)


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_what_becomes_of_it(store: Store, connection: Sql, case: Case) -> None:
    """Status, delay and both budgets follow from the outcome and the charged tries; the lease ends."""
    identity = await forge(
        connection, "RUNNING", attempts=case.attempts, uncharged=case.uncharged, crashes=case.crashes,
        lease_until=at(-1), priority=3, progress='"half"',
    )  # fmt: skip
    before = await read(connection, identity)
    ended = await store.end(
        [_ending(identity, case.kind, case.attempts, error="why", delay_s=case.given_s)], now=at(10)
    )
    dead = case.status == "DEAD_LETTERED"
    due_at = NOW if dead else at(10 + case.delay_s)
    assert ended == [Ended(identity, case.attempts, case.status, TOPIC, 3, case.delay_s, due_at.timestamp(), "n")]
    expected = {
        **before, "status": case.status, "next_run_at": due_at, "completed_at": at(10) if dead else None,
        "uncharged": case.uncharged_after, "crashes": case.crashes_after, "last_error": "why", "locked_by": None,
        "lease_until": None,
    }  # fmt: skip
    assert changes(expected, await read(connection, identity)) == {}


@pytest.mark.parametrize("kind", sorted(set(EndingKind) - {EndingKind.UNASSIGNED}), ids=str)
async def test_history(store: Store, connection: Sql, kind: EndingKind) -> None:
    identity = await forge(connection, "RUNNING", attempts=2, lease_until=at(-1), progress='{"done": 1}')
    used: dict[str, Any] = {"stack": "where", "cpu_s": 1.5, "peak_rss_bytes": 2**40}
    await store.end([_ending(identity, kind, 2, error="why", exit_code=-9, **used)], now=at(10))
    [row] = await history(connection, identity)
    row.pop("job_id")
    assert row == {
        "attempt": 2, "started_at": NOW, "ended_at": at(10),
        "outcome": "lease_expired" if kind is EndingKind.SILENT else kind.value, "worker": WORKER, "error": "why",
        "exit_code": -9, "progress": '{"done": 1}', **used,
    }  # fmt: skip


async def test_no_history_of_what_nobody_saw(store: Store, connection: Sql) -> None:
    unseen, seen = [await forge(connection, "RUNNING") for _ in range(2)]
    await store.end([_ending(unseen, EndingKind.UNASSIGNED), _ending(seen, EndingKind.RELEASED)])
    assert [len(await history(connection, identity)) for identity in (unseen, seen)] == [0, 1]


async def test_last_progress(store: Store, connection: Sql) -> None:
    """Progress that comes with the end is kept, in the row and in the history; without any the old one stays."""
    told, silent = [await forge(connection, "RUNNING", progress="0.1") for _ in range(2)]
    await store.end(
        [_ending(told, EndingKind.ERROR, error="why", progress="0.9"), _ending(silent, EndingKind.ERROR, error="why")]
    )
    for identity, progress in ((told, "0.9"), (silent, "0.1")):
        assert (await read(connection, identity))["progress"] == progress
        assert [row["progress"] for row in await history(connection, identity)] == [progress]


async def test_history_is_never_rewritten(store: Store, connection: Sql) -> None:
    identity = await forge(connection, "RUNNING")
    await remember(connection, identity, "expired")
    assert len(await store.end([_ending(identity, EndingKind.ERROR, error="why")])) == 1
    assert [row["outcome"] for row in await history(connection, identity)] == ["expired"]


async def test_no_error_keeps_the_last_one(store: Store, connection: Sql) -> None:
    identity = await forge(connection, "RUNNING", last_error="before")
    await store.end([_ending(identity, EndingKind.RELEASED)])
    assert (await read(connection, identity))["last_error"] == "before"
    assert [row["error"] for row in await history(connection, identity)] == [None]


async def test_the_database_clock_decides(store: Store, connection: Sql) -> None:
    identity = await forge(connection, "RUNNING")
    await store.end([_ending(identity, EndingKind.ERROR, error="why", delay_s=60.0)])
    left_s = await connection.fetchval("SELECT extract(epoch FROM next_run_at - clock_timestamp()) FROM pulse.jobs")
    assert 55 < left_s <= 60


@pytest.mark.parametrize(
    ("handler", "topic", "default", "most"),
    [(2, 4, 5, 2), (None, 4, 5, 4), (None, None, 5, 5)],
    ids=["handler", "topic", "server"],
)
async def test_the_crash_budget_is_resolved(
    store: Store, connection: Sql, handler: int | None, topic: int | None, default: int, most: int
) -> None:
    """max_crashes is the handler's, else the topic's, else the server's, when the worker dies."""
    await store.note_handlers({"n": HandlerInfo(max_crashes=handler), "m": HandlerInfo(max_crashes=1)})
    await connection.execute("INSERT INTO pulse.topics VALUES ($1, NULL, $2), ('other', NULL, 1)", TOPIC, topic)
    await store.set_server_defaults(5, default)
    survivor = await forge(connection, "RUNNING", crashes=most - 2)
    culprit = await forge(connection, "RUNNING", crashes=most - 1)
    ended = await store.end([_ending(one, EndingKind.CRASHED, error="died") for one in (survivor, culprit)])
    assert {one.id: one.status for one in ended} == {survivor: "RETRYING", culprit: "DEAD_LETTERED"}


async def test_who_wants_to_know_of_dead_letters_and_crashes(store: Store, connection: Sql) -> None:
    """A job tells of each, in the same statement; of nothing else, and not of handlers that do not ask."""
    await store.note_handlers({"n": HandlerInfo(on_dead_letter="dead", on_crash="crash"), "m": HandlerInfo()})
    ends = [
        ("n", EndingKind.ERROR, 1, ["dead"]), ("n", EndingKind.ERROR, 2, []), ("n", EndingKind.CRASHED, 2, ["crash"]),
        ("n", EndingKind.DISCARDED, 2, ["dead"]), ("n", EndingKind.RELEASED, 1, []), ("m", EndingKind.DISCARDED, 1, []),
    ]  # fmt: skip
    for name, kind, max_attempts, told in ends:
        job = await forge(connection, "RUNNING", name=name, topic="its own", priority=7, max_attempts=max_attempts)
        await store.end([Ending(job, 1, WORKER, kind, "why")])
        rows = await connection.fetch("DELETE FROM pulse.jobs WHERE name IN ('dead', 'crash') RETURNING *")
        assert [row["name"] for row in rows] == told
        for row in rows:
            assert (row["topic"], row["priority"], row["status"]) == ("its own", 7, "PENDING")
            assert json.loads(row["args"])["job"] == {
                "id": str(UUID(bytes=job)), "name": name, "topic": "its own", "attempt": 1, "outcome": kind.value,
                "error": "why",
            }  # fmt: skip
    late = await forge(
        connection, name="n", topic="its own", priority=7, expires_at=datetime.now(UTC) - timedelta(seconds=1)
    )
    await forge(connection, name="m", expires_at=datetime.now(UTC) - timedelta(seconds=1))
    assert len(await store.expire(10)) == 2
    (row,) = await connection.fetch("SELECT * FROM pulse.jobs WHERE name = 'dead'")
    told_of = json.loads(row["args"])["job"]
    assert (told_of["id"], told_of["outcome"]) == (str(UUID(bytes=late)), "expired")
    assert (row["topic"], row["priority"], told_of["attempt"]) == ("its own", 7, 0)
