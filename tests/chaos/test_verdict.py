"""The ledger's rules: each notices what breaks it, and a ledger in which all went well breaks none."""

from __future__ import annotations

import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from tests.chaos.ledger import Ledger, Line, read
from tests.chaos.verdict import Database, Row, judge

PID = 7
A, B, C, D, E = (UUID(int=number) for number in range(1, 6))
SPAWN = multiprocessing.get_context("spawn")


def line(act: str, job: UUID, attempt: int = 0, at_s: float = 0.0, **facts: object) -> Line:
    """An act."""
    return Line(act, job, attempt, PID, at_s, facts)


def run(job: UUID, attempt: int, start_s: float, end_s: float | None, how: str = "ok") -> list[Line]:
    """An attempt, from its start to its end, if it came to one."""
    start = line("start", job, attempt, start_s)
    return [start] if end_s is None else [start, line("end", job, attempt, end_s, how=how)]


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
        C: Row("COMPLETED", 3, "c"),
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
