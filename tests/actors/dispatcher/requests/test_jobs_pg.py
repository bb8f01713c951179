"""An operator's retry against what a dispatcher can know of the last attempt: no job is run twice at once."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import AsyncIterator, Mapping
from typing import Final

import pytest
from anyio.abc import SocketStream

from pulse.protocol import ByIds
from pulse.security.redaction import Redaction
from pulse.store.rows import Claim
from pulse.store.store import Store
from pulse.system import processes
from pulse_actors.dispatcher.context import RequestContext, ServerInfo, Services
from pulse_actors.dispatcher.liveness.stack_requests import StackRequests
from pulse_actors.dispatcher.monitoring.answer import StatsReporter
from pulse_actors.dispatcher.monitoring.incidents import Incidents
from pulse_actors.dispatcher.requests.jobs import retry_jobs
from pulse_actors.dispatcher.workers.records import HeldJob, RegisteredWorker, WorkerFacts
from pulse_actors.dispatcher.workers.registry import WorkerRegistry
from pulse_actors.runtime.bus import Bus
from pulse_actors.shared.identity import Host, Peer, compose
from tests.support.store.claim_parts import claim_parts
from tests.support.store.helpers import TOPIC, Sql, forge

pytestmark = pytest.mark.heavy

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
async def context(store: Store) -> AsyncIterator[RequestContext]:
    """A dispatcher with nobody connected."""
    here, there = socket.socketpair()
    registry = WorkerRegistry()
    claims = claim_parts(store, registry, HOST, lease_s=30.0, poll_s=60.0, batch=500)
    with there:
        async with await SocketStream.from_socket(here) as stream:
            yield RequestContext(
                Services(
                    store=store,
                    registry=registry,
                    signal=claims.signal,
                    handout=claims.handout,
                    quarantine=claims.quarantine,
                    bus=Bus(stream),
                    host=HOST,
                    stacks=StackRequests(registry),
                    stats=StatsReporter(store, registry, claims.counters),
                    incidents=Incidents(store.incidents),
                    redaction=Redaction(None),
                    server=ServerInfo("here", 10.0, 30.0),
                )
            )


def connected(context: RequestContext) -> RegisteredWorker:
    """The living worker says hello."""
    worker = RegisteredWorker(WorkerFacts(ALIVE, "w", b"s", PID, 0, (TOPIC,), frozenset("n")), 10, Silent())
    context.services.registry.join(worker)
    return worker


async def test_a_claim_that_has_passed_it(context: RequestContext, connection: Sql) -> None:
    """Later work may be claimed before the retry is committed: the cursor goes back to when it is due."""
    later_s = time.time() + 60
    context.services.signal.cursors.claimed([Claim(bytes(16), 1, "n", TOPIC, "{}", None, 0, later_s, 0, 0)])
    identity = await forge(connection, "CANCELED")
    assert await retry(context, identity) == "done"
    (start,) = context.services.signal.cursors.starts([TOPIC])
    due_at = await connection.fetchval("SELECT next_run_at FROM pulse.jobs WHERE id = $1", identity.hex())
    assert start.from_s == pytest.approx(due_at.timestamp(), abs=0.01)
    assert start.from_s <= due_at.timestamp()


async def retry(context: RequestContext, identity: bytes) -> str:
    """What an operator hears of it."""
    answer = await retry_jobs(context, ByIds([identity]))
    if answer["done"]:
        assert answer == {"done": [identity], "refused": []}
        return "done"
    refused = answer["refused"]
    assert isinstance(refused, list)
    ((job, code),) = refused
    assert job == identity
    return str(code)


async def canceled(store: Store, connection: Sql, worker: str) -> bytes:
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
    context: RequestContext, store: Store, connection: Sql, worker: str, told: str
) -> None:
    """While its process lives on this host it may be running the canceled attempt; of others nothing is known."""
    assert await retry(context, await canceled(store, connection, worker)) == told


async def test_a_worker_that_came_back(context: RequestContext, store: Store, connection: Sql) -> None:
    """Once it is connected, what it holds decides."""
    identity = await canceled(store, connection, ALIVE)
    worker = connected(context)
    worker.held[identity, 1] = HeldJob("n", TOPIC)
    assert await retry(context, identity) == "conflict"
    worker.held.clear()
    assert await retry(context, identity) == "done"


async def test_an_attempt_that_was_not_canceled(context: RequestContext, connection: Sql) -> None:
    """A job that ended by a result has nobody who might still run it."""
    assert await retry(context, await forge(connection, "COMPLETED")) == "done"


async def test_one_that_still_runs(context: RequestContext, connection: Sql) -> None:
    """A RUNNING job is refused, whoever has it; a cancel that comes between the looks changes nothing of that."""
    assert await retry(context, await forge(connection, "RUNNING", locked_by=ALIVE)) == "conflict"
    assert await retry(context, await forge(connection, "RUNNING", locked_by=GONE)) == "invalid_transition"
