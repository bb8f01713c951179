"""
Several schedulers, whose steps fall between each other's in any order and number, against what must be true.

A scheduler here is its memory: what it saw due, or without a next occurrence. It may act on that at any time
later, again, or never: so it dies between any two statements, and so it is beside any other. Meanwhile the clock goes
on and is set, operators pause, change, delete and make schedules, and jobs are gone as soon as they are done.

More of it: ``HYPOTHESIS_PROFILE=long``.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections import Counter
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, TypeVar

import asyncpg
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pulse.store.connections.pool import Target
from pulse.store.operators.schedules import MAX_HELD, MAX_HELD_OF_ALL
from pulse.store.rows import Due, Fired, Firing, NewSchedule, from_us, to_us
from pulse.store.store import Store
from pulse_actors.scheduler.catchup import GRACE_S, MAX_CATCH_UP, firing_of, reckoned_of
from pulse_actors.shared.recurrence import jittered_us
from tests.plugins.databases import EMPTY
from tests.support.servers.postgres import Postgres
from tests.support.store.helpers import EXAMPLES, NOW, Sql, found_of, run_histories

pytestmark = [pytest.mark.long, pytest.mark.heavy]

T = TypeVar("T")
SCHEDULERS: Final = 3
SECOND_US: Final = 1_000_000
# By arithmetic alone it is known when they occur: at multiples of their step. Each as its columns.
RULES: Final[dict[int, dict[str, Any]]] = {
    60: {"kind": "cron", "cron": "* * * * *", "timezone": "UTC"},
    300: {"kind": "cron", "cron": "*/5 * * * *", "timezone": "UTC"},
    90: {"kind": "every", "every_s": 90.0},
}
rules = st.sampled_from(sorted(RULES))
catch_ups = st.sampled_from(["skip", "latest", "all"])
overlaps = st.sampled_from(["allow", "allow", "skip", "queue", "cancel"])
schedulers = st.integers(0, SCHEDULERS - 1)
picks = st.integers(0, 20)
jitters = st.sampled_from([0.0, 0.0, 20.0, 60.0])


@dataclass(frozen=True, slots=True)
class Known:
    """What the test knows of a schedule besides the database."""

    new: NewSchedule
    step_s: int
    paused: bool = False


class Schedulers(RuleBasedStateMachine):
    def __init__(self, runner: asyncio.Runner, store: Store, connection: Sql) -> None:
        super().__init__()
        self.runner, self.store, self.connection = runner, store, connection
        self.now = NOW
        self.known: dict[bytes, Known] = {}
        self.seen: list[list[Due]] = [[] for _ in range(SCHEDULERS)]
        self.to_reckon: list[list[Due]] = [[] for _ in range(SCHEDULERS)]
        self.jobs: Counter[tuple[bytes, int]] = Counter()
        self.cursors: dict[bytes, int] = {}
        self.numbers = itertools.count(1)

    def do(self, doing: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(doing)

    @initialize(step_s=rules, catch_up=catch_ups, overlap=overlaps, jitter_s=jitters)
    def begin(self, step_s: int, catch_up: str, overlap: str, jitter_s: float) -> None:
        self.do(self.connection.execute(EMPTY))
        self.create(step_s, catch_up, overlap, jitter_s)

    @rule(step_s=rules, catch_up=catch_ups, overlap=overlaps, jitter_s=jitters)
    def create(self, step_s: int, catch_up: str, overlap: str, jitter_s: float) -> None:
        if len(self.known) < 4:
            identity = uuid.UUID(int=next(self.numbers)).bytes
            first = from_us((to_us(self.now) // (step_s * SECOND_US) + 1) * step_s * SECOND_US)
            words: dict[str, Any] = {"catch_up": catch_up, "overlap": overlap, "jitter_s": jitter_s}
            new = NewSchedule(identity, "n", args="{}", next_run_at=first, **words, **RULES[step_s])
            assert self.do(self.store.schedules.create(new))
            self.known[identity] = Known(new, step_s)

    @rule(seconds=st.sampled_from([0.5, 3.0, 59.0, 61.0, 299.0, 3000.0, 40_000.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    @rule(seconds=st.sampled_from([0.5, 30.0, 4000.0]))
    def the_clock_is_set_back(self, seconds: float) -> None:
        self.now -= timedelta(seconds=seconds)

    @rule(who=schedulers, limit=st.integers(1, 3))
    def look(self, who: int, limit: int) -> None:
        self.seen[who] = self.do(self.store.schedules.due(limit, now=self.now))

    @rule(who=schedulers, then=st.sampled_from(["", "", "ends", "again", "ends again", "changed again"]), pick=picks)
    def fire(self, who: int, then: str, pick: int) -> None:
        """It fires that, whenever it read it, and however often."""
        self._fire(who)
        if "ends" in then:
            self.a_job_ends(pick)
        if "changed" in then:
            self.change_rule(pick, self.known[self._pick(pick)].step_s if self.known else 60)
        if "again" in then:
            self._fire(who)

    def _fire(self, who: int) -> None:
        firings = [firing_of(due) for due in self.seen[who]]
        before = {due.id: due for due in self.seen[who]}
        for fired in self.do(self.store.schedules.fire(firings, now=self.now)) if firings else ():
            firing = next(one for one in firings if one.schedule_id == fired.schedule_id)
            self._judge(before[fired.schedule_id], firing, fired)

    def _judge(self, due: Due, firing: Firing, fired: Fired) -> None:
        """A cursor was moved: over what, and was that right?"""
        known = self.known[due.id]
        assert not known.paused
        step_us = known.step_s * SECOND_US
        own = {
            one: jittered_us(due.id, one, known.new.jitter_s)
            for one in range(firing.cursor_us, due.now_us + step_us + 1, step_us)
        }
        come = [one for one, own_us in own.items() if own_us <= due.now_us]
        assert come, "nothing of this rule was due"
        chosen = come[-MAX_CATCH_UP:][0] if known.new.catch_up == "all" else come[-1]
        assert firing.next_us == chosen + step_us
        if known.new.catch_up == "skip" and due.now_us - own[chosen] > GRACE_S * SECOND_US:
            assert (firing.occurrence_us, fired.verdict) == (None, "passed")
        else:
            assert firing.occurrence_us == chosen
        if fired.level is not None:
            assert fired.verdict in {"fired", "held"}
            assert firing.occurrence_us is not None
            self.jobs[due.id, firing.occurrence_us] += 1
        elif firing.occurrence_us is not None:
            assert fired.verdict in {"skipped", "full"}, "an occurrence without a job"

    @rule(seconds=st.sampled_from([59.0, 299.0, 1000.0]), who=schedulers, other=schedulers, pick=picks)
    def meet(self, seconds: float, who: int, other: int, pick: int) -> None:
        """Two see the same occurrences due; one fires them, and a job of them ends before the other does."""
        self.now += timedelta(seconds=seconds)
        self.look(who, 3)
        self.look(other, 3)
        self._fire(who)
        self.a_job_ends(pick)
        self._fire(other)

    @rule(who=schedulers, pick=picks)
    def meet_a_pause(self, who: int, pick: int) -> None:
        """One sees an occurrence due; its schedule is paused before it fires."""
        self.now += timedelta(seconds=299.0)
        self.look(who, 3)
        self.pause(pick, paused=True)
        self._fire(who)

    @rule(who=schedulers)
    def jobs_take_long(self, who: int) -> None:
        """Two occurrences fire and the job of the first is not done: what is held back has to wait."""
        for _ in range(2):
            self.now += timedelta(seconds=400.0)
            self.look(who, 3)
            self._fire(who)
        self.release()

    @rule(seconds=st.sampled_from([59.0, 299.0, 1000.0]), who=schedulers, pick=picks, step_s=rules)
    def meet_a_change(self, seconds: float, who: int, pick: int, step_s: int) -> None:
        """One sees an occurrence due; its rule is changed, with the clock before it, so the cursor stays."""
        self.now += timedelta(seconds=seconds)
        self.look(who, 3)
        if self.seen[who]:
            due = self.seen[who][pick % len(self.seen[who])]
            assert due.cursor_us is not None
            self.now = from_us(due.cursor_us - SECOND_US)
            self._change_rule(due.id, step_s)
            self.now = from_us(due.now_us)
            self._fire(who)

    @rule(who=schedulers, other=schedulers, pick=picks, step_s=rules, seconds=st.sampled_from([0.0, 299.0]))
    def meet_reckoning(self, who: int, other: int, pick: int, step_s: int, seconds: float) -> None:
        """One sees a schedule without a next occurrence; then another one fires, or changes the rule."""
        self.look_what_to_reckon(who, 3)
        if seconds:
            self.now += timedelta(seconds=seconds)
            self.look(other, 3)
            self._fire(other)
        elif self.to_reckon[who]:
            due = self.to_reckon[who][pick % len(self.to_reckon[who])]
            assert due.cursor_us is not None
            self.now = from_us(due.cursor_us - SECOND_US)
            self._change_rule(due.id, step_s)
        self.reckon(who)

    @rule(who=schedulers, limit=st.integers(1, 3))
    def look_what_to_reckon(self, who: int, limit: int) -> None:
        self.to_reckon[who] = self.do(self.store.schedules.unreckoned(limit, now=self.now))

    @rule(who=schedulers)
    def reckon(self, who: int) -> None:
        if self.to_reckon[who]:
            self.do(self.store.schedules.reckon([reckoned_of(due) for due in self.to_reckon[who]]))

    @rule()
    def release(self) -> None:
        self.do(self.store.schedules.release(10, now=self.now))

    @rule(pick=picks)
    def a_job_ends(self, pick: int) -> None:
        sql = "SELECT id FROM pulse.jobs WHERE next_run_at < '9999-01-01' AND status = 'PENDING' ORDER BY id"
        rows = self.do(self.connection.fetch(sql))
        if rows:
            self.do(self.connection.execute("DELETE FROM pulse.jobs WHERE id = $1", rows[pick % len(rows)]["id"]))

    @rule(pick=picks, paused=st.booleans())
    def pause(self, pick: int, *, paused: bool) -> None:
        if self.known:
            identity = self._pick(pick)
            assert self.do(self.store.schedules.pause(identity, paused=paused))
            self.known[identity] = replace(self.known[identity], paused=paused)

    @rule(pick=picks, priority=st.integers(-5, 5))
    def change_words(self, pick: int, priority: int) -> None:
        if self.known:
            identity = self._pick(pick)
            known = self.known[identity]
            new = replace(known.new, priority=priority)
            assert self.do(self.store.schedules.update(new, self._revision(identity), moved=False))
            self.known[identity] = replace(known, new=new)

    @rule(pick=picks, step_s=rules)
    def change_rule(self, pick: int, step_s: int) -> None:
        if self.known:
            self._change_rule(self._pick(pick), step_s)

    def _change_rule(self, identity: bytes, step_s: int) -> None:
        known = self.known[identity]
        last_us = max([to_us(self.now), *(us for one, us in self.jobs if one == identity)])
        first = from_us((last_us // (step_s * SECOND_US) + 1) * step_s * SECOND_US)
        cleared = dict.fromkeys(("cron", "timezone", "every_s"))
        new = replace(known.new, next_run_at=first, **{**cleared, **RULES[step_s]})
        assert self.do(self.store.schedules.update(new, self._revision(identity), moved=True))
        self.cursors.pop(identity, None)
        self.known[identity] = replace(known, new=new, step_s=step_s)

    @rule(pick=picks)
    def delete(self, pick: int) -> None:
        if self.known:
            identity = self._pick(pick)
            assert self.do(self.store.schedules.delete(identity))
            del self.known[identity]

    def _pick(self, pick: int) -> bytes:
        return sorted(self.known)[pick % len(self.known)]

    def _revision(self, identity: bytes) -> int:
        return int(str(found_of(self.do(self.store.schedules.get(identity)))["revision"]))

    @invariant()
    def each_occurrence_is_one_job(self) -> None:
        """No occurrence became two, though its job is long gone; every job that is there was fired."""
        assert not self.jobs or max(self.jobs.values()) == 1
        rows = self.do(self.connection.fetch("SELECT schedule_id, occurrence FROM pulse.jobs"))
        assert {(row["schedule_id"].bytes, to_us(row["occurrence"])) for row in rows} <= self.jobs.keys()

    @invariant()
    def cursors_go_forward(self) -> None:
        """Nobody sets one back, and what follows it lies behind it, on the grid."""
        sql = "SELECT id, next_run_at, following_run_at FROM pulse.schedules"
        for row in self.do(self.connection.fetch(sql)):
            identity, cursor_us = row["id"].bytes, to_us(row["next_run_at"])
            step = timedelta(seconds=self.known[identity].step_s)
            assert cursor_us >= self.cursors.get(identity, 0)
            assert row["following_run_at"] in {row["next_run_at"] + step, None}
            self.cursors[identity] = cursor_us

    @invariant()
    def what_may_run_is_what_overlap_says(self) -> None:
        """Of a schedule that queues, at most one job may run; no more are held than are allowed; its count is true."""
        rows = self.do(
            self.connection.fetch(
                "SELECT s.id, s.waiting, count(j.id) FILTER (WHERE j.next_run_at > '9999-01-01') AS held,"
                " count(j.id) FILTER (WHERE j.next_run_at < '9999-01-01' AND j.status = 'PENDING') AS open"
                " FROM pulse.schedules s LEFT JOIN pulse.jobs j ON j.schedule_id = s.id GROUP BY s.id"
            )
        )
        for row in rows:
            new = self.known[row["id"].bytes].new
            assert row["held"] == row["waiting"] <= (MAX_HELD_OF_ALL if new.catch_up == "all" else MAX_HELD)
            if new.overlap != "allow":
                assert row["open"] <= 1

    def teardown(self) -> None:
        """At the end all act: every due occurrence has fired, and nothing is left over."""
        for _ in range(3 * MAX_CATCH_UP):
            self.look(0, 3)
            if not self.seen[0]:
                break
            self._fire(0)
        else:
            raise AssertionError
        while self.do(self.store.schedules.unreckoned(1, now=self.now)):
            self.look_what_to_reckon(1, 3)
            self.reckon(1)
        rows = self.do(
            self.connection.fetch(
                "SELECT id, next_run_at, following_run_at, due_at, error FROM pulse.schedules WHERE NOT paused"
            )
        )
        for row in rows:
            step = timedelta(seconds=self.known[row["id"].bytes].step_s)
            assert row["due_at"] > self.now
            assert row["following_run_at"] in {row["next_run_at"] + step, None}
            assert row["error"] is None
        self.each_occurrence_is_one_job()


@pytest.fixture
def database(newest_server: Postgres) -> Iterator[tuple[asyncio.Runner, Store, Sql]]:
    with newest_server.database() as dsn, asyncio.Runner() as runner:
        connection = runner.run(asyncpg.connect(dsn))
        store = Store(Target(dsn, "model"), hot=1, queries=1)
        yield runner, store, connection
        store.close()
        runner.run(connection.close())


@pytest.mark.rest
@EXAMPLES
@pytest.mark.timeout(2 * settings().max_examples)
def test_schedulers_fire_exactly_once(database: tuple[asyncio.Runner, Store, Sql], part: int) -> None:
    run_histories(lambda: Schedulers(*database), part)
