"""The ledger's rules: each notices what breaks it, and a ledger in which all went well breaks none."""

from __future__ import annotations

import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from tests.chaos.load.ledger import Ledger, Line, read
from tests.chaos.verdict import Database, Row, judge

PID = 7
A, B, C, D, E = (UUID(int=number) for number in range(1, 6))
SPAWN = multiprocessing.get_context("spawn")


def line(act: str, job: UUID, attempt: int = 0, at_s: float = 0.0, **facts: object) -> Line:
    """An act."""
    return Line(act, job, attempt, PID, at_s, facts)


def run(
    job: UUID, attempt: int, start_s: float, end_s: float | None, how: str = "ok", *, pid: int | None = None
) -> list[Line]:
    """An attempt, from its start to its end, if it came to one; each in a process of its own, unless that is named."""
    pid = 100 * job.int + attempt if pid is None else pid
    start = replace(line("start", job, attempt, start_s), pid=pid)
    return [start] if end_s is None else [start, replace(line("end", job, attempt, end_s, how=how), pid=pid)]


def submitted(*jobs: UUID) -> list[Line]:
    """Their submits."""
    return [line(act, job) for job in jobs for act in ("intent", "acked")]


# A: simply completed. B: its worker died, then completed. C: failed, snoozed, completed. D: done, but its result was
# lost, so it was done again. E: of a schedule, canceled while it ran.
LINES = [
    *submitted(A, B, C, D),
    *run(A, 1, 1, 2),
    *run(B, 1, 1, None),
    *run(B, 2, 3, 4),
    *run(C, 1, 1, 2, "ValueError"),
    *run(C, 2, 3, 4),
    *run(C, 3, 5, 6),
    *run(D, 1, 1, 2),
    *run(D, 2, 5, 6),
    *run(E, 1, 1, 2, "CancelledError, cancelled"),
]
DATABASE = Database(
    {
        A: Row("COMPLETED", 1, "a", told_by=1),
        B: Row("COMPLETED", 2, "b", told_by=2),
        C: Row("COMPLETED", 3, "later"),
        D: Row("COMPLETED", 2, "d"),
        E: Row("CANCELED", 1, "e", is_scheduled=True),
    },
    {(B, 1): "crashed", (C, 1): "error", (C, 2): "snoozed", (D, 1): "lease_expired", (E, 1): "canceled"},
    frozenset({(A, 1), (B, 1), (B, 2), (C, 1), (C, 2), (C, 3), (D, 1), (D, 2), (E, 1)}),
)


def test_all_went_well() -> None:
    """What may happen violates nothing; the one duplicate is told with the reap that explains it."""
    found = judge(LINES, DATABASE)
    assert found.wrong == {}
    assert found.is_good
    assert found.duplicates == {(D, 1): "lease_expired"}
    assert found.counts["acked"] == 4
    assert (found.counts["duplicates"], found.counts["reaped: crashed"]) == (1, 1)


def changed(**rows: Row) -> Database:
    """The database with other rows."""
    return replace(DATABASE, jobs={**DATABASE.jobs, **{globals()[name]: row for name, row in rows.items()}})


def told(history: dict[tuple[UUID, int], str]) -> Database:
    """The database with another history."""
    return replace(DATABASE, history={**DATABASE.history, **history})


def dead_of(name: str, outcome: str) -> Database:
    """The database where job E is a dead letter, and ended like this."""
    return replace(
        changed(E=Row("DEAD_LETTERED", 1, name, is_scheduled=True)), history={**DATABASE.history, (E, 1): outcome}
    )


# A's result, of attempt 1, was not known to anybody, or so pulse says; attempt 2 was made.
AGAIN = replace(changed(A=Row("COMPLETED", 2, "a", told_by=2)), claims=DATABASE.claims | {(A, 2)})


def again(outcome: str) -> Database:
    """A is done again, because its first attempt ended like this."""
    return replace(AGAIN, history={**AGAIN.history, (A, 1): outcome})


def without(job: UUID) -> Database:
    """The database without a job."""
    return replace(DATABASE, jobs={one: row for one, row in DATABASE.jobs.items() if one != job})


@pytest.mark.parametrize(
    ("rule", "lines", "database"),
    [
        ("I1", LINES, without(A)),
        ("I2", [one for one in LINES if not (one.job == A and one.act == "intent")], DATABASE),
        ("I5", [*LINES, line("start", A, 1, 1.5)], DATABASE),
        ("I9", [*LINES, *run(A, 2, 3, 4)], DATABASE),
        ("I9", [*LINES, *run(UUID(int=9), 1, 3, 4)], DATABASE),
        ("I9", LINES, replace(DATABASE, claims=DATABASE.claims - {(A, 1)})),
        ("I16", LINES, without(A)),
        ("I17", [one for one in LINES if not (one.job == A and one.act == "end")], DATABASE),
        ("I17", LINES, changed(A=Row("COMPLETED", 1, "a", told_by=2))),
        ("I17", LINES, changed(E=Row("COMPLETED", 1, "e", is_scheduled=True))),
        ("I18", [*LINES, line("overlap", B, 2, 3, other=8)], DATABASE),
        ("I18", [*LINES, line("end", B, 1, 3.5, how="ok")], DATABASE),
        ("each end", LINES, told({(C, 1): "retry"})),
        ("each end", LINES, told({(C, 1): "snoozed"})),
        ("each end", LINES, told({(B, 1): "error"})),
        # It ended well, and the history says otherwise: an error, another try, an end for good, a hang.
        ("each end in", [*LINES, *run(A, 2, 5, 6)], again("error")),
        ("each end in", [*LINES, *run(A, 2, 5, 6)], again("retry")),
        ("each end in", [*LINES, *run(A, 2, 5, 6)], again("snoozed")),
        ("each end in", LINES, replace(changed(A=Row("DEAD_LETTERED", 1, "a")), history={(A, 1): "error"})),
        ("each end in", LINES, replace(changed(A=Row("DEAD_LETTERED", 1, "a")), history={(A, 1): "discarded"})),
        ("each duplicate", [*LINES, *run(A, 2, 5, 6)], again("error")),
        ("each duplicate", [*LINES, *run(A, 2, 5, 6)], again("timeout")),
        ("each duplicate", [*LINES, *run(A, 2, 5, 6)], again("canceled")),
        # It ended, and nothing says how.
        ("each end is on", LINES, changed(A=Row("DEAD_LETTERED", 1, "a"))),
        ("each end is on", LINES, changed(A=Row("CANCELED", 1, "a"))),
        # Given back, or dead, though its process was there when the next attempt had begun.
        ("who is said", [*LINES, *run(A, 2, 5, 6, pid=101)], again("released")),
        ("who is said", [*LINES, *run(A, 2, 5, 6), *run(D, 3, 7, 8, pid=101)], again("released")),
        ("who is said", [*LINES, *run(A, 2, 5, 6), *run(D, 3, 7, 8, pid=101)], again("crashed")),
        ("who is said", [*LINES, *run(D, 3, 7, 8, pid=201)], DATABASE),
        # Its neighbours, or the nemesis, killed it for good.
        ("no neighbour", LINES, dead_of("short", "crashed")),
        ("no neighbour", LINES, dead_of("doomed", "crashed")),
        ("I9", LINES, replace(DATABASE, claims=frozenset())),
        ("each duplicate", LINES, told({(D, 1): "retry"})),
        ("each duplicate", LINES, replace(DATABASE, history={(B, 1): "crashed", (C, 1): "error", (C, 2): "snoozed"})),
        ("nothing", LINES, changed(E=Row("RUNNING", 1, "e", is_scheduled=True))),
        ("nothing", LINES, changed(E=Row("PENDING", 1, "e", is_scheduled=True))),
        ("nothing", LINES, changed(E=Row("RETRYING", 1, "e", is_scheduled=True))),
    ],
)
def test_a_violation_is_noticed(rule: str, lines: list[Line], database: Database) -> None:
    """Each rule has something that breaks it."""
    found = judge(lines, database)
    assert [one for one in found.wrong if one.startswith(rule)], found.wrong
    assert not found.is_good


@pytest.mark.parametrize("outcome", ["crashed", "lease_expired", "released"])
def test_a_result_that_was_lost(outcome: str) -> None:
    """Work that was done is done again where its process ended, or its lease lapsed, before anybody knew of it."""
    found = judge([*LINES, *run(A, 2, 5, 6)], again(outcome))
    assert found.wrong == {}
    assert found.duplicates == {(A, 1): outcome, (D, 1): "lease_expired"}


def test_a_worker_that_drains() -> None:
    """It interrupts what does not end in time, gives it back, and works on for a while."""
    lines = [*LINES, *run(UUID(int=9), 1, 1, 2, "CancelledError, cancelled", pid=9), *run(UUID(int=9), 2, 3, 4)]
    lines += [*submitted(UUID(int=9), UUID(int=10)), *run(UUID(int=10), 1, 1, 5, pid=9)]
    ten, nine = (UUID(int=10), 1), (UUID(int=9), 1)
    database = Database(
        {**DATABASE.jobs, nine[0]: Row("COMPLETED", 2, "long"), ten[0]: Row("COMPLETED", 1, "long")},
        {**DATABASE.history, nine: "released"},
        DATABASE.claims | {nine, (nine[0], 2), ten},
    )
    assert judge(lines, database).wrong == {}


def test_the_same_pid_is_not_the_same_process() -> None:
    """Who is dead does not write again because another process got its number."""
    other = [replace(one, born=5) for one in run(A, 2, 5, 6, pid=101)]
    assert judge([*LINES, *other], again("crashed")).wrong == {}


@pytest.mark.parametrize(("name", "outcome"), [("deadly", "crashed"), ("hung", "timeout"), ("short", "discarded")])
def test_dead_of_its_own_doing(name: str, outcome: str) -> None:
    """A job that ends its process may die of that; a job that never does may die of anything else."""
    lines = [one for one in LINES if not (one.job == E and one.act == "end")]
    assert not [one for one in judge(lines, dead_of(name, outcome)).wrong if one.startswith("no neighbour")]


def test_dead_of_its_age() -> None:
    """A job whose worker had died, and that expired before it was tried again, was not killed by others."""
    database = dead_of("perishable", "crashed")
    lines = [one for one in LINES if not (one.job == E and one.act == "end")]
    assert judge(lines, database).wrong
    assert judge(lines, replace(database, history={**database.history, (E, 0): "expired"})).wrong == {}


def test_hit_by_the_nemesis() -> None:
    """Three times the same job: its end, if no neighbour died where it ended."""
    database = replace(dead_of("short", "crashed"), strikes=3, processes={(E, 1): (100 * B.int + 1, 0)})
    lines = [one for one in LINES if not (one.job == E and one.act == "end")]
    assert judge(lines, database).wrong == {}
    assert judge(lines, replace(database, strikes=2)).wrong
    beside = replace(database, jobs={**database.jobs, B: Row("COMPLETED", 2, "deadly", told_by=2)})
    (found,) = judge(lines, beside).wrong["no neighbour's death is the end of a job"]
    assert "died in the same process" in found
    elsewhere = replace(beside, processes={(E, 1): (100 * B.int + 2, 0)})
    assert judge(lines, elsewhere).wrong == {}


def test_what_cannot_be_stored() -> None:
    """A handler that returned what the database cannot hold has come to its end, and is an error all the same."""
    database = replace(changed(A=Row("DEAD_LETTERED", 1, "wicked")), history={**DATABASE.history, (A, 1): "error"})
    assert judge(LINES, database).wrong == {}


def test_unacknowledged_submits() -> None:
    """A submit that nobody acknowledged may be there or not."""
    unknown = UUID(int=9)
    lines = [*LINES, line("intent", unknown)]
    assert judge(lines, DATABASE).is_good
    there = replace(DATABASE, jobs={**DATABASE.jobs, unknown: Row("CANCELED", 0, "x")})
    assert judge(lines, there).is_good


def test_an_operators_retry() -> None:
    """A completed job that an operator starts anew is no duplicate."""
    lines = [*LINES, *run(A, 2, 5, 6)]
    database = replace(
        changed(A=Row("COMPLETED", 2, "a")),
        claims=DATABASE.claims | {(A, 2)},
        revived=frozenset({(A, 1)}),
    )
    found = judge(lines, database)
    assert found.wrong == {}
    assert (A, 1) not in found.duplicates


def hold(directory: Path, job: UUID) -> None:
    """Run that job, in a process of its own, for ever."""
    ledger = Ledger(directory)
    ledger.write("start", job, 1)
    assert ledger.enter(job) is None
    ledger.write("held", job, 1)
    signal.pause()


@pytest.mark.process
def test_the_ledger_sees_overlaps(tmp_path: Path) -> None:
    """A job that another process runs cannot be entered, until that process is dead; nor twice in one process."""
    other = SPAWN.Process(target=hold, args=(tmp_path, A), daemon=True)
    other.start()
    ledger = Ledger(tmp_path)
    try:
        while not [one for one in read(tmp_path) if one.act == "held"]:
            other.join(0.01)
        assert ledger.enter(A) == other.pid
        assert ledger.enter(B) is None
        assert ledger.enter(B) == os.getpid()
        ledger.leave(B)
        assert ledger.enter(B) is None
    finally:
        other.kill()
        other.join()
    assert ledger.enter(A) is None


def test_the_ledger_keeps_what_is_written(tmp_path: Path) -> None:
    """Lines come back as they were written, in the order of time, of whichever process; a child has its own file."""
    ledger = Ledger(tmp_path)
    ledger.write("intent", A)
    ledger.write("start", A, 3, name="short")
    child = os.fork()
    if child == 0:
        ledger.write("child", A, 3)
        os._exit(0)
    os.waitpid(child, 0)
    found = read(tmp_path)
    assert [(one.act, one.job, one.attempt, one.pid) for one in found] == [
        ("intent", A, 0, os.getpid()),
        ("start", A, 3, os.getpid()),
        ("child", A, 3, child),
    ]
    assert found[1].facts == {"name": "short"}
    assert found == sorted(found, key=lambda one: one.at_s)
    assert len(list(tmp_path.glob("*.jsonl"))) == 2
