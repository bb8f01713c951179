"""Handlers that outlast their time, in real processes: which worker dies, which job pays, and which may finish."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final

import anyio
import pytest
from anyio.abc import TaskGroup
from structlog.testing import capture_logs

from pulse.protocol import Beat, StackAnswer
from pulse.store.rows import EndingKind
from pulse.store.store import Store
from pulse_actors.dispatcher.liveness import hung_handlers as timing
from pulse_actors.dispatcher.liveness import stack_requests as looking
from pulse_actors.dispatcher.liveness.hung_handlers import HungHandlers, note_ended, note_progress
from pulse_actors.dispatcher.liveness.stack_requests import HandlerStack, StackRequests
from pulse_actors.dispatcher.workers import deadlines
from pulse_actors.dispatcher.workers.deadlines import HandlerDeadlines
from pulse_actors.dispatcher.workers.records import HeldJob, RegisteredWorker
from tests.support.store.claim_parts import claim_parts
from tests.support.store.helpers import TOPIC, Patch, Sql, history
from tests.support.store.recovery_kit import DEADLINE_S, HOST, Floor, Process, floor, new_worker, process, wire_of
from tests.support.waiting import is_alive, until_async

pytestmark = pytest.mark.heavy

LONG_S: Final = 600.0  # no test waits for it
NOW_S: Final = 1e9  # when everything is due
KILLED: Final = "it did not end when it was cancelled, so its process was killed"


class Hall(Floor):
    """A floor that watches the limits."""

    def __init__(self, store: Store, connection: Sql) -> None:
        super().__init__(store, connection)
        self.stacks = StackRequests(self.registry)
        self.deadlines = HandlerDeadlines(self.registry, obey_s=0.0, heartbeat_s=0.0)
        self.hung_handlers = HungHandlers(self.registry, self.deadlines, self.deaths, self.stacks)

    async def limited(self, worker: RegisteredWorker, timeout_s: float | None = 0.1, name: str = "n") -> bytes:
        job = await self.running(worker)
        worker.held[job, 1] = HeldJob(
            name, TOPIC, started=True, timeout_s=timeout_s, stall_s=worker.facts.stalls.get(name)
        )
        return job

    async def hung(self, pid: int, timeout_s: float | None = 0.1) -> tuple[RegisteredWorker, bytes]:
        worker = self.working(pid)
        job = await self.limited(worker, timeout_s)
        self.start(worker)
        return worker, job

    def start(self, worker: RegisteredWorker) -> None:
        self.deadlines.started(worker, list(worker.held.items()), time.monotonic())

    def due(self, tasks: TaskGroup, now_s: float = NOW_S) -> bool:
        """Let the limit that passes first pass; whether the worker is being closed for it."""
        one = self.deadlines._heap.pop(0)
        self.hung_handlers._due(one, now_s, tasks)
        return id(one.worker) in self.hung_handlers._closing

    async def until_closed(self) -> None:
        await until_async(lambda: not self.hung_handlers._closing, "nobody is being closed")

    async def outcome(self, job: bytes) -> tuple[str, str | None]:
        (entry,) = await history(self.connection, job)
        return entry["outcome"], entry["error"]


@pytest.fixture
async def at(store: Store, connection: Sql, monkeypatch: Patch) -> AsyncIterator[Hall]:
    monkeypatch.setattr(deadlines, "SLACK_S", 0.0)
    monkeypatch.setattr(timing, "SIBLINGS_S", 0.05)
    monkeypatch.setattr(timing, "LOOK_S", 0.01)
    monkeypatch.setattr(looking, "ANSWER_S", 0.05)
    async with floor(Hall(store, connection)) as made:
        yield made


@pytest.fixture
async def tasks() -> AsyncIterator[TaskGroup]:
    async with anyio.create_task_group() as made:
        yield made
        made.cancel_scope.cancel()


async def test_what_has_a_limit_is_watched(at: Hall, living: Process) -> None:
    """Of another host's worker only the lease is known, and it cannot be killed."""
    worker = at.working(living.pid, stalls={"promised": 5.0})
    for timeout_s, name in ((1.0, "n"), (None, "promised"), (None, "n"), (9.0, "promised")):
        await at.limited(worker, timeout_s, name)
    worker.watched = False
    at.start(worker)
    assert at.deadlines._heap == []
    worker.watched = True
    at.start(worker)
    kinds = [due.kind for due in sorted(at.deadlines._heap)]
    assert kinds == [EndingKind.TIMEOUT, EndingKind.STALLED, EndingKind.STALLED, EndingKind.TIMEOUT]


async def test_what_has_ended_is_forgotten(at: Hall, monkeypatch: Patch, living: Process) -> None:
    """Not kept until its time: long limits would pile up."""
    monkeypatch.setattr(deadlines, "KEEP_ENTRIES", 4)
    at.deadlines = HandlerDeadlines(at.registry, obey_s=0.0, heartbeat_s=0.0)
    worker = at.working(living.pid)
    running = await at.limited(worker, LONG_S)
    at.start(worker)
    for number in range(20):
        held = HeldJob("n", TOPIC, started=True, timeout_s=LONG_S)
        at.deadlines.started(worker, [((number.to_bytes(16), 1), held)], time.monotonic())
    assert len(at.deadlines._heap) <= 5
    assert (running, 1) in {due.pair for due in at.deadlines._heap}


async def test_what_is_told_again_is_kept_once(at: Hall, monkeypatch: Patch, living: Process) -> None:
    monkeypatch.setattr(deadlines, "KEEP_ENTRIES", 4)
    at.deadlines = HandlerDeadlines(at.registry, obey_s=0.0, heartbeat_s=0.0)
    worker = at.working(living.pid, stalls={"promised": LONG_S})
    await at.limited(worker, LONG_S, "promised")
    at.start(worker)
    first = {due.kind: due.number for due in at.deadlines._heap}
    for _ in range(20):
        at.start(worker)
        assert len(at.deadlines._heap) <= 5
    assert first.items() <= {due.kind: due.number for due in sorted(at.deadlines._heap, reverse=True)}.items()
    assert at.deadlines._heap == sorted(at.deadlines._heap)


async def test_what_a_worker_came_with_has_a_limit_once_it_is_known(at: Hall, living: Process) -> None:
    """While the database was away the job was unknown: its limit counts from the look that finds it."""
    claims = claim_parts(at.store, at.registry, HOST, deadlines=at.deadlines)
    worker = at.working(living.pid)
    job = await at.running(worker, timeout_s=LONG_S)
    worker.held[job, 1] = HeldJob("", "", started=True)
    claims.in_doubt.doubt(worker.identity)
    await claims.in_doubt.settle()
    assert [(due.pair, due.held.timeout_s) for due in at.deadlines._heap] == [((job, 1), LONG_S)]


async def test_a_handler_that_has_ended_is_nobodys_guilt(at: Hall, tasks: TaskGroup, living: Process) -> None:
    worker, job = await at.hung(living.pid)
    worker.held[job, 1] = HeldJob("n", TOPIC, started=True)
    assert not at.due(tasks)


async def test_a_result_without_room_came_in_time(at: Hall, tasks: TaskGroup, living: Process) -> None:
    """The worker reports it again; meanwhile its handler does not run, and no limit applies."""
    worker = at.working(living.pid)
    job, other = await at.limited(worker), await at.running(worker)
    at.start(worker)
    note_ended(worker, [(job, 1), (bytes(16), 1)])
    assert worker.held[other, 1].ended is False
    assert not at.due(tasks)


async def test_a_result_without_room_ends_a_verdict(at: Hall, tasks: TaskGroup, living: Process) -> None:
    worker, job = await at.hung(living.pid)
    assert at.due(tasks)
    note_ended(worker, [(job, 1)])
    await at.until_closed()
    assert worker.jobs.forced_endings == {}
    assert living.poll() is None


async def test_a_worker_that_came_back_is_watched_anew(at: Hall, tasks: TaskGroup, living: Process) -> None:
    await at.hung(living.pid)
    at.working(living.pid)
    assert not at.due(tasks)


@pytest.mark.parametrize(("timeout_s", "ended"), [
    (None, ("stalled", f"stalled: no progress for 5 s; {KILLED}")),
    (0.1, ("timeout", f"timed out after 0.1 s; {KILLED}")),
])  # fmt: skip
async def test_progress_moves_the_stall_and_not_the_time_limit(
    at: Hall, tasks: TaskGroup, living: Process, timeout_s: float | None, ended: tuple[str, str]
) -> None:
    worker = at.working(living.pid, stalls={"n": 5.0})
    job = await at.limited(worker, timeout_s)
    at.start(worker)
    worker.held[job, 1].progress_s = NOW_S - 1
    if timeout_s is None:
        assert not at.due(tasks)
        (again,) = at.deadlines._heap
        assert (again.kind, again.at_s) == (EndingKind.STALLED, NOW_S + 4)
    assert at.due(tasks, NOW_S + 4)
    await at.until_closed()
    await at.wait_buried(worker)
    assert await at.outcome(job) == ended


async def test_two_that_hang_are_judged_together(at: Hall, tasks: TaskGroup, living: Process) -> None:
    """The process dies once, and both are charged; its other jobs, running and waiting, are given back."""
    with capture_logs() as logs:
        worker = at.working(living.pid)
        guilty = [await at.limited(worker) for _ in range(2)]
        innocent, queued = await at.running(worker), await at.running(worker, started=False)
        at.start(worker)
        assert at.due(tasks)
        assert at.due(tasks)
        await at.until_closed()
        assert living.wait(DEADLINE_S) == -signal.SIGKILL
        await at.wait_buried(worker)
        assert [entry["event"] for entry in logs].count("worker_killed") == 1
        assert [(await at.outcome(job))[0] for job in guilty] == ["timeout", "timeout"]
        assert [(await at.outcome(job))[0] for job in (innocent, queued)] == ["released", "released"]


async def test_who_comes_back_while_it_is_judged_is_judged_anew(at: Hall, tasks: TaskGroup, living: Process) -> None:
    await at.hung(living.pid)
    assert at.due(tasks)
    newer, job = await at.hung(living.pid)
    assert at.due(tasks)
    await at.until_closed()
    assert living.wait(DEADLINE_S) == -signal.SIGKILL
    await at.wait_buried(newer)
    assert (await at.outcome(job))[0] == "timeout"


@pytest.mark.parametrize("is_written", [True, False])
async def test_a_handler_that_ends_after_all(
    at: Hall, tasks: TaskGroup, monkeypatch: Patch, living: Process, *, is_written: bool
) -> None:
    monkeypatch.setattr(timing, "SIBLINGS_S", LONG_S)
    worker = at.working(living.pid)
    job, sibling = await at.limited(worker), await at.running(worker)
    at.start(worker)
    assert at.due(tasks)
    await until_async(lambda: (job, 1) in worker.jobs.forced_endings, "its ending is forced")
    assert worker.closing
    if is_written:
        at.registry.free(worker, [(job, 1), (sibling, 1)])
    else:
        at.registry.reporting |= {(job, 1), (sibling, 1)}
    await at.until_closed()
    assert is_alive(living.pid)
    assert (worker.closing, worker.jobs.forced_endings, worker.leaving) == (False, {}, False)


async def test_what_has_ended_and_is_not_written_yet(at: Hall, tasks: TaskGroup, living: Process) -> None:
    """While the database is away results wait here: their handlers do not hang, and no worker dies."""
    worker, job = await at.hung(living.pid)
    at.registry.reporting.add((job, 1))
    assert not at.due(tasks)
    await anyio.wait_all_tasks_blocked()
    assert (worker.closing, worker.jobs.forced_endings) == (False, {})
    assert wire_of(worker).sent == []


async def test_what_runs_apart_has_time_to_begin(at: Hall, living: Process) -> None:
    """Its time runs from when its process exists, which its worker alone knows."""
    worker = at.working(living.pid)
    here, apart = await at.limited(worker, 1.0), await at.limited(worker, 1.0)
    worker.held[apart, 1].apart = True
    at.start(worker)
    at_s = {due.pair[0]: due.at_s for due in at.deadlines._heap}
    assert at_s[apart] - at_s[here] == pytest.approx(deadlines.BEGIN_S, abs=1.0)


async def test_siblings_may_finish(at: Hall, tasks: TaskGroup, monkeypatch: Patch, living: Process) -> None:
    monkeypatch.setattr(timing, "SIBLINGS_S", LONG_S)
    worker = at.working(living.pid)
    job, sibling, queued = await at.limited(worker), await at.running(worker), await at.running(worker)
    worker.held[queued, 1].started = False
    at.start(worker)
    assert at.due(tasks)
    await until_async(lambda: bool(wire_of(worker).bodies("stop")), "a stop")
    assert wire_of(worker).bodies("stop") == [{"jobs": [(queued, 1, "recall")]}]
    await anyio.wait_all_tasks_blocked()
    assert not worker.leaving
    at.registry.free(worker, [(sibling, 1), (queued, 1)])
    await at.until_closed()
    await at.wait_buried(worker)
    assert (await at.outcome(job))[0] == "timeout"


async def test_nothing_is_recalled_where_nothing_waits(at: Hall, tasks: TaskGroup, living: Process) -> None:
    worker, _ = await at.hung(living.pid)
    assert at.due(tasks)
    await at.until_closed()
    assert [kind for kind, _, _ in wire_of(worker).sent] == ["stack"]


async def test_limits_pass_by_themselves(at: Hall, tasks: TaskGroup, living: Process) -> None:
    tasks.start_soon(at.hung_handlers.run)
    await anyio.wait_all_tasks_blocked()
    with process() as near:
        patient, hung = at.working(living.pid), at.working(near.pid)
        await at.limited(patient, LONG_S)
        at.start(patient)
        await anyio.wait_all_tasks_blocked()
        await at.limited(hung, 0.05)
        at.start(hung)
        with anyio.fail_after(DEADLINE_S):
            await at.deaths.wait_buried(hung)
        assert is_alive(living.pid)


def test_what_counts_as_progress() -> None:
    worker = new_worker("w")
    told, silent = (bytes(16), 1), (bytes(15) + b"x", 1)
    worker.jobs.held = {told: HeldJob("n", TOPIC), silent: HeldJob("n", TOPIC)}
    note_progress(worker, [Beat(*told, "1"), Beat(*silent, None), Beat(bytes(15) + b"y", 1, "1")], 7.0)
    assert [held.progress_s for held in worker.held.values()] == [7.0, 0.0]


@pytest.fixture
def parent(at: Hall, monkeypatch: Patch) -> RegisteredWorker:
    """This process, as the pool parent of those that it starts; it answers slowly."""
    monkeypatch.setattr(looking, "ANSWER_S", LONG_S)
    made = new_worker("parent", os.getpid())
    made.facts = replace(made.facts, topics=())
    at.registry.join(made)
    return made


async def test_stacks_come_from_the_pool_parent(
    at: Hall, parent: RegisteredWorker, tasks: TaskGroup, monkeypatch: Patch, living: Process
) -> None:
    monkeypatch.setattr(looking, "ALIVE_S", LONG_S)
    worker, job = await at.hung(living.pid)
    assert at.due(tasks)
    await until_async(lambda: bool(wire_of(parent).sent), "a frame to the parent")
    ((kind, number, body),) = wire_of(parent).sent
    assert (kind, body) == ("stack", {"session": worker.facts.session})
    assert number is not None
    at.stacks.answer(worker, number, StackAnswer("forged"))
    at.stacks.answer(parent, number + 1, StackAnswer("of another one"))
    at.stacks.answer(parent, None, StackAnswer("of nothing"))
    at.stacks.answer(worker, number - 1, StackAnswer(None))
    await anyio.wait_all_tasks_blocked()
    assert not worker.jobs.forced_endings
    at.stacks.answer(parent, number, StackAnswer("there"))
    await at.until_closed()
    await at.wait_buried(worker)
    (entry,) = await history(at.connection, job)
    assert entry["stack"] == "there"


async def test_a_worker_that_answers_knows_best(
    at: Hall, parent: RegisteredWorker, tasks: TaskGroup, living: Process
) -> None:
    """The question names the attempt, and the answer may name another process; the loop has its time to answer."""
    worker = at.working(living.pid)
    shown: list[HandlerStack | None] = []

    async def take() -> None:
        shown.append(await at.stacks.take(worker, (b"1" * 16, 2)))

    for first, second, best in (
        (StackAnswer("chain", 77), StackAnswer("threads"), HandlerStack("chain", 77)),
        (StackAnswer("chain"), StackAnswer("threads"), HandlerStack("chain", living.pid)),
        (StackAnswer(None, 77), StackAnswer("threads"), HandlerStack("threads", living.pid)),
        (None, StackAnswer("threads"), HandlerStack("threads", living.pid)),
        (None, StackAnswer(None), None),
    ):
        wire_of(worker).sent.clear()
        wire_of(parent).sent.clear()
        tasks.start_soon(take)
        await anyio.wait_all_tasks_blocked()
        ((kind, number, body),) = wire_of(worker).sent
        assert (kind, body) == ("stack", {"session": worker.facts.session, "job": (b"1" * 16, 2)})
        ((_, parents, _),) = wire_of(parent).sent
        at.stacks.answer(parent, parents, second)
        await anyio.wait_all_tasks_blocked()
        if first is not None:
            at.stacks.answer(worker, number, first)
        await until_async(lambda: bool(shown), "a stack is shown")
        assert shown.pop() == best


async def test_without_a_pool_parent_only_the_worker_can_tell(
    at: Hall, tasks: TaskGroup, monkeypatch: Patch, living: Process
) -> None:
    worker = at.working(living.pid)
    shown: list[HandlerStack | None] = []

    async def take() -> None:
        shown.append(await at.stacks.take(worker, (b"1" * 16, 2)))

    monkeypatch.setattr(looking, "ANSWER_S", LONG_S)
    tasks.start_soon(take)
    await anyio.wait_all_tasks_blocked()
    at.stacks.answer(worker, wire_of(worker).sent[-1][1], StackAnswer("here"))
    await until_async(lambda: bool(shown), "a stack is shown")
    assert shown.pop() == HandlerStack("here", living.pid)
    monkeypatch.setattr(looking, "ANSWER_S", 0.0)
    assert await at.stacks.take(worker, (b"1" * 16, 2)) is None
