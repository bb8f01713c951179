"""Random histories of jobs that wait for others, some of them submitted by transactions that stay open for a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import asyncpg
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pulse.store.admin.checks import TABLES
from pulse.store.statements import STATEMENTS
from tests.plugins.databases import EMPTY
from tests.pulse.store.workflows.test_dependencies_pg import cancel, complete, expire, fail, submit
from tests.support.servers.postgres import Postgres
from tests.support.store.helpers import EXAMPLES, TERMINAL, Database, Sql, history_database, run_histories

pytestmark = [pytest.mark.long, pytest.mark.heavy]

ENDS: Final = {complete: "COMPLETED", cancel: "CANCELED", fail: "DEAD_LETTERED", expire: "DEAD_LETTERED"}
CHECK: Final = next(one.statement.sql for one in TABLES if one.name == "dependencies" and one.statement is not None)
ROWS: Final = """
    SELECT id, status::text, coalesce(waiting_on, 0), next_run_at = '9999-12-30 00:00+00' AND completed_at IS NULL
    FROM pulse.jobs ORDER BY id"""


@dataclass(slots=True)
class Known:
    """A job, and the ends that it waits for, with what it does if that is a failure."""

    status: str = "PENDING"
    waits_for: dict[UUID, str] = field(default_factory=dict)


@pytest.fixture(scope="module")
def database(server: Postgres) -> Iterator[tuple[Database, Sql]]:
    """And a session beside it, whose transactions stay open."""
    with history_database(server) as made:
        other = made.run(asyncpg.connect(made.store.query.target.dsn))
        yield made, other
        made.run(other.close(timeout=5))


class DependencyMachine(RuleBasedStateMachine):
    def __init__(self, database: Database, other: Sql) -> None:
        super().__init__()
        self.run = database.runner.run
        self.connection = database.connection
        self.other = other
        self.is_open = False
        self.pending: dict[UUID, Known] = {}  # of the open transaction
        self.jobs: dict[UUID, Known] = {}

    @initialize()
    def first(self) -> None:
        self.run(self.connection.execute(f"{EMPTY}; DELETE FROM pulse.dependencies"))
        self.submits([], None)

    def teardown(self) -> None:
        self.run(self.other.execute("ROLLBACK"))

    def _parents(self, places: Sequence[int], known: Mapping[UUID, Known]) -> list[UUID]:
        ids = sorted(known)
        return list(dict.fromkeys(ids[place % len(ids)] for place in places)) if ids else []

    def _tell(self, ended: UUID, jobs: Mapping[UUID, Known]) -> None:
        """What follows for those of *jobs* that wait for it."""
        status = (self.jobs | self.pending)[ended].status
        for child, one in jobs.items():
            on_failure = one.waits_for.pop(ended, None)
            if on_failure == "cancel" and status != "COMPLETED" and one.status == "PENDING":
                one.status = "CANCELED"
                self._tell(child, jobs)

    @rule(places=st.lists(st.integers(0, 9), max_size=3), on_failure=st.sampled_from([None, "cancel", "run"]))
    def submits(self, places: list[int], on_failure: str | None) -> None:
        parents = self._parents(places, self.jobs)
        options = {"on_failure": on_failure} if on_failure and parents else {}
        made = self.run(submit(self.connection, *parents, **options))
        self.jobs[made] = Known(waits_for=dict.fromkeys(parents, on_failure or "cancel"))
        self._settle_ended(parents)

    def _settle_ended(self, parents: Sequence[UUID]) -> None:
        for one in parents:
            if one in self.jobs and self.jobs[one].status in TERMINAL:
                self._tell(one, self.jobs)

    @rule(places=st.lists(st.integers(0, 9), min_size=1, max_size=3), on_failure=st.sampled_from(["cancel", "run"]))
    def submits_in_a_transaction(self, places: list[int], on_failure: str) -> None:
        """It waits for jobs that are there, and for what the same transaction has submitted."""
        if not self.is_open:
            self.run(self.other.execute("BEGIN"))
        self.is_open = True
        there = {**self.jobs, **self.pending}
        parents = self._parents(places, there)
        made = self.run(submit(self.other, *parents, on_failure=on_failure))
        self.pending[made] = Known(waits_for=dict.fromkeys(parents, on_failure))
        for one in parents:  # what has ended by now counts as it is now, whatever an operator does before the commit
            if there[one].status in TERMINAL:
                self._tell(one, self.pending)  # for all of them: the transaction has looked

    @rule(commits=st.booleans())
    def ends_the_transaction(self, commits: bool) -> None:
        self.run(self.other.execute("COMMIT" if commits else "ROLLBACK"))
        if commits:
            self.jobs |= self.pending
            self._settle_ended(list(self.jobs))
        self.is_open, self.pending = False, {}

    @rule(place=st.integers(0, 9), end=st.sampled_from(list(ENDS)))
    def ends(self, place: int, end: object) -> None:
        """A job that waits for nothing in any way; one that waits is canceled, or expires."""
        open_ = [job for job in sorted(self.jobs) if self.jobs[job].status == "PENDING"]
        if not open_:
            return
        job = open_[place % len(open_)]
        how = end if end in {cancel, expire} or not self.jobs[job].waits_for else cancel
        self.run(how(self.connection, job))  # type: ignore[operator]
        self.jobs[job].status = ENDS[how]  # type: ignore[index]
        self._tell(job, self.jobs)

    @rule(place=st.integers(0, 9))
    def is_retried(self, place: int) -> None:
        """By an operator: it waits again for what has not ended."""
        ended = [job for job in sorted(self.jobs) if self.jobs[job].status in TERMINAL]
        if ended:
            job = ended[place % len(ended)]
            self.run(self.connection.execute(STATEMENTS["retry_jobs"].sql, [job], None))
            self.jobs[job].status = "PENDING"

    @invariant()
    def each_job_is_as_it_should_be(self) -> None:
        rows = self.run(self.connection.fetch(ROWS))
        assert [tuple(row) for row in rows] == [
            (job, one.status, len(one.waits_for), bool(one.waits_for) and one.status == "PENDING")
            for job, one in sorted(self.jobs.items())
        ]

    @invariant()
    def the_check_finds_nothing(self) -> None:
        assert self.run(self.connection.fetch(CHECK, 5)) == []


@pytest.mark.rest
@EXAMPLES
def test_histories(database: tuple[Database, Sql], part: int) -> None:
    run_histories(lambda: DependencyMachine(*database), part)
