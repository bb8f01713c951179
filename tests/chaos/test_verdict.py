"""The ledger's rules: each notices what breaks it, and a ledger in which all went well breaks none."""

from __future__ import annotations

import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.chaos.load.ledger import LIMITED_TOPIC, ORDERED_TOPIC, Ledger, Line, read
from tests.chaos.verdict import Database, Row, judge
from tests.support.waiting import until

PID = 7
A, B, C, D, E = (UUID(int=number) for number in range(1, 6))
SPAWN = multiprocessing.get_context("spawn")


def line(act: str, job: UUID, attempt: int = 0, at_s: float = 0.0, **facts: object) -> Line:
    return Line(act, job, attempt, PID, at_s, facts)


def run(
    job: UUID, attempt: int, start_s: float, end_s: float | None, how: str = "ok", *, pid: int | None = None
) -> list[Line]:
    """An attempt, from its start to its end, if it came to one; each in a process of its own, unless that is named."""
    pid = 100 * job.int + attempt if pid is None else pid
    start = replace(line("start", job, attempt, start_s), pid=pid)
    return [start] if end_s is None else [start, replace(line("end", job, attempt, end_s, how=how), pid=pid)]


def submitted(*jobs: UUID) -> list[Line]:
    return [line(act, job) for job in jobs for act in ("intent", "acked")]


# A: simply completed. B: its worker died, then completed. C: failed, snoozed, completed. D: done, but its result was
# lost, so it was done again. E: of a schedule, canceled while it ran.
LINES = [
    *submitted(A, B, C, D), *run(A, 1, 1, 2), *run(B, 1, 1, None), *run(B, 2, 3, 4), *run(C, 1, 1, 2, "ValueError"),
    *run(C, 2, 3, 4), *run(C, 3, 5, 6), *run(D, 1, 1, 2), *run(D, 2, 5, 6),
    *run(E, 1, 1, 2, "CancelledError, cancelled"),
]  # fmt: skip
DATABASE = Database(
    {
        A: Row("COMPLETED", 1, "a", told_by=1), B: Row("COMPLETED", 2, "b", told_by=2),
        C: Row("COMPLETED", 3, "later"), D: Row("COMPLETED", 2, "d"), E: Row("CANCELED", 1, "e", is_scheduled=True),
    },
    {(B, 1): "crashed", (C, 1): "error", (C, 2): "snoozed", (D, 1): "lease_expired", (E, 1): "canceled"},
    frozenset({(A, 1), (B, 1), (B, 2), (C, 1), (C, 2), (C, 3), (D, 1), (D, 2), (E, 1)}),
)  # fmt: skip


def test_all_went_well() -> None:
    """What may happen violates nothing; the one duplicate has the reap that explains it."""
    found = judge(LINES, DATABASE)
    assert found.wrong == {}
    assert found.is_good
    assert (found.duplicates, found.counts["acked"]) == ({(D, 1): "lease_expired"}, 4)
    assert (found.counts["duplicates"], found.counts["reaped: crashed"]) == (1, 1)


def changed(**rows: Row) -> Database:
    return replace(DATABASE, jobs={**DATABASE.jobs, **{globals()[name]: row for name, row in rows.items()}})


def told(history: dict[tuple[UUID, int], str]) -> Database:
    return replace(DATABASE, history={**DATABASE.history, **history})


def dead_of(name: str, outcome: str) -> Database:
    return replace(
        changed(E=Row("DEAD_LETTERED", 1, name, is_scheduled=True)), history={**DATABASE.history, (E, 1): outcome}
    )


# A's result, of attempt 1, was not known to anybody, or so pulse says; attempt 2 was made.
AGAIN = replace(changed(A=Row("COMPLETED", 2, "a", told_by=2)), claims=DATABASE.claims | {(A, 2)})


def again(outcome: str) -> Database:
    return replace(AGAIN, history={**AGAIN.history, (A, 1): outcome})


def without(job: UUID) -> Database:
    return replace(DATABASE, jobs={one: row for one, row in DATABASE.jobs.items() if one != job})


def of_groups(groups: str, topic: str = LIMITED_TOPIC) -> list[Line]:
    """The same, where each of the four jobs has a group."""
    facts = {job: {"topic": topic, "group_key": group} for job, group in zip((A, B, C, D), groups, strict=True)}
    return [replace(one, facts=facts[one.job]) if one.act == "intent" else one for one in LINES]


def two(facts: dict[str, object], *runs: Line, outcome: str | None = None) -> tuple[list[Line], Database]:
    """A was submitted, then B; their attempts, which all but the last had *outcome*."""
    lines = [replace(one, facts=facts) if one.act == "intent" else one for one in submitted(A, B)]
    pairs = frozenset((one.job, one.attempt) for one in runs)
    last = {job: max(attempt for one, attempt in pairs if one == job) for job in (A, B)}
    history = {pair: outcome for pair in pairs if outcome is not None and pair[1] != last[pair[0]]}
    rows = {job: Row("COMPLETED", last[job], "x") for job in (A, B)}
    return [*lines, *runs], Database(rows, history, pairs)


def waiting(child: UUID, parent: UUID) -> list[Line]:
    """The same, where one of the jobs waits for another, whose failure cancels it."""
    facts = {"after": [str(parent)], "on_failure": "cancel"}
    return [replace(one, facts=facts) if one.act == "intent" and one.job == child else one for one in LINES]


def canceled(lines: list[Line], database: Database) -> tuple[list[Line], Database]:
    """The same, where A was canceled at its first attempt."""
    rows = {**database.jobs, A: Row("CANCELED", 1, "x")}
    return lines, replace(database, jobs=rows, history={(A, 1): "canceled"})


ORDERED: dict[str, object] = {"topic": ORDERED_TOPIC, "group_key": "g"}
KEY: dict[str, Any] = {"unique": "k", "unique_until": "end"}
WAITED_FOR_B = [line("intent", C, **KEY), line("not_new", C, other=str(B))]  # a submit that found B


@pytest.mark.parametrize("groups", ["gghh", "ghij"])
def test_slots_of_groups(groups: str) -> None:
    """Four at once, two of each group at most."""
    assert judge(of_groups(groups), DATABASE).wrong == {}


@pytest.mark.parametrize(("rule", "lines", "database"), [
    ("no more of a limit", [*of_groups("gggh"), *run(A, 2, 3, 4)], AGAIN),
    ("no more of a limit", of_groups("ghgi", ORDERED_TOPIC), DATABASE),
    ("the jobs of a seq", *two(ORDERED, *run(B, 1, 1, 2), *run(A, 1, 3, 4))),
    # An earlier one is tried again after a later one.
    ("the jobs of a seq", *two(ORDERED, *run(A, 1, 1, None), *run(B, 1, 2, 3), *run(A, 2, 4, 5), outcome="crashed")),
    ("a job starts after", waiting(A, C), DATABASE),
    ("a failed job", waiting(A, B), changed(B=Row("DEAD_LETTERED", 2, "b"))),
    ("a unique key", *two(KEY, *run(A, 1, 1, 3), *run(B, 1, 2, 4))),
    ("a unique key", [*WAITED_FOR_B, *LINES], DATABASE),
    ("a unique key", [line("intent", C, **KEY), line("not_new", C, other=str(UUID(int=9))), *LINES], without(C)),
    ("I1", LINES, without(A)),
    ("I2", [one for one in LINES if not (one.job == A and one.act == "intent")], DATABASE),
    ("I5", [*LINES, line("start", A, 1, 1.5)], DATABASE),
    ("I9", [*LINES, *run(A, 2, 3, 4)], DATABASE),
    ("I9", LINES, replace(DATABASE, claims=DATABASE.claims - {(A, 1)})),
    ("I16", LINES, without(A)),
    ("I17", [one for one in LINES if not (one.job == A and one.act == "end")], DATABASE),
    ("I17", LINES, changed(A=Row("COMPLETED", 1, "a", told_by=2))),
    ("I18", [*LINES, line("overlap", B, 2, 3, other=8)], DATABASE),
    ("I18", [*LINES, line("end", B, 1, 3.5, how="ok")], DATABASE),
    ("no attempt starts", *two({}, *run(A, 1, 5, 6), *run(A, 2, 3, 4), *run(B, 1, 1, 2), outcome="lease_expired")),
    ("each end in", LINES, told({(C, 1): "retry"})),
    ("each end in", LINES, told({(B, 1): "error"})),
    ("each end in", [*LINES, *run(A, 2, 5, 6)], again("error")),
    ("each end is on", LINES, changed(A=Row("DEAD_LETTERED", 1, "a"))),
    ("each duplicate", [*LINES, *run(A, 2, 5, 6)], again("timeout")),
    ("each duplicate", LINES, replace(DATABASE, history={(B, 1): "crashed", (C, 1): "error", (C, 2): "snoozed"})),
    # Given back, or dead, though its process wrote a line after the next attempt had begun.
    ("who is said", [*LINES, *run(A, 2, 5, 6), *run(D, 3, 7, 8, pid=101)], again("released")),
    ("who is said", [*LINES, *run(A, 2, 5, 6), *run(D, 3, 7, 8, pid=101)], again("crashed")),
    ("no neighbour", LINES, dead_of("short", "crashed")),
    ("nothing", LINES, changed(E=Row("RETRYING", 1, "e", is_scheduled=True))),
])  # fmt: skip
def test_a_violation_is_noticed(rule: str, lines: list[Line], database: Database) -> None:
    found = judge(lines, database)
    assert [one for one in found.wrong if one.startswith(rule)], found.wrong
    assert not found.is_good


def on_two_hosts(*, outcome: str = "lease_expired", hosts: str = "xy", dark: str = "x") -> tuple[list[Line], Database]:
    """A ran on one host, and before it had ended there on another one; hosts that were cut off then."""
    attempts = (run(A, 1, 1, 5), run(A, 2, 3, 4))
    runs = [replace(one, host=host) for host, some in zip(hosts, attempts, strict=True) for one in some]
    lines, database = two({}, *runs, *run(B, 1, 1, 2), outcome=outcome)
    return lines, replace(database, dark_s={host: [(2.0, 3.5)] for host in dark})


def test_a_host_that_is_cut_off_may_still_run_a_job() -> None:
    found = judge(*on_two_hosts())
    assert found.wrong == {}
    assert found.counts["overlaps"] == 1


@pytest.mark.parametrize("other", [{"outcome": "error"}, {"hosts": "xx"}, {"dark": ""}, {"dark": "y"}])
def test_nothing_else_excuses_an_overlap(other: dict[str, str]) -> None:
    assert [one for one in judge(*on_two_hosts(**other)).wrong if one.startswith("I18")]


def test_a_cut_excuses_overlaps_while_it_lasts() -> None:
    lines, database = on_two_hosts()
    for from_s, until_s in ((0.0, 2.9), (3.1, 9.0)):
        found = judge(lines, replace(database, dark_s={"x": [(from_s, until_s)]}))
        assert [one for one in found.wrong if one.startswith("I18")]


def test_the_ledger_knows_the_host_of_a_line(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "h1", tmp_path / "h2"):
        Ledger(place).write("start", A, 1)
    assert sorted(one.host for one in read(tmp_path)) == ["", "h1", "h2"]


UNFINISHED = [one for one in LINES if not (one.job == E and one.act == "end")]
CRASHED = dead_of("short", "crashed")


@pytest.mark.parametrize(("lines", "database"), [
    # A result that was lost with its process, or with its lease.
    *(([*LINES, *run(A, 2, 5, 6)], again(outcome)) for outcome in ("crashed", "lease_expired", "released")),
    # In a sequence: one after the other, a retry in its place; at once, if it was canceled and goes on.
    two(ORDERED, *run(A, 1, 1, 2, "ValueError"), *run(A, 2, 2.5, 3), *run(B, 1, 3, 4), outcome="error"),
    canceled(*two(ORDERED, *run(A, 1, 1, 3, "CancelledError, cancelled"), *run(B, 1, 2, 4))),
    # A later job with the same key; one that is held only until its start.
    two(KEY, *run(A, 1, 1, 2), *run(B, 1, 2, 3)),
    two({**KEY, "unique_until": "start"}, *run(A, 1, 1, 3), *run(B, 1, 2, 4)),
    # One that waits for another starts after its last attempt, or did not start yet when an operator revived that.
    (waiting(D, A), replace(DATABASE, revived=frozenset({(A, 1)}))),
    # Another process got the number of one that is dead.
    ([*LINES, *(replace(one, born=5) for one in run(A, 2, 5, 6, pid=101))], again("crashed")),
    # Only `deadly` handlers end their process; a job may die of anything else, of its age, or of three strikes.
    (UNFINISHED, dead_of("deadly", "crashed")),
    (UNFINISHED, dead_of("hung", "timeout")),
    (UNFINISHED, replace(CRASHED, history={**CRASHED.history, (E, 0): "expired"})),
    (UNFINISHED, replace(CRASHED, strikes=3, processes={(E, 1): (100 * B.int + 1, 0)})),
    # A handler returned what cannot be stored.
    (LINES, replace(changed(A=Row("DEAD_LETTERED", 1, "wicked")), history={**DATABASE.history, (A, 1): "error"})),
    # A submit that nobody acknowledged.
    ([*LINES, line("intent", UUID(int=9))], DATABASE),
    # An operator's retry of a completed job.
    (
        [*LINES, *run(A, 2, 5, 6)],
        replace(changed(A=Row("COMPLETED", 2, "a")), claims=DATABASE.claims | {(A, 2)}, revived=frozenset({(A, 1)})),
    ),
])  # fmt: skip
def test_what_may_happen(lines: list[Line], database: Database) -> None:
    assert judge(lines, database).wrong == {}


def test_who_died_beside_a_deadly_job() -> None:
    beside = replace(CRASHED, strikes=3, processes={(E, 1): (100 * B.int + 1, 0)})
    beside = replace(beside, jobs={**beside.jobs, B: Row("COMPLETED", 2, "deadly", told_by=2)})
    (found,) = judge(UNFINISHED, beside).wrong["no neighbour's death is the end of a job"]
    assert "died in the same process" in found
    assert judge(UNFINISHED, replace(beside, processes={(E, 1): (100 * B.int + 2, 0)})).wrong == {}


def hold(directory: Path, job: UUID) -> None:
    ledger = Ledger(directory)
    ledger.write("start", job, 1)
    assert ledger.enter(job) is None
    ledger.write("held", job, 1)
    signal.pause()


@pytest.mark.process
def test_the_ledger_sees_overlaps(tmp_path: Path) -> None:
    """A job that another process runs cannot be entered until that process is dead; nor twice in one process."""
    other = SPAWN.Process(target=hold, args=(tmp_path, A), daemon=True)
    other.start()
    ledger = Ledger(tmp_path)
    try:
        until(lambda: any(one.act == "held" for one in read(tmp_path)), "the other process holds the job")
        assert ledger.enter(A) == other.pid
        assert ledger.enter(B) is None
        assert ledger.enter(B) == os.getpid()
        ledger.leave(B)
        assert ledger.enter(B) is None
    finally:
        other.kill()
        other.join()
    assert ledger.enter(A) is None
