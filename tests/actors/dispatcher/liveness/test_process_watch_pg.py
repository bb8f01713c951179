"""Real processes that die, on a real database: which are watched, what the dispatcher waits for, which jobs end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from structlog.testing import capture_logs

from pulse.errors import UnavailableError
from pulse.protocol import Result
from pulse.store.connections.session import HeldCommit
from pulse.store.rows import Ended, Ending, EndingKind, Level
from pulse.store.store import Store
from pulse.system import process_tree, processes
from pulse_actors.dispatcher.liveness import process_watch as watching
from pulse_actors.dispatcher.liveness.process_watch import ProcessWatch
from pulse_actors.dispatcher.workers.records import RegisteredWorker
from pulse_actors.dispatcher.writes import report
from pulse_actors.dispatcher.writes.report_rows import Obituary, PendingReport
from pulse_actors.shared.identity import Host
from tests.support.checking.descriptors import free_descriptors
from tests.support.store.helpers import TOPIC, Patch, Sql, found_of, history
from tests.support.store.recovery_kit import (
    DEADLINE_S,
    HOST,
    Floor,
    Process,
    dead,
    floor,
    identity_of,
    new_worker,
    process,
    wire_of,
)
from tests.support.waiting import is_alive, until_async

pytestmark = pytest.mark.heavy

LONG_S: Final = 600.0  # no test waits for it


@pytest.fixture
async def at(store: Store, connection: Sql, monkeypatch: Patch) -> AsyncIterator[Floor]:
    monkeypatch.setattr(watching, "STRANGER_S", 0.05)
    async with floor(Floor(store, connection)) as made:
        yield made


async def dies(at: Floor, worker: RegisteredWorker, process: Process) -> None:
    process.kill()
    await at.wait_buried(worker)


async def until_locked(at: Floor, job: bytes, *, is_locked: bool = True) -> None:
    async def holds() -> bool:
        return (not await at.store.lockable([job])) is is_locked

    await until_async(holds, f"is_locked: {is_locked}")


async def outcome(at: Floor, job: bytes) -> tuple[str, str | None, int | None]:
    (entry,) = await history(at.connection, job)
    return entry["outcome"], entry["error"], entry["exit_code"]


async def test_a_death_ends_what_was_held(at: Floor) -> None:
    """Started: crashed, with the signal as the reason. Not started: given back. No other rows change."""
    with process() as dying, process() as living:
        worker, other = (at.working(one.pid) for one in (dying, living))
        started, queued = await at.running(worker), await at.running(worker, started=False)
        foreign = await at.running(other)
        await dies(at, worker, dying)
        assert await outcome(at, started) == ("crashed", "worker process died: SIGKILL", -signal.SIGKILL)
        assert (await at.read(queued))["status"] == "PENDING"
        assert await outcome(at, queued) == ("released", None, None)
        assert (await at.read(foreign))["status"] == "RUNNING"
        assert wire_of(worker).closed
        assert at.registry.get(worker.identity) is None
        assert at.deaths.watched(other.identity) is other


async def test_a_death_does_not_wait_for_a_claim(at: Floor, living: Process) -> None:
    """Not even for a slow one; only the jobs that it may have brought are looked for after it."""
    worker = at.working(living.pid)
    job = await at.running(worker)
    async with at.claims.in_doubt._lock:
        unheard = await at.row(worker.identity)
        living.kill()
        await at.wait(job, status="RETRYING")
        assert at.registry.get(worker.identity) is None
        assert (await at.read(unheard))["status"] == "RUNNING"
    await at.wait_buried(worker)
    assert (await at.read(unheard))["status"] == "PENDING"


async def test_who_has_ended_is_no_suspect(at: Floor, living: Process) -> None:
    """Its result is here and waits to be written: a job that still ran has killed the worker."""
    worker = at.working(living.pid)
    over, apart = await at.running(worker), await at.running(worker)
    worker.held[apart, 1].apart = True
    at.registry.reporting.add((over, 1))
    await dies(at, worker, living)
    assert (await outcome(at, apart))[0] == "crashed"
    assert (await at.read(over))["status"] == "RUNNING"


async def test_who_is_to_reconnect_was_not_to_end(at: Floor, living: Process) -> None:
    """The dispatcher is restarted: a worker that dies then has crashed."""
    worker = at.working(living.pid)
    job = await at.running(worker)
    worker.drain(reconnect=True)
    await dies(at, worker, living)
    assert (await outcome(at, job))[0] == "crashed"


async def test_who_is_buried_is_not_away_any_more(at: Floor, living: Process) -> None:
    worker = at.working(living.pid)
    await at.running(worker)
    at.registry.leave(worker)
    assert at.registry.away == {worker.identity: worker}
    await dies(at, worker, living)
    assert at.registry.away == {}


@pytest.mark.parametrize("leads", [True, False])
async def test_its_group_dies_with_it(at: Floor, *, leads: bool) -> None:
    """Also processes without its mark; but a shell's pipeline is one group, which dies only with its session leader."""
    with process(process_group=0) as dying, process(process_group=dying.pid) as other:
        await dies(at, at.working(dying.pid, leads_group=leads), dying)
        assert other.wait(DEADLINE_S) == -signal.SIGKILL if leads else is_alive(other.pid)


async def test_what_carries_its_mark_dies_with_it(at: Floor) -> None:
    """A daemon that a handler has started is in no group of its worker, but has the mark."""
    mark = process_tree.new_mark()
    env = {**os.environ, process_tree.MARK: mark}
    with process(env=env) as dying, process(env=env, start_new_session=True) as daemon:
        await dies(at, at.working(dying.pid, mark=mark), dying)
        assert daemon.wait(DEADLINE_S) == -signal.SIGKILL


async def test_its_jobs_are_free_when_all_of_it_is_dead(at: Floor, monkeypatch: Patch) -> None:
    monkeypatch.setattr(report, "HURRY_S", LONG_S)
    left: list[anyio.Event] = []

    async def end_tree(_mark: str) -> int:
        left.append(anyio.Event())
        await left[-1].wait()
        return 1

    woken: list[Level] = []
    monkeypatch.setattr(process_tree, "end_tree", end_tree)
    monkeypatch.setattr(at.results.batcher, "put", None)
    monkeypatch.setattr(at.claims.signal, "wake_level", lambda level, _delay_s, **_: woken.append(level))
    for number in (1, 2):
        with process() as dying:
            worker = at.working(dying.pid, mark=process_tree.new_mark())
            job = await at.running(worker)
            dying.kill()
            await until_locked(at, job)
            assert (await at.read(job))["status"] == "RUNNING"
            left[-1].set()
            await at.wait(job, status="RETRYING")
            await at.wait_buried(worker)
        assert woken == [Level(TOPIC, 0)] * number
        assert at.claims.counters.reaped["crashed"] == number


async def test_what_does_not_die_keeps_no_row_locked(at: Floor, monkeypatch: Patch, living: Process) -> None:
    """For long: its jobs end later, when it is dead after all."""
    monkeypatch.setattr(report, "HURRY_S", 0.05)
    dead, given_up = anyio.Event(), anyio.Event()
    end = at.store.end

    async def watched_end(endings: Sequence[Ending], *, commit: HeldCommit | None = None) -> list[Ended]:
        try:
            return await end(endings, commit=commit)
        except asyncio.CancelledError:
            given_up.set()
            raise

    monkeypatch.setattr(at.store, "end", watched_end)
    monkeypatch.setattr(process_tree, "end_tree", lambda _mark: dead.wait())
    job = await at.running(at.working(living.pid, mark=process_tree.new_mark()))
    living.kill()
    with anyio.fail_after(DEADLINE_S):
        await given_up.wait()
        await until_locked(at, job, is_locked=False)
        await at.results.batcher.wait_idle()
    assert (await at.read(job))["status"] == "RUNNING"
    dead.set()
    await at.wait(job, status="RETRYING")


async def test_what_cannot_be_written_at_once_is_written_later(at: Floor, monkeypatch: Patch, living: Process) -> None:
    end = at.store.end

    async def away(_endings: Sequence[Ending], **_: object) -> list[Ended]:
        monkeypatch.setattr(at.store, "end", end)
        raise UnavailableError("away")

    monkeypatch.setattr(at.store, "end", away)
    worker = at.working(living.pid)
    job = await at.running(worker)
    living.kill()
    await at.wait(job, status="RETRYING")


async def test_last_words_are_heard_out(at: Floor, living: Process) -> None:
    """What it wrote before its death is read first: an attempt with a result there has not crashed."""
    worker = new_worker(identity_of(living.pid), living.pid)

    async def hear_out() -> None:
        await anyio.wait_all_tasks_blocked()
        at.results.accept(PendingReport(worker, 1, [Result(job, 1, "ok")], [(job, 1)]))

    at.watch(worker, hear_out)
    job = await at.running(worker)
    living.kill()
    with anyio.fail_after(DEADLINE_S):
        await at.deaths.wait_buried(worker)
    await at.wait_buried(worker)
    assert (await at.read(job))["status"] == "COMPLETED"
    assert await history(at.connection, job) == []


async def test_claims_that_it_never_heard_of(at: Floor, monkeypatch: Patch, living: Process) -> None:
    worker = at.working(living.pid)
    held, unseen, reported = await at.running(worker), await at.row(worker.identity), await at.row(worker.identity)
    at.registry.reporting.add((reported, 1))
    at.results._is_burying = True  # another one, so that this one is written late
    told: list[tuple[bytes, EndingKind]] = []
    put = at.results.batcher.put

    def late(item: PendingReport | Obituary) -> None:
        assert isinstance(item, Obituary)
        told.extend((ending.id, ending.kind) for ending in item.endings)
        monkeypatch.setattr(at.results.batcher, "put", put if len(told) > 1 else late)
        if len(told) > 1:
            put(item)

    monkeypatch.setattr(at.results.batcher, "put", late)
    await dies(at, worker, living)
    assert told == [(held, EndingKind.CRASHED), (unseen, EndingKind.UNASSIGNED)]
    row = await at.read(unseen)
    assert (row["status"], row["uncharged"], row["crashes"]) == ("PENDING", 1, 0)
    assert (await at.read(reported))["status"] == "RUNNING"


async def test_a_claim_for_it_that_is_committed_late(at: Floor, monkeypatch: Patch, living: Process) -> None:
    """A statement whose caller has gone may commit after the first look: there is a second one."""
    monkeypatch.setattr(watching, "LATE_S", 0.5)
    worker = at.working(living.pid)
    held = await at.running(worker)
    await dies(at, worker, living)
    await at.wait(held, status="RETRYING")
    late = await at.row(worker.identity)
    row = await at.wait(late, status="PENDING")
    assert (row["uncharged"], row["crashes"], row["last_error"]) == (1, 0, None)


async def test_who_has_died_is_waited_for(at: Floor) -> None:
    with process() as dying, process() as living:
        worker = at.watch(new_worker(identity_of(dying.pid), dying.pid), anyio.wait_all_tasks_blocked)
        at.working(living.pid)
        job = await at.running(worker)
        dying.kill()
        await dead(dying.pid)
        with anyio.fail_after(DEADLINE_S):
            await at.deaths.settle()
        assert at.deaths.watched(worker.identity) is None
        await at.results.batcher.wait_idle()
        assert (await at.read(job))["crashes"] == 1


async def test_an_end_is_told_louder_when_something_was_lost(at: Floor, monkeypatch: Patch) -> None:
    """A worker that ends without jobs causes no warning, and no statement."""
    levels: list[str] = []
    written: list[int] = []
    end = at.store.end

    async def counted_end(endings: Sequence[Ending], **more: Any) -> list[Ended]:
        written.append(len(endings))
        return await end(endings, **more)

    monkeypatch.setattr(at.store, "end", counted_end)
    for holds in (False, True):
        with capture_logs() as logs, process() as dying:
            worker = at.working(dying.pid)
            if holds:
                await at.running(worker)
            await dies(at, worker, dying)
        levels += [entry["log_level"] for entry in logs if entry["event"] == "worker_died"]
    assert levels == ["info", "warning"]
    assert written == [1]


async def test_who_says_hello_again_is_watched_anew(at: Floor, living: Process) -> None:
    """The newer connection replaces the older one, whose watch ends; it dies once."""
    identity = identity_of(living.pid)
    older, newer = at.watch(new_worker(identity, living.pid)), new_worker(identity, living.pid)
    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(at.deaths.wait_buried, older)
            await anyio.wait_all_tasks_blocked()
            at.watch(newer)
    await anyio.wait_all_tasks_blocked()
    assert at.deaths.watched(identity) is newer
    assert at.deaths.in_hand() == [newer]
    assert not at.deaths.signal(older, signal.SIGKILL)
    at.deaths.kill(older, "test")
    assert not older.leaving
    assert at.deaths.signal(newer, signal.SIGCONT)
    with anyio.fail_after(DEADLINE_S):
        await at.deaths.wait_buried(older)
    job = await at.running(newer)
    with capture_logs() as logs:
        await dies(at, newer, living)
    assert len([entry for entry in logs if entry["event"] == "worker_died"]) == 1
    assert (await outcome(at, job))[0] == "crashed"


async def test_nobody_is_watched_under_another_name(at: Floor) -> None:
    unknown = new_worker("x")
    assert at.deaths.watched("x") is None
    assert not at.deaths.signal(unknown, signal.SIGKILL)
    at.deaths.kill(unknown, "test")
    assert not unknown.leaving
    with anyio.fail_after(DEADLINE_S):
        await at.deaths.wait_buried(unknown)


async def test_who_may_not_be_signalled_is_not_in_hand(at: Floor, monkeypatch: Patch, living: Process) -> None:
    def refused(_pidfd: int, _number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(signal, "pidfd_send_signal", refused)
    worker = at.working(living.pid)
    assert not worker.watched
    assert at.deaths.in_hand() == []
    job = await at.running(worker)
    await dies(at, worker, living)
    assert (await outcome(at, job))[0] == "crashed"


async def test_kills_are_counted_anew(at: Floor, tmp_path: Path, monkeypatch: Patch, living: Process) -> None:
    files = [tmp_path / name for name in ("one", "one", "other")]
    for number, path in enumerate(files):
        path.write_text(f"oom_kill {number}\n", "ascii")
    made = iter([*(processes.OomKills(path, 0) for path in files), None])  # of the last one the kernel counts nothing
    monkeypatch.setattr(processes, "oom_kills", lambda _pid: next(made))
    looks: list[Path] = []
    again = processes.OomKills.again

    def noted(count: processes.OomKills) -> processes.OomKills:
        looks.append(count.path)
        return again(count)

    monkeypatch.setattr(processes.OomKills, "again", noted)
    with process() as second, process() as third, process() as fourth:
        for one in (living, second, third, fourth):
            at.working(one.pid)
        at.deaths.note_oom_kills()
        assert looks == [files[0], files[2]]
        counts = [watch.oom_kills.count for watch in at.deaths._watches.values() if watch.oom_kills is not None]
        assert counts == [1, 1, 2]


async def test_before_the_loops_run_nothing_is_watched(at: Floor) -> None:
    """A hello that comes while the dispatcher ends leaves no descriptor behind."""
    idle = ProcessWatch(at.store, at.registry, at.claims.in_doubt, at.results, at.claims.counters)
    pidfd = os.pidfd_open(os.getpid())
    idle.watch(new_worker("x", os.getpid()), pidfd, anyio.lowlevel.checkpoint)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(pidfd)


async def test_a_stranger_is_adopted_with_what_it_holds(at: Floor, living: Process) -> None:
    identity = identity_of(living.pid)
    job = await at.row(identity)
    stranger = found_of(await at.deaths.adopt(HOST, identity))
    assert list(stranger.held) == [(job, 1)]
    assert at.registry.strangers == {identity: stranger}
    assert at.deaths.in_hand() == [stranger]
    worker = at.working(living.pid)  # the watch goes over to the connection that says hello
    assert at.registry.strangers == {}
    assert await at.deaths.adopt(HOST, identity) is worker
    assert at.registry.strangers == {}
    assert at.deaths.watched(identity) is worker


async def test_a_stranger_is_of_the_user_of_its_process(at: Floor) -> None:
    other: dict[str, int] = {"user": 65534} if os.geteuid() == 0 else {}
    with process(**other) as busy:
        stranger = found_of(await at.deaths.adopt(HOST, identity_of(busy.pid)))
        assert stranger.facts.uid == other.get("user", os.geteuid())


async def test_a_stranger_is_released_only_while_it_is_one(at: Floor, living: Process) -> None:
    """It may have said hello during the query, or have been buried."""
    identity = identity_of(living.pid)
    job = await at.row(identity)
    stranger = found_of(await at.deaths.adopt(at.host, identity))
    worker = at.watch(new_worker(identity, living.pid))
    at.deaths.release(stranger)
    await anyio.wait_all_tasks_blocked()
    assert at.deaths.watched(identity) is worker
    await dies(at, worker, living)
    assert (await at.read(job))["status"] == "PENDING"
    at.deaths.release(worker)


async def test_who_is_not_in_hand_is_not_adopted(at: Floor, monkeypatch: Patch) -> None:
    elsewhere = Host("there", HOST.boot, HOST.pidns)
    with process() as living:
        identity = identity_of(living.pid)
        assert await at.deaths.adopt(elsewhere, identity) is None
        assert await at.deaths.adopt(HOST, "somebody") is None

        def refused(_pid: int, _number: int) -> None:
            raise PermissionError

        with monkeypatch.context() as patch:
            patch.setattr(os, "kill", refused)
            assert await at.deaths.adopt(HOST, identity) is None
    assert await at.deaths.adopt(HOST, identity) is None
    assert at.deaths.in_hand() == []


async def test_a_pid_that_is_used_again_while_it_is_opened(at: Floor, monkeypatch: Patch, living: Process) -> None:
    """After the open the start time is compared once more; of another process nothing stays open."""
    opened: list[int] = []
    pidfd_open = os.pidfd_open
    identity = identity_of(living.pid)

    def too_late(pid: int, flags: int = 0) -> int:
        opened.append(pidfd_open(pid, flags))
        living.kill()
        living.wait()
        return opened[-1]

    monkeypatch.setattr(os, "pidfd_open", too_late)
    assert await at.deaths.adopt(HOST, identity) is None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])


async def test_a_process_that_cannot_be_read_is_not_adopted(at: Floor, monkeypatch: Patch, living: Process) -> None:
    """Without a descriptor to read its start time with, its pid may be that of another process by now."""
    pidfd_open = os.pidfd_open
    with ExitStack() as scarce:

        def last_descriptor(pid: int, flags: int = 0) -> int:
            pidfd = pidfd_open(pid, flags)
            scarce.enter_context(free_descriptors(0))
            return pidfd

        monkeypatch.setattr(os, "pidfd_open", last_descriptor)
        assert await at.deaths.adopt(HOST, identity_of(living.pid)) is None


async def test_a_stranger_dies_by_what_the_database_says(at: Floor, living: Process) -> None:
    identity = identity_of(living.pid)
    before = await at.row(identity)
    stranger = found_of(await at.deaths.adopt(HOST, identity))
    later = await at.row(identity)
    await dies(at, stranger, living)
    assert [(await outcome(at, job))[0] for job in (before, later)] == ["crashed", "crashed"]
    assert at.registry.strangers == {}


async def test_a_stranger_that_drained_in_vain(at: Floor) -> None:
    with process("sh", "-c", f"read line; exit {processes.UNFINISHED}", stdin=subprocess.PIPE) as leaving:
        job = await at.row(identity_of(leaving.pid))
        assert await at.deaths.adopt(HOST, identity_of(leaving.pid)) is not None
        assert leaving.stdin is not None
        leaving.stdin.close()
        row = await at.wait(job, status="PENDING")
    assert (row["crashes"], (await outcome(at, job))[0]) == (0, "released")


async def test_a_stranger_that_dies_while_the_database_is_away(at: Floor, monkeypatch: Patch, living: Process) -> None:
    async def away(_worker: str) -> None:
        raise UnavailableError("away")

    monkeypatch.setattr(watching, "STRANGER_S", 0.0)
    job = await at.row(identity_of(living.pid))
    assert await at.deaths.adopt(HOST, identity_of(living.pid)) is not None
    monkeypatch.setattr(at.store, "running_of", away)
    living.kill()
    row = await at.wait(job, status="RETRYING")
    assert (row["crashes"], row["last_error"]) == (1, "worker process died: SIGKILL")


async def test_who_knows_a_stranger_better_may_bury_it(at: Floor, monkeypatch: Patch, living: Process) -> None:
    """Its own dispatcher, if it has one, comes first; meanwhile no dispatcher kills a dead process."""
    waits = anyio.Event()
    sleep = anyio.sleep

    async def watched_sleep(delay_s: float) -> None:
        if delay_s == watching.STRANGER_S:
            waits.set()
        await sleep(delay_s)

    monkeypatch.setattr(watching, "STRANGER_S", LONG_S)
    monkeypatch.setattr(anyio, "sleep", watched_sleep)
    identity = identity_of(living.pid)
    job = await at.row(identity)
    stranger = await at.deaths.adopt(HOST, identity)
    living.kill()
    with anyio.fail_after(DEADLINE_S):
        await waits.wait()
    assert not at.deaths.in_hand()
    assert (await at.read(job))["status"] == "RUNNING"
    assert at.deaths.watched(identity) is stranger
