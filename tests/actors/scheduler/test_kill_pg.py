"""
A scheduler that dies between any two of its statements, and another one that goes on: each occurrence exactly once.

A history is a handful of moments of the database's clock: one before anything is due, one at which the first occurrence
is, one after three were missed, one later. It runs once undisturbed, and then again for each of its statements: the
scheduler is killed before or after it, or its connection breaks after the commit. The outcome of each schedule is
arithmetic, the same each time.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import asyncpg
import pytest
from anyio.lowlevel import checkpoint

from pulse.common.ids import uuid7
from pulse.errors import UnavailableError
from pulse.job import CATCH_UPS, OVERLAPS
from pulse.store.connections.pool import STATEMENT_DEADLINE_S, Pool, Target
from pulse.store.operators.schedules import ScheduleStore
from pulse.store.rows import NewSchedule
from pulse.store.store import Store
from pulse_actors.runtime.actor import Turn
from pulse_actors.scheduler.actor import Scheduler
from tests.support.store.helpers import NOW, TOPIC, Sql, at

pytestmark = pytest.mark.heavy

HOUR_S: Final = 3600.0
MOMENTS: Final = (at(-10), at(0.1), at(3 * HOUR_S + 10), at(4 * HOUR_S + 1))
MOST_HELD: Final = 4  # of five occurrences the first does not wait
KINDS: Final[dict[str, dict[str, Any]]] = {
    "at": {"kind": "at", "run_at": NOW},
    "every": {"kind": "every", "every_s": HOUR_S},
    "cron": {"kind": "cron", "cron": "0 * * * *", "timezone": "UTC"},
    "cron by SQL": {"kind": "cron", "cron": "0 * * * *", "timezone": "UTC", "next_run_at": None},  # no cursor yet
}
HOURS: Final = {"all": [0, 1, 2, 3, 4], "latest": [0, 3, 4], "skip": [0, 4]}  # what fires of each, by its catch-up
WATCH: Final = """
    CREATE TABLE made (id uuid, schedule_id uuid, occurrence timestamptz);
    CREATE FUNCTION note_made() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN INSERT INTO made VALUES (NEW.id, NEW.schedule_id, NEW.occurrence); RETURN NULL; END $$;
    CREATE TRIGGER note_made AFTER INSERT ON pulse.jobs FOR EACH ROW EXECUTE FUNCTION note_made();
"""
# A kill before a statement leaves the same as one after the statement before it.
HOWS: Final = (pytest.param("before", marks=pytest.mark.spare), "after", pytest.param("lost", marks=pytest.mark.rest))
FORGET: Final = "DELETE FROM made; DELETE FROM pulse.jobs; DELETE FROM pulse.schedules"
UNKNOWN: Final = "UPDATE pulse.schedules SET reckon = true WHERE next_run_at IS NULL"  # as pulse.create_schedule does
RUN: Final = "DELETE FROM pulse.jobs WHERE next_run_at < '9999-01-01'"  # all that may run did, and is gone
LEFT: Final = """SELECT (SELECT count(*) FROM pulse.jobs) + (SELECT count(*) FROM pulse.schedules s
                         WHERE s.waiting > 0 OR s.reckon OR s.error IS NOT NULL)"""


class KilledError(BaseException):
    """The process is gone: no handler of any Exception sees that."""


@dataclass(slots=True)
class Failpoint:
    """
    A fault at one statement of a history.

    Attributes:
        number: Which one, from 1; 0: none.
        how: Killed "before" it, or "after" it was committed; "lost": its answer is, and the scheduler lives.
    """

    number: int = 0
    how: str = "before"
    seen: int = 0

    def begin(self) -> None:
        self.seen += 1
        if self._is_here("before"):
            raise KilledError

    def end(self) -> None:
        if self._is_here("after"):
            raise KilledError
        if self._is_here("lost"):
            raise UnavailableError("the connection broke")

    def _is_here(self, how: str) -> bool:
        return (self.seen, self.how) == (self.number, how)


class FailingPool(Pool):
    """One connection, a failpoint around each of its statements, and what happens in the database after each."""

    def __init__(self, target: Target, only: Sql, failpoint: Failpoint, then: str | None) -> None:
        super().__init__(target, size=1)
        self._only, self._failpoint, self._then = only, failpoint, then

    @contextlib.asynccontextmanager
    async def connection(self, deadline_s: float = STATEMENT_DEADLINE_S) -> AsyncIterator[Sql]:
        self._failpoint.begin()
        yield self._only
        if self._then is not None:
            await self._only.execute(self._then)
        self._failpoint.end()


def at_moment(schedules: ScheduleStore, moment: datetime) -> ScheduleStore:
    """The statements that ask for the time have this one."""
    timed = copy.copy(schedules)
    for name in ("due", "unreckoned", "work", "fire", "release"):
        setattr(timed, name, functools.partial(getattr(schedules, name), now=moment))
    return timed


@dataclass(slots=True)
class History:
    """A database, and one run through all moments; if *is_gone*, jobs go as soon as they may run, else at the end."""

    dsn: str
    connection: Sql
    is_gone: bool
    failpoint: Failpoint = field(default_factory=Failpoint)
    schedules: dict[bytes, tuple[str, str, str]] = field(default_factory=dict)

    async def live(self) -> None:
        await self.connection.execute(FORGET)
        target = Target(self.dsn, "pulse-tests")
        store = Store(target)
        for kind, catch_up, overlap in itertools.product(KINDS, CATCH_UPS, OVERLAPS):
            words = {"next_run_at": NOW, **KINDS[kind], "catch_up": catch_up, "overlap": overlap}
            new = NewSchedule(uuid7().bytes, "n", args="{}", topic=TOPIC, **words)
            self.schedules[new.id] = (kind, catch_up, overlap)
            assert await ScheduleStore(FailingPool(target, self.connection, Failpoint(), None)).create(new)
        await self.connection.execute(UNKNOWN)
        schedules = ScheduleStore(FailingPool(target, self.connection, self.failpoint, RUN if self.is_gone else None))
        for moment in MOMENTS:
            store.schedules = at_moment(schedules, moment)
            await self._turn(store)
        for _ in range(MOST_HELD + 1):
            await self.connection.execute(RUN)
            if await self.connection.fetchval(LEFT):
                await self._turn(store)
        store.close()

    async def _turn(self, store: Store) -> None:
        for _ in range(3):
            with contextlib.suppress(KilledError):
                scheduler = Scheduler(store)
                with contextlib.suppress(UnavailableError):  # the runtime lets it live, and asks again
                    await scheduler.prime(boot=True)
                    await scheduler.turn(Turn(time.monotonic()))
                    return
                await scheduler.turn(Turn(time.monotonic()))
                return
        pytest.fail("more than one failure")

    async def judge(self) -> None:
        """Each occurrence once, as its schedule says, and nothing held for ever."""
        made = defaultdict[bytes, list[float]](list)
        for row in await self.connection.fetch("SELECT schedule_id, occurrence FROM made ORDER BY occurrence"):
            made[row["schedule_id"].bytes].append((row["occurrence"] - NOW).total_seconds() / HOUR_S)
        assert {words: made[identity] for identity, words in self.schedules.items()} == {
            words: self._expected(*words) for words in self.schedules.values()
        }
        assert await self.connection.fetchval(LEFT) == 0

    def _expected(self, kind: str, catch_up: str, overlap: str) -> list[int]:
        if kind == "at" or (overlap == "skip" and not self.is_gone):
            return [0]
        return HOURS[catch_up]


@pytest.fixture(scope="module")
async def watched(module_database: str) -> AsyncIterator[Sql]:
    connection = await asyncpg.connect(module_database)
    await connection.execute(WATCH)
    yield connection
    await connection.close(timeout=5)
    await checkpoint()


@pytest.mark.rest
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("is_gone", [False, True], ids=["stay", "gone"])
async def test_killed_at_each_statement(module_database: str, watched: Sql, how: str, *, is_gone: bool) -> None:
    """Whichever statement it dies at, another one does exactly the rest."""
    whole = History(module_database, watched, is_gone)
    await whole.live()
    await whole.judge()
    assert whole.failpoint.seen > 30
    for number in range(1, whole.failpoint.seen + 1):
        history = History(module_database, watched, is_gone, Failpoint(number, how))
        await history.live()
        try:
            await history.judge()
        except AssertionError as error:
            raise AssertionError(f"{how} statement {number}: {error}") from None
