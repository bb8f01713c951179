"""Random histories of claims, ends and changes of a limit: no slot, token or place in a sequence is given twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import ceil

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from pulse.store.rows import Completion, Ending, EndingKind, GroupLevel
from tests.plugins.databases import EMPTY
from tests.support.servers.postgres import Postgres
from tests.support.store.helpers import (
    EXAMPLES,
    LEASE_S,
    TOPIC,
    WORKER,
    Database,
    at,
    forge,
    history_database,
    run_histories,
)

pytestmark = [pytest.mark.long, pytest.mark.heavy]

GROUPS = ("a", "b", "c")
ENDS = (None, EndingKind.ERROR, EndingKind.RELEASED, EndingKind.SNOOZED, EndingKind.DISCARDED, EndingKind.CRASHED)
_WAITING = """
    SELECT uuid_send(id) AS id, group_key, priority, next_run_at, coalesce(run_after <= $1, true) AS is_ready
    FROM pulse.jobs WHERE status IN ('PENDING', 'RETRYING') AND next_run_at <= $1
    ORDER BY priority DESC, next_run_at, id"""


@pytest.fixture(scope="module")
def database(server: Postgres) -> Iterator[Database]:
    with history_database(server) as made:
        yield made


class LimitMachine(RuleBasedStateMachine):
    def __init__(self, database: Database) -> None:
        super().__init__()
        self.database = database
        self.run = database.runner.run
        self.store = database.store
        self.now_s = 0.0
        self.running: list[tuple[bytes, int, str | None]] = []
        self.policy: dict[str, object] = {}
        self.dead: set[str | None] = set()
        self.started, self.begun_s = 0, 0.0

    def _begin(self) -> None:
        self.run(self.database.connection.execute(EMPTY))
        for number in range(12):
            group, priority = (*GROUPS, None)[number % 4], number % 5 // 4
            self.run(
                forge(
                    self.database.connection, group_key=group, priority=priority, max_attempts=99,
                    next_run_at=at(number - 20),
                )
            )  # fmt: skip

    @initialize(
        concurrency=st.sampled_from([None, 1, 3]), rate=st.sampled_from([None, 1.0, 2.5]),
        group_concurrency=st.sampled_from([None, 1]), sequence=st.sampled_from([None, "continue", "halt"]),
    )  # fmt: skip
    def first(self, **policy: object) -> None:
        self._begin()
        self._set(policy)

    @rule(
        concurrency=st.sampled_from([None, 0, 2]), rate=st.sampled_from([None, 2.0]),
        sequence=st.sampled_from([None, "halt"]),
    )  # fmt: skip
    def change(self, **policy: object) -> None:
        self._set({**self.policy, **policy})

    def _set(self, policy: dict[str, object]) -> None:
        self.policy = policy
        self.run(self.store.limits.set(TOPIC, policy))
        self.started, self.begun_s = 0, self.now_s

    @rule(seconds=st.sampled_from([0.5, 1.0, 4.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(place=st.integers(0, 5), kind=st.sampled_from(ENDS), delay_s=st.sampled_from([0.0, 2.0]))
    def end(self, place: int, kind: EndingKind | None, delay_s: float) -> None:
        if not self.running:
            return
        job, attempt, group = self.running.pop(place % len(self.running))
        if kind is None:
            self.run(self.store.complete([Completion(job, attempt, WORKER, None)], now=at(self.now_s)))
            return
        error = None if kind is EndingKind.SNOOZED else "why"
        [ended] = self.run(self.store.end([Ending(job, attempt, WORKER, kind, error, delay_s)], now=at(self.now_s)))
        if ended.status == "DEAD_LETTERED":
            self.dead.add(group)

    @rule(limit=st.integers(1, 6))
    def claim(self, limit: int) -> None:
        waiting = self.run(self.database.connection.fetch(_WAITING, at(self.now_s)))
        levels = [(GroupLevel(TOPIC, group, priority), -1e9) for priority in (1, 0) for group in (*GROUPS, None)]
        claims, blocked = self.run(self.store.limited.claim(levels, [WORKER], [0] * limit, LEASE_S, now=at(self.now_s)))
        before = Counter(group for _, _, group in self.running)
        self.running += [(one.id, one.attempt, one.group_key) for one in claims]
        after = Counter(group for _, _, group in self.running)
        started = Counter(one.group_key for one in claims)
        if claims and isinstance(most := self.policy["concurrency"], int):
            assert len(self.running) <= most
        for group in GROUPS:
            if started[group] and (self.policy["group_concurrency"] == 1 or self.policy["sequence"]):
                assert (before[group], after[group]) == (0, 1)
            if self.policy["sequence"] and started[group]:
                head = next(row for row in waiting if row["group_key"] == group)
                assert head["is_ready"]
                assert head["id"] in {one.id for one in claims}
            assert not (started[group] and self.policy["sequence"] == "halt" and group in self.dead)
        self.started += len(claims)
        if isinstance(rate := self.policy["rate"], float):
            assert self.started <= ceil(rate) + (self.now_s - self.begun_s) * rate
        if not claims and not blocked:
            assert not [row for row in waiting if row["is_ready"] and not self.policy["sequence"]]


@pytest.mark.rest
@EXAMPLES
def test_no_limit_is_exceeded(database: Database, part: int) -> None:
    run_histories(lambda: LimitMachine(database), part)
