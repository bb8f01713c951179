"""An operator's retry or delete against a dispatcher's knowledge of the last attempt: no job runs twice at once."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import pytest

from pulse.errors import BadRequestError, ConflictError, NotFoundError
from pulse.protocol import (
    ById,
    HandlerSignal,
    JobsChange,
    JobsFind,
    JobsParents,
    JobsWithDependents,
    WorkerRequest,
)
from pulse.protocol.answers import JobInfo, part, read
from pulse.store.rows import Claim
from pulse.store.store import Store
from pulse.system import processes
from pulse_actors.dispatcher.context import Answer, RequestContext
from pulse_actors.dispatcher.requests.jobs import (
    cancel_jobs,
    change_jobs,
    delete_jobs,
    find_jobs,
    get_job,
    graph_of_job,
    list_parents,
    next_signal,
    retry_jobs,
    take_stack,
    why_job,
)
from pulse_actors.dispatcher.requests.table import drain_worker
from pulse_actors.dispatcher.workers.records import HeldJob
from pulse_actors.shared.identity import Host, Peer, compose
from tests.actors.dispatcher.net.test_session_pg import Lobby
from tests.support.store.helpers import TERMINAL, TOPIC, Sql, forge, new_id
from tests.support.store.recovery_kit import HOST, identity_of, new_worker

pytestmark = pytest.mark.heavy

Change: TypeAlias = Callable[[RequestContext, JobsWithDependents], Awaitable[Answer]]

PID: Final = os.getpid()
ALIVE: Final = identity_of(PID)
GONE: Final = compose(HOST, Peer(PID, 0, 0, processes.start_time(PID) + 1, HOST.pidns), "w")
ELSEWHERE: Final = compose(Host("there", "boot", 1), Peer(PID, 0, 0, processes.start_time(PID), 1), "w")


@pytest.fixture
def context(store: Store, connection: Sql) -> RequestContext:
    return RequestContext(Lobby(store, connection).services())


async def code(context: RequestContext, identity: bytes, change: Change = retry_jobs) -> str:
    answer = await change(context, JobsWithDependents([identity]))
    if (answer["done"], answer["refused"]) == ([identity], []):
        return "done"
    refused = answer["refused"]
    assert isinstance(refused, list)
    ((job, refusal),) = refused
    assert (job, answer["done"]) == (identity, [])
    return str(refusal)


async def canceled(store: Store, connection: Sql, worker: str) -> bytes:
    identity = await forge(connection, "RUNNING", locked_by=worker)
    assert [job.id for job in await store.cancel([identity])] == [identity]
    return identity


async def test_a_claim_that_has_passed_it(context: RequestContext, connection: Sql) -> None:
    """Later work may be claimed before the retry is committed: the cursor goes back to when it is due."""
    later_s = time.time() + 60
    context.services.signal.cursors.claimed([Claim(bytes(16), 1, "n", TOPIC, "{}", None, 0, later_s, 0, 0)])
    identity = await forge(connection, "CANCELED")
    assert await code(context, identity) == "done"
    (start,) = context.services.signal.cursors.starts([TOPIC])
    due_at = await connection.fetchval("SELECT next_run_at FROM pulse.jobs WHERE id = $1", identity.hex())
    assert start.from_s == pytest.approx(due_at.timestamp(), abs=0.01)
    assert start.from_s <= due_at.timestamp()


@pytest.mark.parametrize("change", [retry_jobs, delete_jobs])
@pytest.mark.parametrize(
    ("worker", "told"),
    [(ALIVE, "conflict"), (GONE, "done"), (ELSEWHERE, "done"), ("made up", "done")],
    ids=["alive", "gone", "elsewhere", "made up"],
)
async def test_a_worker_that_is_not_connected(
    context: RequestContext, store: Store, connection: Sql, change: Change, worker: str, told: str
) -> None:
    """While its process lives on this host it may be running the canceled attempt; of others nothing is known."""
    assert await code(context, await canceled(store, connection, worker), change) == told


@pytest.mark.parametrize("change", [retry_jobs, delete_jobs])
async def test_what_a_connected_worker_holds_decides(
    context: RequestContext, store: Store, connection: Sql, change: Change
) -> None:
    """Leftovers of an attempt never count for another job with its id."""
    identity = await canceled(store, connection, ALIVE)
    worker = new_worker(ALIVE, PID)
    context.services.registry.join(worker)
    worker.held[identity, 1] = HeldJob("n", TOPIC)
    assert await code(context, identity, change) == "conflict"
    worker.held.clear()
    assert await code(context, identity, change) == "done"


async def test_an_attempt_that_ended_by_a_result_is_nobodys(context: RequestContext, connection: Sql) -> None:
    """A completed job runs again, and the answer says that it had completed."""
    completed, dead = await forge(connection, "COMPLETED"), await forge(connection, "DEAD_LETTERED")
    answer = await retry_jobs(context, JobsWithDependents([completed, dead]))
    assert answer == {"done": [completed, dead], "refused": [], "completed": [completed]}


async def test_one_that_still_runs(context: RequestContext, connection: Sql) -> None:
    """A RUNNING job of any worker is refused; a cancel between the looks does not change that."""
    assert await code(context, await forge(connection, "RUNNING", locked_by=ALIVE)) == "conflict"
    running = await forge(connection, "RUNNING", locked_by=GONE)
    assert await code(context, running) == "invalid_transition"
    assert await code(context, running, delete_jobs) == "invalid_transition"


async def test_ids_that_are_unknown_repeated_or_ended(context: RequestContext, connection: Sql) -> None:
    """Each id is answered once; an ended job is not canceled."""
    waiting, unknown = await forge(connection), new_id()
    ended = [await forge(connection, status) for status in TERMINAL]
    answer = await cancel_jobs(context, JobsWithDependents([waiting, unknown, waiting, *ended]))
    refused = [[unknown, "not_found"], *([one, "invalid_transition"] for one in ended)]
    assert answer == {"done": [waiting], "refused": refused}
    assert await code(context, unknown, delete_jobs) == "not_found"
    assert [one[0].bytes for one in await connection.fetch("SELECT job_id FROM pulse.audit")] == [waiting]


async def test_a_job_comes_with_the_name_of_this_host(context: RequestContext, connection: Sql) -> None:
    answer = await get_job(context, ById(await forge(connection, "RUNNING", locked_by=ALIVE)))
    assert read(JobInfo, part(answer, "job")).hosts == {HOST.id: HOST.name}


@pytest.mark.parametrize("ask", [get_job, why_job, take_stack, graph_of_job, list_parents, next_signal])
async def test_a_job_that_is_not_there(context: RequestContext, ask: Callable[..., Awaitable[Answer]]) -> None:
    body = {list_parents: JobsParents(new_id()), next_signal: HandlerSignal(new_id(), "s")}.get(ask, ById(new_id()))
    with pytest.raises(NotFoundError):
        await ask(context, body)


async def test_the_stack_of_a_job_that_nobody_holds(context: RequestContext, connection: Sql) -> None:
    for status, why in (
        ("RUNNING", "no worker that is connected to this server holds the job"),
        ("CANCELED", "CANCELED"),
    ):
        with pytest.raises(ConflictError, match=why):
            await take_stack(context, ById(await forge(connection, status)))


async def test_a_change_of_nothing(context: RequestContext) -> None:
    with pytest.raises(BadRequestError, match="topic"):
        await change_jobs(context, JobsChange(ids=[new_id()]))


async def test_what_names_nobody(context: RequestContext) -> None:
    with pytest.raises(BadRequestError, match="hexadecimal digits are allowed"):
        await find_jobs(context, JobsFind(["0190", "xyz"]))
    with pytest.raises(NotFoundError, match="no worker 'nobody' is connected"):
        await drain_worker(context, WorkerRequest("nobody"))
