"""RUNNING jobs when a dispatcher starts: which rows it ends, and which it charges."""

from __future__ import annotations

import os
from typing import Final

import anyio
import pytest

from pulse.store.rows import Ending, EndingKind
from pulse.store.store import Store
from pulse.system import processes
from pulse_actors.dispatcher.liveness import startup
from pulse_actors.dispatcher.liveness.startup import bury_forgotten, bury_late
from pulse_actors.shared.identity import Host, Peer, compose, this_host
from tests.support.store.helpers import Patch, Sql, forge, history, holding, read

pytestmark = pytest.mark.heavy

HERE: Final = this_host("here")
PID: Final = os.getpid()
GONE_PID: Final = 2**22 + 1  # above the largest pid_max
BEFORE: Final = "0123456789abcdef"
SWEEP_S: Final = 10.0


def worker(host: Host, pid: int = GONE_PID, start_time: int = 7) -> str:
    return compose(host, Peer(pid, 0, 0, start_time, host.pidns), "w")


DEAD: Final = worker(HERE)
ALIVE: Final = worker(HERE, PID, processes.start_time(PID))
EARLIER: Final = worker(Host("here", BEFORE, 1), 1)


async def seen(connection: Sql, host: str, boot: str, ago: str) -> None:
    sql = "INSERT INTO pulse.hosts (host, boot, pidns, seen_at) VALUES ($1, $2, 1, now() - $3::text::interval)"
    await connection.execute(sql, host, boot, ago)


async def test_what_cannot_be_running_is_given_back(store: Store, connection: Sql) -> None:
    """Rows of this host's dead processes, and of its boots that are over; no others."""
    void = [DEAD, worker(HERE, PID, 7), EARLIER]
    valid = [
        ALIVE,
        worker(Host("here", "t" * 16, 1)),  # a twin that was just seen
        worker(Host("here", "n" * 16, 1)),  # never seen
        worker(Host("there", BEFORE, 1)),
        worker(Host("here", HERE.boot, HERE.pidns + 1)),
        worker(Host("there", HERE.boot, HERE.pidns), PID, processes.start_time(PID)),
    ]
    rows = {one: await forge(connection, "RUNNING", locked_by=one) for one in (*void, *valid)}
    for host, boot, ago in (("here", BEFORE, "100 years"), ("here", "t" * 16, "3 s"), ("there", BEFORE, "100 years")):
        await seen(connection, host, boot, ago)
    assert await bury_forgotten(store, HERE, boot=True, sweep_s=SWEEP_S) == ([ALIVE], [])
    statuses = {one: (await read(connection, row))["status"] for one, row in rows.items()}
    assert statuses == dict.fromkeys(void, "PENDING") | dict.fromkeys(valid, "RUNNING")


async def test_who_is_no_worker_of_this_form(store: Store, connection: Sql) -> None:
    job = await forge(connection, "RUNNING", locked_by="somebody")
    assert await bury_forgotten(store, HERE, boot=True, sweep_s=SWEEP_S) == ([], [])
    assert (await read(connection, job))["status"] == "RUNNING"


@pytest.mark.parametrize("boot", [False, True])
async def test_a_restart_of_the_machine_is_charged_to_nobody(store: Store, connection: Sql, boot: bool) -> None:
    job = await forge(connection, "RUNNING", locked_by=EARLIER)
    await seen(connection, "here", BEFORE, "100 years")
    await bury_forgotten(store, HERE, boot=boot, sweep_s=SWEEP_S)
    (entry,) = await history(connection, job)
    assert (entry["outcome"], entry["error"]) == ("released", "worker process died: its machine was restarted")
    assert (await read(connection, job))["crashes"] == 0


async def test_at_the_start_of_the_whole_nobody_is_charged(store: Store, connection: Sql) -> None:
    """Everything was stopped: no job has caused those deaths."""
    job = await forge(connection, "RUNNING", locked_by=DEAD)
    await bury_forgotten(store, HERE, boot=True, sweep_s=SWEEP_S)
    row = await read(connection, job)
    assert (row["status"], row["uncharged"], row["crashes"]) == ("PENDING", 1, 0)


async def test_who_dies_beside_its_dispatcher_is_charged(store: Store, connection: Sql) -> None:
    """A job that takes the dispatcher down with its worker must not do so for ever."""
    job = await forge(connection, "RUNNING", locked_by=DEAD)
    await bury_forgotten(store, HERE, boot=False, sweep_s=SWEEP_S)
    row = await read(connection, job)
    assert (row["status"], row["uncharged"], row["crashes"]) == ("RETRYING", 1, 1)
    assert row["last_error"] == "worker process died: nobody saw how"


async def test_a_row_that_somebody_has_locked(store: Store, connection: Sql, dsn: str) -> None:
    """A dead worker's own transaction may hold it yet: all others end, and this one later."""
    locked, free = [await forge(connection, "RUNNING", locked_by=DEAD) for _ in range(2)]
    async with holding(dsn, "SELECT FROM pulse.jobs WHERE id = $1 FOR UPDATE", locked.hex()):
        living, left = await bury_forgotten(store, HERE, boot=False, sweep_s=SWEEP_S)
    assert living == []
    assert [(ending.id, ending.kind) for ending in left] == [(locked, EndingKind.CRASHED)]
    assert [(await read(connection, row))["status"] for row in (locked, free)] == ["RUNNING", "RETRYING"]


async def test_claims_that_were_committed_late(store: Store, connection: Sql, monkeypatch: Patch) -> None:
    """Of workers that are dead and unknown here: they were never handed out, and leave no trace."""
    monkeypatch.setattr(startup, "OTHERS_S", 0.0)
    known = worker(HERE, PID, 8)
    workers = [DEAD, known, ALIVE, EARLIER, worker(Host("there", BEFORE, 1)), "somebody"]
    rows = {one: await forge(connection, "RUNNING", locked_by=one) for one in workers}
    await bury_late(store, HERE, lambda identity: identity == known)
    statuses = {one: (await read(connection, row))["status"] for one, row in rows.items()}
    assert statuses == dict.fromkeys(workers, "RUNNING") | {DEAD: "PENDING"}
    assert await history(connection, rows[DEAD]) == []


async def test_another_supervisor_may_bury_its_own(store: Store, connection: Sql, monkeypatch: Patch) -> None:
    """It knows what had started: what it leaves behind for a while is ended here."""
    row = await forge(connection, "RUNNING", locked_by=DEAD)

    async def buried(_seconds: float) -> None:
        await store.end([Ending(row, 1, DEAD, EndingKind.CRASHED, "it saw how")])

    monkeypatch.setattr(anyio, "sleep", buried)
    await bury_late(store, HERE, lambda _: False)
    assert (await read(connection, row))["crashes"] == 1
