"""Random histories of jobs with unique keys: one job has a key, each answer names it, and no move ever conflicts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pulse.common.ids import uuid7
from pulse.errors import ConflictError, StatementError
from pulse.store.rows import Completion, Ending, EndingKind, NewSchedule
from pulse_actors.scheduler.catchup import firing_of
from tests.plugins.databases import EMPTY
from tests.support.servers.postgres import Postgres
from tests.support.store.helpers import (
    EXAMPLES,
    LEASE_S,
    NOW,
    TERMINAL,
    TOPIC,
    WORKER,
    Database,
    at,
    history_database,
    job,
    run_histories,
)

pytestmark = [pytest.mark.long, pytest.mark.heavy]

KEYS = ("a", "b")
ENDS = (None, EndingKind.ERROR, EndingKind.RELEASED, EndingKind.SNOOZED, EndingKind.DISCARDED, EndingKind.CRASHED)
_ROWS = """
    SELECT uuid_send(id) AS id, unique_key, unique_until, status::text AS status, attempts, name, args, occurrence
    FROM pulse.jobs ORDER BY id"""


@pytest.fixture(scope="module")
def database(server: Postgres) -> Iterator[Database]:
    with history_database(server) as made:
        yield made


def _has_its_key(row: Any) -> bool:
    is_kept = row["unique_until"] == "end" or (row["unique_until"] == "start" and row["attempts"] == 0)
    return is_kept and row["status"] not in TERMINAL


class UniqueMachine(RuleBasedStateMachine):
    def __init__(self, database: Database) -> None:
        super().__init__()
        self.run = database.runner.run
        self.store = database.store
        self.connection = database.connection
        self.now_s = 0.0
        self.submits = 0

    def _rows(self) -> dict[bytes, Any]:
        return {row["id"]: row for row in self.run(self.connection.fetch(_ROWS))}

    def _holder(self, key: str) -> Any:
        return next((row for row in self._rows().values() if row["unique_key"] == key and _has_its_key(row)), None)

    @initialize(until=st.sampled_from(["start", "end"]), how=st.sampled_from(["skip", "replace"]))
    def first(self, until: str, how: str) -> None:
        self.run(self.connection.execute(f"{EMPTY}; DELETE FROM pulse.schedules"))
        new = NewSchedule(
            uuid7().bytes, "n", "every", '{"by": 0}', NOW, topic=TOPIC, every_s=10.0, unique_key="a",
            unique_until=until, on_conflict=how,
        )  # fmt: skip
        assert self.run(self.store.schedules.create(new))

    @rule(
        key=st.sampled_from(KEYS), until=st.sampled_from([None, "start", "end"]), name=st.sampled_from(["n", "m"]),
        how=st.sampled_from([None, "skip", "replace", "error"]), delay_s=st.sampled_from([0.0, 5.0]),
    )  # fmt: skip
    def submit(self, key: str, until: Any, name: str, how: Any, delay_s: float) -> None:
        before = self._holder(key)
        self.submits += 1
        args = f'{{"by": {self.submits}}}'
        one = job(unique=key, unique_until=until, on_conflict=how, name=name, delay_s=delay_s, args=args)
        refused = before is not None and (how == "error" or (how == "replace" and before["name"] != name))
        try:
            [answer], _ = self.run(self.store.unique.submit([one], now=at(self.now_s)))
        except ConflictError:
            assert refused
            return
        assert not refused
        assert answer == (one.id if before is None else before["id"])
        is_replaced = before is not None and how == "replace" and before["status"] != "RUNNING"
        row = self._rows()[answer]
        assert (row["args"] == args) == (before is None or is_replaced)

    @rule()
    def fire(self) -> None:
        for due in self.run(self.store.schedules.due(1, unique=True, now=at(self.now_s))):
            before, jobs = self._holder("a"), len(self._rows())
            try:
                fired = self.run(self.store.schedules.fire_unique(firing_of(due), now=at(self.now_s)))
            except StatementError:
                assert before is not None
                assert before["name"] != "n"
                return
            assert fired is not None
            assert (fired.verdict in {"replaced", "skipped"}) == (before is not None)
            assert len(self._rows()) == jobs + (before is None)

    @rule(seconds=st.sampled_from([1.0, 6.0, 25.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(limit=st.integers(1, 3))
    def claim(self, limit: int) -> None:
        self.run(self.store.claim([TOPIC], [WORKER], [0] * limit, LEASE_S, now=at(self.now_s)))

    @rule(place=st.integers(0, 5), kind=st.sampled_from(ENDS), delay_s=st.sampled_from([0.0, 2.0]))
    def end(self, place: int, kind: EndingKind | None, delay_s: float) -> None:
        running = [row for row in self._rows().values() if row["status"] == "RUNNING"]
        if not running:
            return
        one = running[place % len(running)]
        held = one["id"], one["attempts"], WORKER
        if kind is None:
            assert len(self.run(self.store.complete([Completion(*held, None)], now=at(self.now_s)))) == 1
            return
        error = None if kind is EndingKind.SNOOZED else "why"
        assert len(self.run(self.store.end([Ending(*held, kind, error, delay_s)], now=at(self.now_s)))) == 1

    @rule(place=st.integers(0, 9), move=st.sampled_from(["cancel", "retry"]))
    def operate(self, place: int, move: str) -> None:
        ids = list(self._rows())
        if ids:
            change = self.store.cancel if move == "cancel" else self.store.retry
            self.run(change([ids[place % len(ids)]], now=at(self.now_s)))

    @invariant()
    def one_job_has_each_key(self) -> None:
        keys = [row["unique_key"] for row in self._rows().values() if _has_its_key(row)]
        assert len(keys) == len({*keys})

    @invariant()
    def an_occurrence_is_one_job(self) -> None:
        fired = [row["occurrence"] for row in self._rows().values() if row["occurrence"] is not None]
        assert len(fired) == len({*fired})


@pytest.mark.rest
@EXAMPLES
def test_one_job_has_a_key(database: Database, part: int) -> None:
    run_histories(lambda: UniqueMachine(database), part)
