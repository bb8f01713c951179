"""What the dispatcher's book says of one job, for those who ask why it does not run."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from msgspec import structs

from pulse.ops.doctor.finding import Finding, State
from pulse.store.reading.jobs import StoredFacts
from pulse.system import processes
from pulse_actors.dispatcher.claims.quarantine import LONGEST_S
from pulse_actors.dispatcher.context import RequestContext, ServerInfo, Services
from pulse_actors.dispatcher.diagnosis.facts import facts_of
from pulse_actors.dispatcher.diagnosis.reasons import Candidate, Holder, JobFacts
from pulse_actors.dispatcher.workers.health import Condition, condition_of, quiet_s
from pulse_actors.dispatcher.workers.records import BACKLOG_BYTES, HeldJob, RegisteredWorker, WorkerFacts
from pulse_actors.dispatcher.workers.registry import WorkerRegistry
from pulse_actors.shared import identity as identities
from tests.support.store.claim_parts import claim_parts
from tests.support.store.recovery_kit import Wire

JOB: Final = bytes(15) + b"1"
OTHER: Final = bytes(15) + b"2"
HOST: Final = identities.this_host("here")
ME: Final = f"{HOST.id}/{HOST.boot}/{HOST.pidns}/{os.getpid()}.{processes.start_time(os.getpid())}/w"
NOTHING: Final = cast("Any", SimpleNamespace(aside=None, unique=None, limited=None))  # not asked
BASE: Final = StoredFacts(
    id=JOB, topic="a", name="red", status="PENDING", priority=0, attempts=2, uncharged=0, max_attempts=5, crashes=0,
    submitted_at=0.0, next_run_at=0.0, now=9.0,
)  # fmt: skip
RUNS: Final[dict[str, Any]] = {"status": "RUNNING", "locked_by": ME}


def worker(identity: str = ME, topics: tuple[str, ...] = ("a",)) -> RegisteredWorker:
    facts = WorkerFacts(identity, "w", identity.encode()[-16:], 1, 0, topics, frozenset({"red"}))
    made = RegisteredWorker(facts, 3, Wire())
    made.contact.heard_s = 5.0
    return made


def site(*workers: RegisteredWorker) -> RequestContext:
    registry = WorkerRegistry()
    for one in workers:
        registry.join(one)
    claims = claim_parts(NOTHING, registry, HOST, lease_s=30.0, poll_s=0.25, batch=1)
    parts: dict[str, Any] = {"signal": claims.signal, "handout": claims.handout, "quarantine": claims.quarantine}
    others: dict[str, Any] = dict.fromkeys(("store", "bus", "stacks", "stats", "findings", "redaction"), NOTHING)
    server = ServerInfo("here", 10.0, 30.0)
    return RequestContext(Services(registry=registry, host=HOST, server=server, **parts, **others))


def known(on: RequestContext, **columns: Any) -> JobFacts:
    return facts_of(on, structs.replace(BASE, **columns), 9.0)


def test_who_serves_its_topic() -> None:
    able, other, elsewhere = worker(), worker("h/b/1/2.3/x"), worker("h/b/1/2.3/y", ("b", "c"))
    able.held.update({(OTHER, 1): HeldJob("blue", "a", started=True), (OTHER, 2): HeldJob("green", "a")})
    able.facts = replace(able.facts, concurrency=2)
    other.facts = replace(other.facts, name="x", names=frozenset({"blue"}))
    found = known(site(able, other, elsewhere))
    assert found == JobFacts(
        host="here",
        poll_s=0.25,
        candidates=(
            Candidate("w", frozenset({"red"}), is_able=True, capacity=3, places=2, held=2, started=1, calls=("blue",)),
            Candidate("x", frozenset({"blue"}), is_able=False, capacity=3, places=3),
        ),
        topics=["a", "b", "c"],
    )


def test_jobs_of_a_batch_share_a_call() -> None:
    one = worker()
    one.facts, one.batches = replace(one.facts, concurrency=9), {"blue": 3}
    one.held.update({(OTHER, number): HeldJob("blue", "a", started=number < 8) for number in range(1, 10)})
    one.held[JOB, 1] = HeldJob("red", "a", started=True)
    (candidate,) = known(site(one)).candidates
    assert (candidate.held, candidate.started, candidate.calls) == (10, 8, ("blue", "blue", "blue", "red"))
    assert one.taken == 4


@pytest.mark.parametrize("what", ["silent", "closing", "draining", "its own word", "backlog"])
def test_who_gets_no_jobs(what: str) -> None:
    one = worker()
    if what == "backlog":
        cast("Any", one.link).backlog_bytes = BACKLOG_BYTES + 1
    elif what == "its own word":
        one.capacity = 0
    else:
        setattr(one.contact if what == "silent" else one, what, True)
    (candidate,) = known(site(one)).candidates
    assert one.credit == 0
    assert candidate.stopped is not None
    cast("Any", one.link).backlog_bytes = BACKLOG_BYTES
    assert (known(site(worker())).candidates[0].stopped, worker().credit) == (None, 3)


def test_who_has_it() -> None:
    one = worker()
    one.jobs.held = {
        (JOB, 2): HeldJob("red", "a"),
        (OTHER, 1): HeldJob("red", "a"),
        (OTHER, 2): HeldJob("red", "a", started=True),
    }
    assert known(site(one), **RUNS).holder == Holder(4.0, calls=("red",), started=False, waiting=1)
    one.held[JOB, 2].started, one.contact.silent = True, True
    silent = Holder(4.0, condition=Condition.SILENT, calls=("red", "red"), waiting=1)
    assert known(site(one), **RUNS).holder == replace(silent, started=True)
    assert known(site(one), **RUNS, attempts=3).holder == silent
    one.contact.heard_s = float("inf")
    holder = known(site(one), **RUNS).holder
    assert holder is not None
    assert holder.heard_ago_s is None
    assert known(site(), **RUNS).holder is None
    assert known(site(one)).holder is None


def test_who_has_it_and_is_not_connected() -> None:
    one = worker()
    one.watched, one.jobs.held = True, {(JOB, 2): HeldJob("red", "a", started=True)}
    on = site(one)
    on.services.registry.leave(one)
    assert known(on, **RUNS).holder == Holder(4.0, is_connected=False, calls=("red",), started=True)


@pytest.mark.parametrize(("progress_s", "ago_s"), [(0.0, None), (6.0, None), (7.0, 2.0)])
def test_what_would_end_it(progress_s: float, ago_s: float | None) -> None:
    """Its limits, and its last progress; the beginning of its time is none."""
    one = worker()
    held = HeldJob("red", "a", started=True, timeout_s=60.0, stall_s=5.0, since_s=5.95, progress_s=progress_s)
    one.jobs.held = {(JOB, 2): held}
    holder = known(site(one), **RUNS).holder
    assert holder is not None
    assert (holder.timeout_s, holder.stall_s, holder.progress_ago_s) == (60.0, 5.0, ago_s)


@pytest.mark.parametrize(("said_s", "heard_s", "silent", "state", "condition"), [
    (9.0, 9.0, False, "T", Condition.STOPPED),  # the kernel says so before it is missed
    (0.0, 8.0, False, "S", Condition.WELL),  # less than two heartbeats ago
    (-11.0, 8.0, False, "t", Condition.STOPPED),
    (-11.0, 8.0, False, "S", Condition.BLOCKED),
    (-11.0, -11.0, False, "S", Condition.WELL),
    (-11.0, -11.0, True, "S", Condition.SILENT),
])  # fmt: skip
def test_why_it_says_nothing(
    said_s: float, heard_s: float, *, silent: bool, state: str, condition: Condition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped by a signal, blocked while its parent speaks for it, or unknown; an idle one need not speak."""
    monkeypatch.setattr(processes, "state", lambda _pid: state)
    one = worker()
    one.watched, one.contact.said_s, one.contact.heard_s, one.contact.silent = True, said_s, heard_s, silent
    idle = Condition.SILENT if silent else Condition.WELL
    assert condition_of(one, 9.0, 10.0) is (condition if condition is Condition.STOPPED else idle)
    one.jobs.held = {(JOB, 2): HeldJob("red", "a", started=True)}
    assert condition_of(one, 9.0, 10.0) is condition
    one.watched = False  # another user's, or another pid namespace's: that process may be any
    assert condition_of(one, 9.0, 10.0) is not Condition.STOPPED


def test_who_was_never_heard_of_is_not_quiet_for_ever() -> None:
    one = worker()
    one.jobs.held = {(JOB, 2): HeldJob("red", "a", started=True)}
    assert (quiet_s(one, 9.0), condition_of(one, 1e9, 10.0)) == (0.0, Condition.WELL)


def test_when_a_silent_one_is_killed() -> None:
    """A lease after its last heartbeat, also while the server renews its leases; only one that can be killed."""
    one = worker()
    one.jobs.held = {(JOB, 2): HeldJob("red", "a", started=True)}
    one.contact.beaten_s = 5.0
    assert (holder := known(site(one), **RUNS).holder) is not None
    assert holder.left_s is None
    one.watched = True
    on = site(one)
    for extended_s in (6.0, 8.0):
        one.contact.extended_s = extended_s
        assert (holder := known(on, **RUNS).holder) is not None
        assert holder.left_s == 26.0
    on.services.registry.policies.leases["a"] = 60.0
    assert (holder := known(on, **RUNS).holder) is not None
    assert holder.left_s == 56.0


def test_a_stopped_one_starts_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "state", lambda _pid: "T")
    one = worker()
    one.watched = True
    assert [candidate.stopped for candidate in known(site(one)).candidates] == ["stopped (SIGSTOP)"]


def test_what_slows_all_down() -> None:
    found = Finding("xmin", State.WARNING, "session 7 is idle", ("session 8",), ("While …", "SELECT 7;"))
    slow = facts_of(site(), BASE, 9.0, found).slow
    assert slow is not None
    assert "session 7 is idle (and 1 more)" in slow[0]
    assert slow[1] == "If nobody needs it: SELECT 7;"


def test_this_dispatcher() -> None:
    on = site(worker())
    on.services.registry.closed = True
    on.services.quarantine._pauses = {
        frozenset({"a"}): (9.5, LONGEST_S, False),
        frozenset({"c"}): (9.0, LONGEST_S, False),
    }
    on.services.registry.policies.ageing_s["a"] = 5.0
    found = known(on)
    assert (found.is_stopping, found.is_unreadable, found.is_ageing) == (True, True, True)
    elsewhere = known(on, topic="c")
    assert (elsewhere.is_unreadable, elsewhere.is_ageing) == (False, False)
    assert not known(on, topic="d").is_unreadable


def test_an_earlier_attempt_in_the_book() -> None:
    """A process that can be killed may still run it; a running job has no earlier attempt that counts."""
    one = worker()
    one.watched, one.jobs.held = True, {(JOB, 1): HeldJob("red", "a", started=True)}
    assert known(site(one)).earlier == "w"
    assert known(site(one), **RUNS).earlier is None
    one.watched = False
    assert known(site(one)).earlier is None


@pytest.mark.parametrize(("columns", "earlier"), [
    ({"outcome": "canceled", "worker": ME}, "w"), ({"outcome": "lease_expired", "worker": ME}, "w"),
    ({"outcome": "error", "worker": ME}, None), ({"outcome": "canceled", "worker": "there/b/1/7.8/w"}, None),
    ({"outcome": "canceled", "worker": None}, None),
])  # fmt: skip
def test_an_earlier_attempt_of_a_process_that_lives(columns: dict[str, Any], earlier: str | None) -> None:
    assert known(site(), **columns).earlier == earlier
    assert known(site(worker()), **columns).earlier is None
