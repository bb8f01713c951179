"""An operator's retry against what a dispatcher can know of the last attempt: no job is run twice at once."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Final

import pytest
from anyio.abc import SocketStream

from pulse.protocol import ByIds
from pulse.security.redaction import Redaction
from pulse.store.rows import Claim
from pulse.store.store import Store
from pulse.system import processes
from pulse_actors.dispatcher.claims.loop import Claims
from pulse_actors.dispatcher.liveness.stack_requests import Stacks
from pulse_actors.dispatcher.monitoring.answer import Stats
from pulse_actors.dispatcher.monitoring.incidents import Incidents
from pulse_actors.dispatcher.requests.jobs import retry_jobs
from pulse_actors.dispatcher.services import Desktop
from pulse_actors.dispatcher.workers.registry import Desk, Held, Worker
from pulse_actors.runtime.bus import Bus
from pulse_actors.shared.identity import Host, Peer, compose
from tests.store.helpers import TOPIC, forge

if TYPE_CHECKING:
    from asyncpg import Connection, Record

pytestmark = [pytest.mark.anyio, pytest.mark.postgres, pytest.mark.heavy]

HOST: Final = Host("here", "boot", 1)
PID: Final = os.getpid()
ALIVE: Final = compose(HOST, Peer(PID, 0, 0, processes.start_time(PID), HOST.pidns), "w")
GONE: Final = compose(HOST, Peer(PID, 0, 0, processes.start_time(PID) + 1, HOST.pidns), "w")
ELSEWHERE: Final = compose(Host("there", "boot", 1), Peer(PID, 0, 0, processes.start_time(PID), 1), "w")


class Silent:
    """Takes frames and sends none."""

    backlog_bytes = 0

    def send(self, kind: str, request: int | None, body: Mapping[str, object]) -> None:
        """Nobody reads it."""

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
async def desktop(store: Store) -> AsyncIterator[Desktop]:
    """A dispatcher's desk, with nobody connected."""
    here, there = socket.socketpair()
    desk = Desk()
    claims = Claims(store, desk, HOST, lease_s=30.0, poll_s=60.0, batch=500)
    with there:
        async with await SocketStream.from_socket(here) as stream:
            yield Desktop(
                store,
                desk,
                claims,
                Bus(stream),
                HOST,
                Stacks(desk),
                Stats(store, desk),
                Incidents(store.incidents),
                10.0,
                Redaction(None),
            )


def connected(desktop: Desktop) -> Worker:
    """The living worker says hello."""
    worker = Worker(ALIVE, "w", b"s", PID, 0, (TOPIC,), frozenset("n"), 10, Silent())
    desktop.desk.join(worker)
    return worker


async def test_a_claim_that_has_passed_it(desktop: Desktop, connection: Connection[Record]) -> None:
    """Later work may be claimed before the retry is committed: the cursor goes back to when it is due."""
    later_s = time.time() + 60
    desktop.claims._cursors.claimed([Claim(bytes(16), 1, "n", TOPIC, "{}", None, 0, later_s, 0, 0)])
    identity = await forge(connection, "CANCELED")
    assert await retry(desktop, identity) == "done"
    (start,) = desktop.claims._cursors.starts([TOPIC])
    due_at = await connection.fetchval("SELECT next_run_at FROM pulse.jobs WHERE id = $1", identity.hex())
    assert start.from_s == pytest.approx(due_at.timestamp(), abs=0.01)
    assert start.from_s <= due_at.timestamp()


async def retry(desktop: Desktop, identity: bytes) -> str:
    """What an operator hears of it."""
    answer = await retry_jobs(desktop, ByIds([identity]))
    if answer["done"]:
        assert answer == {"done": [identity], "refused": []}
        return "done"
    refused = answer["refused"]
    assert isinstance(refused, list)
    ((job, code),) = refused
    assert job == identity
    return str(code)


async def canceled(store: Store, connection: Connection[Record], worker: str) -> bytes:
    """A job that was canceled while *worker* had it."""
    identity = await forge(connection, "RUNNING", locked_by=worker)
    assert [job.id for job in await store.cancel([identity])] == [identity]
    return identity


@pytest.mark.parametrize(
    ("worker", "told"),
    [(ALIVE, "conflict"), (GONE, "done"), (ELSEWHERE, "done"), ("made up", "done")],
    ids=["alive", "gone", "elsewhere", "made up"],
)
async def test_a_worker_that_is_not_connected(
    desktop: Desktop, store: Store, connection: Connection[Record], worker: str, told: str
) -> None:
    """While its process lives on this host it may be running the canceled attempt; of others nothing is known."""
    assert await retry(desktop, await canceled(store, connection, worker)) == told


async def test_a_worker_that_came_back(desktop: Desktop, store: Store, connection: Connection[Record]) -> None:
    """Once it is connected, what it holds decides."""
    identity = await canceled(store, connection, ALIVE)
    worker = connected(desktop)
    worker.held[identity, 1] = Held("n", TOPIC)
    assert await retry(desktop, identity) == "conflict"
    worker.held.clear()
    assert await retry(desktop, identity) == "done"


async def test_an_attempt_that_was_not_canceled(desktop: Desktop, connection: Connection[Record]) -> None:
    """A job that ended by a result has nobody who might still run it."""
    assert await retry(desktop, await forge(connection, "COMPLETED")) == "done"


async def test_one_that_still_runs(desktop: Desktop, connection: Connection[Record]) -> None:
    """A RUNNING job is refused, whoever has it; a cancel that comes between the looks changes nothing of that."""
    assert await retry(desktop, await forge(connection, "RUNNING", locked_by=ALIVE)) == "conflict"
    assert await retry(desktop, await forge(connection, "RUNNING", locked_by=GONE)) == "invalid_transition"
