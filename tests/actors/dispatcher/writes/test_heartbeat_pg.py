"""Heartbeats: which leases they extend, and which attempts the answers call lost."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from pulse.protocol import CLAIM_MAX_BYTES, Beat
from pulse.store.store import Store
from pulse_actors.dispatcher.workers.records import RegisteredWorker
from pulse_actors.dispatcher.writes.batcher import ROW_BYTES
from pulse_actors.dispatcher.writes.heartbeat import HeartbeatWriter, PendingHeartbeat, _weight, may_speak_for
from pulse_actors.shared import identity as identities
from pulse_actors.shared.identity import Host
from tests.support.store.helpers import Patch, Sql, forge, holding, new_id, read
from tests.support.store.recovery_kit import HOST, LEASE_S, Floor, Process, Wire, ago, identity_of, new_worker

pytestmark = pytest.mark.heavy

AT_S: Final = 1e6
USER: Final = 12345  # a uid that owns nothing here


class Ward(Floor):
    def __init__(self, store: Store, connection: Sql) -> None:
        super().__init__(store, connection)
        self.dropped: list[Any] = []
        self.leases = HeartbeatWriter(store, self.registry, HOST, self.claims.counters, lease_s=LEASE_S)

    def join(self, identity: str, pid: int = 0, uid: int = 0) -> RegisteredWorker:
        """A worker comes, after a long silence."""
        worker = new_worker(identity, pid, uid=uid)
        worker.contact.heard_s = worker.contact.beaten_s = 0.0
        self.registry.join(worker)
        return worker

    async def job(self, identity: str) -> bytes:
        return await forge(self.connection, "RUNNING", locked_by=identity, lease_until=ago(-5))

    async def beat(
        self, worker: str, jobs: Sequence[Beat] | None = None, *, session: bytes | None = None, uid: int | None = 0
    ) -> list[Any]:
        """One heartbeat; its lost attempts."""
        wire = Wire()
        await self.leases._beat([PendingHeartbeat(wire, 1, uid, worker, session, jobs, AT_S)])
        ((kind, number, body),) = wire.sent
        assert (kind, number) == ("beat", 1)
        lost: list[Any] = body["lost"]
        return lost

    async def save(self, *beats: Beat) -> list[Any]:
        """Checkpoints of the worker "w"; its lost attempts."""
        wire = Wire()
        await self.leases._save([PendingHeartbeat(wire, 1, 0, "w", None, beats, AT_S)])
        ((kind, _, body),) = wire.sent
        assert kind == "beat"
        self.dropped = body.get("dropped", [])
        lost: list[Any] = body["lost"]
        return lost

    async def extended(self, job: bytes) -> bool:
        until: datetime = (await read(self.connection, job))["lease_until"]
        return until - datetime.now(UTC) > timedelta(seconds=LEASE_S - 5)


@pytest.fixture
def ward(store: Store, connection: Sql) -> Ward:
    return Ward(store, connection)


async def test_a_worker_extends_what_it_lists(ward: Ward) -> None:
    """And nothing else; what it no longer holds is lost."""
    worker = ward.join("w")
    listed, unlisted, foreign = await ward.job("w"), await ward.job("w"), await ward.job("v")
    worker.held[listed, 1] = worker.held[unlisted, 1] = object()  # type: ignore[assignment]
    with capture_logs() as logs:
        assert await ward.beat("w", [Beat(listed, 1), Beat(foreign, 1)]) == [(foreign, 1)]
    assert [await ward.extended(job) for job in (listed, unlisted, foreign)] == [True, False, False]
    assert [entry["count"] for entry in logs if entry["event"] == "leases_lost"] == [1]
    assert worker.contact.extended_s == AT_S


async def test_a_result_that_overtakes_a_heartbeat_is_no_loss(ward: Ward, monkeypatch: Patch) -> None:
    """Its own worker hears nothing of a job that completes meanwhile; another one hears that it is lost."""
    worker = ward.join("w")
    done, reported, lost = (new_id() for _ in range(3))
    for job in (done, reported, lost):
        worker.held[job, 1] = object()  # type: ignore[assignment]
    ward.registry.reporting.add((done, 1))
    extend = ward.store.extend

    async def overtaken(*args: Any) -> set[Any]:
        worker.held.pop((done, 1))
        ward.registry.reporting.clear()
        ward.registry.reporting.add((reported, 1))
        return await extend(*args)

    monkeypatch.setattr(ward.store, "extend", overtaken)
    with capture_logs() as logs:
        assert len(await ward.beat("w", [Beat(job, 1) for job in (done, reported, lost)])) == 3
        monkeypatch.undo()
        assert len(await ward.beat("w", [Beat(reported, 1)])) == 1
    assert [entry["count"] for entry in logs] == [1]


async def test_a_job_that_its_handler_has_completed_is_no_loss(ward: Ward) -> None:
    """By a fenced transaction: the handler goes on for a while. Completed by another attempt it is lost."""
    ward.join("w")
    own = await forge(ward.connection, "COMPLETED", attempts=1, ran_by="w")
    foreign = await forge(ward.connection, "COMPLETED", attempts=2, ran_by="v")
    with capture_logs() as logs:
        assert await ward.beat("w", [Beat(own, 1), Beat(foreign, 1)]) == [(foreign, 1)]
    assert [entry["count"] for entry in logs if entry["event"] == "leases_lost"] == [1]


async def test_where_nothing_is_lost_nothing_is_said(ward: Ward) -> None:
    """An empty heartbeat still counts."""
    worker = ward.join("w")
    with capture_logs() as logs:
        assert await ward.beat("w", []) == []
    assert logs == []
    assert worker.contact.extended_s == AT_S
    worker.contact.extended_s = AT_S + 1
    await ward.beat("w", [])
    assert worker.contact.extended_s == AT_S + 1  # an older one that came to its end later


async def test_a_checkpoint_extends_no_lease(ward: Ward) -> None:
    """Nor does it hide that one has lapsed."""
    worker, job = ward.join("w"), await ward.job("w")
    before_s = worker.contact.extended_s
    assert await ward.save(Beat(job, 1, "1")) == []
    assert not await ward.extended(job)
    assert worker.contact.extended_s == before_s


async def test_a_checkpoint_of_a_locked_row_is_to_be_sent_again(ward: Ward, dsn: str) -> None:
    """Its handler may wait until the server has it; those of other frames are kept."""
    ward.join("w")
    locked, free = await ward.job("w"), await ward.job("w")
    wires = {job: Wire() for job in (locked, free)}
    beats = [PendingHeartbeat(wire, 1, 0, "w", None, [Beat(job, 1, "1")], AT_S) for job, wire in wires.items()]
    async with holding(dsn, f"SELECT FROM pulse.jobs WHERE id = '{UUID(bytes=locked)}' FOR UPDATE"):
        await ward.leases._save(beats)
    assert [wire.sent[0][2] for wire in wires.values()] == [{"lost": [], "kept": False}, {"lost": []}]
    assert [(await read(ward.connection, job))["checkpoint"] for job in (locked, free)] == [None, "1"]


async def test_a_text_that_prints_too_long_is_not_kept(ward: Ward) -> None:
    """PostgreSQL writes all digits of a number: such a progress or checkpoint is dropped; the lease is extended."""
    ward.join("w")
    told, fit, saved = await ward.job("w"), await ward.job("w"), await ward.job("w")
    huge = f"[{'1e131071, ' * (CLAIM_MAX_BYTES // 131_072 + 1)}1]"
    with capture_logs() as logs:
        assert await ward.beat("w", [Beat(told, 1, huge), Beat(fit, 1, "[1e131071]")]) == []
        assert await ward.save(Beat(saved, 1, huge), Beat(fit, 1, "2")) == []
    assert ward.dropped == [(saved, 1)]
    assert [entry["event"] for entry in logs] == ["progress_not_storable", "checkpoint_not_storable"]
    assert [await ward.extended(job) for job in (told, fit, saved)] == [True, True, False]
    sql = "SELECT octet_length(progress::text), checkpoint::text FROM pulse.jobs WHERE id = $1"
    rows = [await ward.connection.fetchrow(sql, UUID(bytes=job)) for job in (told, fit, saved)]
    assert [tuple(row or ()) for row in rows] == [(None, None), (131_074, "2"), (None, None)]


async def test_a_text_that_cannot_be_stored_is_not_kept(ward: Ward) -> None:
    """Progress is left out of the renewal, a checkpoint is dropped; neither is lost to its worker, others are kept."""
    ward.join("w")
    bad, good = await ward.job("w"), await ward.job("w")
    beats = [Beat(bad, 1, "NaN"), Beat(good, 1, "0.5")]
    assert await ward.beat("w", beats) == []
    assert await ward.save(*beats) == []
    assert ward.dropped == [(bad, 1)]
    assert [await ward.extended(job) for job in (bad, good)] == [True, True]
    rows = [await read(ward.connection, job) for job in (bad, good)]
    assert [(row["progress"], row["checkpoint"]) for row in rows] == [(None, None), ("0.5", "0.5")]


async def test_a_worker_that_lists_nothing_at_all(ward: Ward) -> None:
    """Without a list, all its attempts are extended; without such a worker, none."""
    worker, job, gone = ward.join("w"), await ward.job("w"), await ward.job("gone")
    worker.held[job, 1] = object()  # type: ignore[assignment]
    assert await ward.beat("w") == []
    assert await ward.beat("gone") == []
    assert [await ward.extended(one) for one in (job, gone)] == [True, False]


async def test_a_parent_beats_for_its_child(ward: Ward) -> None:
    """All leases of that session, of the same user or by root, and it counts as a beat of the child."""
    child, job = ward.join("child", uid=USER), await ward.job("child")
    child.held[job, 1] = object()  # type: ignore[assignment]
    assert await ward.beat("parent", session=child.facts.session, uid=USER + 1) == []
    assert not await ward.extended(job)
    assert child.contact.heard_s == 0.0
    began_s = time.monotonic()
    assert await ward.beat("parent", session=child.facts.session, uid=USER) == []
    assert await ward.extended(job)
    assert min(child.contact.heard_s, child.contact.beaten_s) >= began_s
    assert child.contact.said_s == float("inf")  # nothing itself
    await forge(ward.connection)
    child.contact.heard_s = 0.0
    await ward.beat("parent", session=child.facts.session, uid=0)
    assert child.contact.heard_s > 0.0


async def test_a_parent_beats_for_a_child_that_has_not_come_back(ward: Ward, living: Process) -> None:
    """The leases identify it: by its session, and by the user of its process, which lives."""
    identity = identity_of(living.pid)
    job, other = await ward.job(identity), await ward.job("somebody")
    session = new_worker(identity).facts.session
    assert await ward.beat("parent", session=session, uid=os.geteuid() + 1) == []
    assert not await ward.extended(job)
    assert await ward.beat("parent", session=session, uid=os.geteuid()) == []
    assert [await ward.extended(one) for one in (job, other)] == [True, False]


@pytest.mark.parametrize("where", ["strangers", "away"])
async def test_the_word_of_a_parent_counts_for_who_is_not_connected(ward: Ward, where: str, living: Process) -> None:
    """A watched worker is not silent as long as its parent sees it at work, with the database or without."""
    identity = identity_of(living.pid)
    worker = new_worker(identity, living.pid, uid=os.geteuid())
    worker.contact.beaten_s = 0.0
    getattr(ward.registry, where)[identity] = worker
    job, unheld = await ward.job(identity), await ward.job(identity)
    worker.held[job, 1] = object()  # type: ignore[assignment]
    await ward.beat("parent", session=worker.facts.session, uid=os.geteuid() + 1)
    assert worker.contact.beaten_s == 0.0
    assert not await ward.extended(job)
    await ward.beat("parent", session=worker.facts.session, uid=os.geteuid())
    assert worker.contact.beaten_s > 0.0
    assert worker.contact.extended_s == AT_S
    assert [await ward.extended(one) for one in (job, unheld)] == [True, False]


async def test_a_session_of_nobody_extends_nothing(ward: Ward) -> None:
    job = await ward.job("w")
    assert await ward.beat("parent", session=bytes(16)) == []
    assert not await ward.extended(job)


async def test_sessions_of_nobody_cost_one_look(ward: Ward, monkeypatch: Patch, living: Process) -> None:
    """For any number at once: else made-up sessions would delay all other heartbeats."""
    identity = identity_of(living.pid)
    job = await ward.job(identity)
    session = new_worker(identity).facts.session
    looks: list[str] = []
    for name in ("running_workers", "running_of"):
        monkeypatch.setattr(ward.store, name, counted(getattr(ward.store, name), looks))
    made_up = [os.urandom(16) for _ in range(50)]
    wire = Wire()
    await ward.leases._beat(
        [PendingHeartbeat(wire, 1, os.geteuid(), "p", one, None, AT_S) for one in (session, *made_up, session)]
    )
    assert [body["lost"] for _, _, body in wire.sent] == [[]] * 52
    assert await ward.extended(job)
    assert looks == ["running_workers", "running_of"]


def counted(ask: Callable[..., Any], looks: list[str]) -> Callable[..., Any]:
    async def asked(*args: Any) -> Any:
        looks.append(ask.__name__)
        return await ask(*args)

    return asked


async def test_a_session_over_tcp_is_nobodys_of_here(ward: Ward) -> None:
    """There a worker may claim any session: a session of a local worker is not among its words."""
    local, job = ward.join("local", uid=USER), await ward.job("local")
    local.held[job, 1] = object()  # type: ignore[assignment]
    mine = identities.compose_remote("eve", local.facts.session, "w")
    eve = new_worker(mine, 0)
    eve.facts = replace(eve.facts, session=local.facts.session, source="10.0.0.9:1", uid=None)
    remote_job = await ward.job(mine)
    eve.held[remote_job, 1] = object()  # type: ignore[assignment]
    ward.registry.join(eve)
    assert await ward.beat("parent", session=local.facts.session, uid=USER) == []
    assert [await ward.extended(one) for one in (job, remote_job)] == [True, False]
    assert await ward.beat("child", session=local.facts.session, uid=None) == []
    assert await ward.extended(remote_job)
    ward.registry.leave(eve)
    assert ward.registry.by_session(local.facts.session, remote=False) is local


async def test_a_worker_over_tcp_that_has_not_come_back(ward: Ward) -> None:
    """Its secret session identifies its leases; its public mark does not."""
    session = identities.new_session()
    identity = identities.compose_remote("ann", session, "w")
    job = await ward.job(identity)
    for wrong, uid in ((bytes.fromhex(identities.mark_of(session)), None), (session, 0)):
        await ward.beat("parent", session=wrong, uid=uid)
        assert not await ward.extended(job)
    await ward.beat("parent", session=session, uid=None)
    assert await ward.extended(job)


async def test_a_session_of_another_boot_stands_for_nobody(ward: Ward, living: Process) -> None:
    identity = identity_of(living.pid)
    job = await ward.job(identity)
    elsewhere = HeartbeatWriter(
        ward.store, ward.registry, Host(HOST.id, "other", HOST.pidns), ward.claims.counters, lease_s=LEASE_S
    )
    wire = Wire()
    session = new_worker(identity).facts.session
    await elsewhere._beat([PendingHeartbeat(wire, 1, os.geteuid(), "parent", session, None, AT_S)])
    assert not await ward.extended(job)


def test_what_a_heartbeat_weighs() -> None:
    job, long = Beat(bytes(16), 1), Beat(bytes(16), 1, "x" * 2 * ROW_BYTES)
    beats = [PendingHeartbeat(Wire(), 1, 0, "w", None, jobs, AT_S) for jobs in (None, [], [job] * 3, [job, long])]
    assert [_weight(beat) for beat in beats] == [1, 1, 4, 5]


async def test_who_may_speak_for_whom() -> None:
    """The account of a local worker, and root; over TCP every peer that knows the session; neither for the other."""
    local, remote = "h/b/1/7.8/w", "tcp:ann/0/w"
    asked: list[tuple[int | None, str, int | None]] = [
        (1000, local, 1000), (0, local, 1000), (1001, local, 1000), (None, local, 1),
    ]  # fmt: skip
    assert [may_speak_for(*one) for one in asked] == [True, True, False, False]
    asked = [(None, remote, None), (0, remote, None), (1000, remote, None)]
    assert [may_speak_for(*one) for one in asked] == [True, False, False]
