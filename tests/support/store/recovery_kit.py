"""The dispatcher's own parts on a real database, with real processes to watch, and nothing between them and a test."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias, TypeVar, cast

import anyio
import anyio.abc
from anyio.lowlevel import checkpoint

from pulse.errors import UnavailableError
from pulse.store.store import Store
from pulse.system import processes
from pulse_actors.dispatcher.liveness.process_watch import ProcessWatch
from pulse_actors.dispatcher.workers.records import HeldJob, Pair, RegisteredWorker, WorkerFacts
from pulse_actors.dispatcher.workers.registry import WorkerRegistry
from pulse_actors.dispatcher.writes.report import ReportWriter
from pulse_actors.shared.identity import Host, Peer, compose, session_of, this_host
from tests.support.store.claim_parts import claim_parts
from tests.support.store.helpers import TOPIC, Patch, Row, Sql, forge, read
from tests.support.waiting import is_alive, until_async

LEASE_S: Final = 30.0
HOST: Final = this_host("here")
DEADLINE_S: Final = 10.0
Process: TypeAlias = "subprocess.Popen[bytes]"
PAST: Final = datetime(2020, 1, 1, tzinfo=UTC)


def ago(seconds: float) -> datetime:
    return datetime.now(UTC) - timedelta(seconds=seconds)


@dataclass(slots=True)
class Wire:
    sent: list[tuple[str, int | None, Mapping[str, Any]]] = field(
        default_factory=list[tuple[str, int | None, Mapping[str, Any]]]
    )
    closed: bool = False
    backlog_bytes: int = 0
    pushed: int = 0  # how many of the frames were sent when it was last pushed

    @property
    def is_over(self) -> bool:
        return self.closed

    def send(self, kind: str, request: int | None, body: Mapping[str, object]) -> None:
        self.sent.append((kind, request, body))

    def push(self) -> None:
        self.pushed = len(self.sent)

    def close(self) -> None:
        self.closed = True

    def bodies(self, kind: str) -> list[Mapping[str, Any]]:
        return [body for one, _, body in self.sent if one == kind]


def new_worker(identity: str, pid: int = 0, *, name: str = "w", uid: int = 0, capacity: int = 10) -> RegisteredWorker:
    session = session_of(HOST, identity)
    return RegisteredWorker(WorkerFacts(identity, name, session, pid, uid, (TOPIC,), frozenset("n")), capacity, Wire())


def wire_of(worker: RegisteredWorker) -> Wire:
    assert isinstance(worker.link, Wire)
    return worker.link


@contextlib.contextmanager
def process(*command: str, **how: Any) -> Iterator[subprocess.Popen[bytes]]:
    words = command or ("sleep", "600")
    with cast("subprocess.Popen[bytes]", subprocess.Popen(words, stdout=subprocess.PIPE, **how)) as made:
        try:
            yield made
        finally:
            made.kill()


def identity_of(pid: int, name: str = "w") -> str:
    return compose(HOST, Peer(pid, 0, 0, processes.start_time(pid), HOST.pidns), name)


async def dead(pid: int) -> None:
    await until_async(lambda: not is_alive(pid), f"the end of {pid}")


class Floor:
    """Registry, claims, reports and the watch over processes, put together as the dispatcher does."""

    def __init__(self, store: Store, connection: Sql) -> None:
        self.store = store
        self.connection = connection
        self.registry = WorkerRegistry()
        self.claims = claim_parts(store, self.registry, HOST, lease_s=LEASE_S, poll_s=60.0, batch=500)
        self.results = ReportWriter(
            store, self.registry, self.claims.signal, self.claims.counters, failures=self.claims.failures
        )
        self.deaths = ProcessWatch(store, self.registry, self.claims.in_doubt, self.results, self.claims.counters)
        self.host: Host = HOST

    def watch(self, worker: RegisteredWorker, hear_out: Callable[[], Awaitable[None]] = checkpoint) -> RegisteredWorker:
        """The worker says hello, and is watched."""
        self.registry.join(worker)
        self.deaths.watch(worker, os.pidfd_open(worker.facts.pid), hear_out)
        return worker

    def working(self, pid: int, **facts: Any) -> RegisteredWorker:
        worker = new_worker(identity_of(pid), pid)
        worker.facts = replace(worker.facts, **facts)
        return self.watch(worker)

    async def running(self, worker: RegisteredWorker, *, started: bool = True, **columns: Any) -> bytes:
        """A RUNNING row that the worker holds, and knows of; its id."""
        job = await self.row(worker.identity, **columns)
        worker.held[job, 1] = HeldJob("n", TOPIC, started=started)
        return job

    async def row(self, identity: str, **columns: Any) -> bytes:
        return await forge(self.connection, "RUNNING", **{"locked_by": identity, "lease_until": ago(-60), **columns})

    async def read(self, job: bytes) -> Row:
        return await read(self.connection, job)

    async def wait(self, job: bytes, **columns: object) -> Row:
        with anyio.fail_after(DEADLINE_S):
            while {name: (row := await self.read(job))[name] for name in columns} != columns:
                await anyio.lowlevel.checkpoint()
        return row

    async def wait_buried(self, worker: RegisteredWorker) -> None:
        await until_async(lambda: self.deaths.watched(worker.identity) is not worker, "it is buried")
        with anyio.fail_after(DEADLINE_S):
            await self.results.batcher.wait_idle()


class Bench:
    def __init__(self, store: Store, connection: Sql, monkeypatch: Patch, batch: int = 500) -> None:
        self.registry = WorkerRegistry()
        self.claims = claim_parts(store, self.registry, HOST, lease_s=LEASE_S, poll_s=60.0, batch=batch)
        self.store = store
        self.connection = connection
        self.monkeypatch = monkeypatch

    def join(
        self,
        identity: str = "w",
        *,
        names: Sequence[str] = ("n",),
        capacity: int = 10,
        topics: Sequence[str] = (TOPIC,),
    ) -> RegisteredWorker:
        worker = new_worker(identity, capacity=capacity)
        worker.facts = replace(worker.facts, names=frozenset(names), topics=tuple(topics))
        self.registry.join(worker)
        return worker

    async def waiting(self, **columns: Any) -> bytes:
        return await forge(self.connection, **{"next_run_at": PAST, **columns})

    def after(self, statement: str, happens: Callable[[], Awaitable[object]]) -> None:
        """Let something happen between the next such statement and its answer."""
        call = getattr(self.store, statement)

        async def interrupted(*args: Any, **more: Any) -> Any:
            found = await call(*args, **more)
            self.monkeypatch.setattr(self.store, statement, call)
            await happens()
            return found

        self.monkeypatch.setattr(self.store, statement, interrupted)


def rows_of(worker: RegisteredWorker) -> list[Any]:
    return [job for body in wire_of(worker).bodies("assign") for job in body["jobs"]]


def pairs_of(worker: RegisteredWorker) -> list[Pair]:
    return [(job[0], job[1]) for job in rows_of(worker)]


def jobs_of(worker: RegisteredWorker) -> list[bytes]:
    return [job for job, _ in pairs_of(worker)]


async def lost() -> None:
    """The connection to the database breaks just then."""
    raise UnavailableError


@contextlib.asynccontextmanager
async def running(*loops: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Loops run meanwhile; an error of one ends the test."""
    async with anyio.create_task_group() as tasks:
        for loop in loops:
            tasks.start_soon(loop)
        yield
        tasks.cancel_scope.cancel()


F = TypeVar("F", bound=Floor)


@contextlib.asynccontextmanager
async def floor(made: F) -> AsyncIterator[F]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.results.run)
        tasks.start_soon(made.deaths.run)
        await anyio.wait_all_tasks_blocked()
        yield made
        tasks.cancel_scope.cancel()
