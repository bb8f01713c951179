"""
The store against a model of it: random histories on the real database, and after each step every row as in the model.

More of it: ``HYPOTHESIS_PROFILE=long``.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Coroutine, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

import asyncpg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from pulse.errors import ConflictError
from pulse.protocol import NewJob
from pulse.store.pool import Target
from pulse.store.rows import Completion, Ending, EndingKind, Fence, Renewal
from pulse.store.store import Store
from tests.store.conftest import EMPTY
from tests.store.helpers import NOW
from tests.store.model import Model, ModelJob
from tests.support.postgres import Postgres

if TYPE_CHECKING:
    from asyncpg import Connection, Record

pytestmark = [pytest.mark.postgres, pytest.mark.long]

T = TypeVar("T")
LEASE_S: Final = 30.0
TOPICS: Final = ("a", "b")
WORKERS: Final = ("w0", "w1", "w2")
_JOBS: Final = """
    SELECT uuid_send(id) AS id, topic, name, args, priority, max_attempts, submitted_at, next_run_at,
        status::text AS status, attempts, uncharged, crashes, started_at, lease_until, completed_at, locked_by,
        progress, result, checkpoint, last_error
    FROM pulse.jobs"""
_HISTORY: Final = """
    SELECT uuid_send(job_id) AS job_id, attempt, worker, started_at, ended_at, outcome, error, exit_code, progress
    FROM pulse.attempts"""

halves = st.integers(0, 20).map(lambda number: number / 2)
json_text = st.none() | st.sampled_from(['"half"', "1", "[]"])
batches = st.integers(1, 5)


@dataclass(frozen=True, slots=True)
class Database:
    """The real thing, with the loop that drives it."""

    runner: asyncio.Runner
    store: Store
    connection: Connection[Record]

    def run(self, doing: Coroutine[Any, Any, T]) -> T:
        """Do it now."""
        return self.runner.run(doing)


@pytest.fixture
def server(newest_server: Postgres) -> Postgres:
    """One version is enough: what the others do differently, the other tests see."""
    return newest_server


@pytest.fixture
def database(server: Postgres) -> Iterator[Database]:
    """A database of its own; its connections serve all examples."""
    with server.database() as dsn, asyncio.Runner() as runner:
        connection = runner.run(asyncpg.connect(dsn))
        store = Store(Target(dsn, "model"), hot=1, queries=1)
        yield Database(runner, store, connection)
        store.close()
        runner.run(connection.close())


class StoreMachine(RuleBasedStateMachine):
    """Random histories of a few jobs and three workers that never forget a token."""

    ids: Bundle[bytes] = Bundle("ids")
    tokens: Bundle[Fence] = Bundle("tokens")

    def __init__(self, database: Database) -> None:
        super().__init__()
        self.database = database
        self.store = database.store
        self.model = Model()
        self.now = NOW
        self.made = 0

    def do(self, doing: Coroutine[Any, Any, T]) -> T:
        """Run it on the database."""
        return self.database.run(doing)

    @initialize()
    def empty(self) -> None:
        """Begin with an empty database."""
        self.do(self.database.connection.execute(EMPTY))

    @rule(seconds=halves | st.just(LEASE_S) | st.just(LEASE_S + 0.5))
    def time_passes(self, seconds: float) -> None:
        """The database's clock goes on."""
        self.now += timedelta(seconds=seconds)

    @rule(
        target=ids,
        number=st.integers(1, 3),
        topic=st.sampled_from(TOPICS),
        priority=st.integers(-1, 1),
        delay_s=st.just(0.0) | halves,
        max_attempts=st.integers(1, 3),
    )
    def submit(
        self, number: int, topic: str, priority: int, delay_s: float, max_attempts: int
    ) -> MultipleResults[bytes]:
        """New jobs."""
        jobs = [
            NewJob("n", topic=topic, priority=priority, delay_s=delay_s, max_attempts=max_attempts, id=self._new_id())
            for _ in range(number)
        ]
        woken = self.do(self.store.submit(jobs, now=self.now))
        assert [(wake.topic, wake.priority) for wake in woken] == ([(topic, priority)] if delay_s <= 1 else [])
        for place, one in enumerate(jobs):
            due = self.now + timedelta(seconds=delay_s, microseconds=place)
            identity = one.id or b""
            self.model.jobs[identity] = ModelJob(identity, topic, "n", "{}", priority, max_attempts, self.now, due)
        return multiple(*(one.id or b"" for one in jobs))

    def _new_id(self) -> bytes:
        self.made += 1
        return hashlib.md5(str(self.made).encode(), usedforsecurity=False).digest()  # in no order

    @rule(identity=ids, name=st.sampled_from(("n", "m")))
    def submit_again(self, identity: bytes, name: str) -> None:
        """A submit whose answer was lost; or another job under the same id."""
        again = NewJob(name, topic=self.model.jobs[identity].topic, id=identity)
        try:
            assert self.do(self.store.submit_again([again], now=self.now)) == []
        except ConflictError:
            assert name == "m"
        else:
            assert name == "n"

    @rule(target=tokens, topics=st.permutations(TOPICS), seats=st.lists(st.integers(0, 2), max_size=4))
    def claim(self, topics: list[str], seats: list[int]) -> MultipleResults[Fence]:
        """A dispatcher fills its workers' places."""
        candidates = self.model.claimable(topics, self.now)
        claimed = self.do(self.store.claim(topics, WORKERS, seats, LEASE_S, now=self.now))
        keys = {identity: key for key, identity in candidates}
        assert Counter(keys[one.id] for one in claimed) == Counter(key for key, _ in candidates[: len(seats)])
        given = self.model.seated([one.id for one in claimed], [WORKERS[seat] for seat in seats], LEASE_S, self.now)
        for one in claimed:
            job = self.model.jobs[one.id]
            assert (one.attempt, WORKERS[one.worker], one.due_at) == (
                job.attempts,
                given[one.id],
                job.next_run_at.timestamp(),
            )
            assert (one.topic, one.priority, one.uncharged, one.checkpoint) == (
                job.topic,
                job.priority,
                job.uncharged,
                job.checkpoint,
            )
            assert (None if one.previous is None else tuple(json.loads(one.previous))) == self.model.before(one.id)
        return multiple(*(Fence(one.id, one.attempt, WORKERS[one.worker]) for one in claimed))

    @rule(held=tokens, others=st.lists(tokens, max_size=3), result=json_text, progress=json_text)
    def complete(self, held: Fence, others: list[Fence], result: str | None, progress: str | None) -> None:
        """Workers report success, some of them too late."""
        completions = [Completion(*one, result, progress) for one in sorted({held, *others})]
        closed = self.do(self.store.complete(completions, now=self.now))
        assert closed == self.model.complete(completions, self.now)
        asked = [(one.id, one.attempt) for one in (held, *others)]
        done = {(one.id, one.attempts) for one in self.model.jobs.values() if one.status == "COMPLETED"}
        assert self.do(self.store.completed_already(asked)) == done & set(asked)

    @rule(
        held=tokens,
        others=st.lists(tokens, max_size=2),
        kind=st.sampled_from(sorted(set(EndingKind) - {EndingKind.LEASE_EXPIRED})),
        delay_s=st.none() | halves,
        progress=json_text,
        exit_code=st.none() | st.integers(-15, 15),
    )
    def end(
        self,
        held: Fence,
        others: list[Fence],
        kind: EndingKind,
        delay_s: float | None,
        progress: str | None,
        exit_code: int | None,
    ) -> None:
        """Workers fail, give back, snooze, or die provably."""
        error = None if kind == EndingKind.RELEASED else kind.value
        self._end([Ending(*one, kind, error, delay_s, exit_code, progress) for one in sorted({held, *others})])

    def _end(self, endings: list[Ending]) -> None:
        ended = self.do(self.store.end(endings, now=self.now))
        assert sorted(ended) == sorted(self.model.end(endings, self.now))

    @rule(held=tokens, others=st.lists(tokens, max_size=3), progress=json_text)
    def beat(self, held: Fence, others: list[Fence], progress: str | None) -> None:
        """Workers send heartbeats, also for what they have lost."""
        renewals = [Renewal(*one, progress) for one in sorted({held, *others})]
        extended = self.do(self.store.extend(renewals, LEASE_S, now=self.now))
        assert extended == self.model.extend(renewals, LEASE_S, self.now)

    @rule(held=tokens, others=st.lists(tokens, max_size=3), saved=st.sampled_from(["1", "[2]"]))
    def save(self, held: Fence, others: list[Fence], saved: str) -> None:
        """Handlers save checkpoints, also after they have lost their job."""
        checkpoints = [Renewal(*one, saved) for one in sorted({held, *others})]
        assert self.do(self.store.checkpoint(checkpoints)) == self.model.save(checkpoints)

    @rule(target=tokens, token=tokens, heir=st.sampled_from(WORKERS))
    def move(self, token: Fence, heir: str) -> Fence:
        """A dispatcher passes a claim on; the token of the heir may be good or not."""
        assert self.do(self.store.move([(token, heir)])) == self.model.move(token, heir)
        return token._replace(worker=heir)

    @rule(token=consumes(tokens))
    def worker_forgets(self, token: Fence) -> None:
        """A worker dies, and nobody notices before the lease does."""

    @rule(limit=batches)
    def sweep(self, limit: int) -> None:
        """A watchdog ends what has lapsed."""
        found = self.do(self.store.lapsed(limit, now=self.now))
        lapsed = self.model.lapsed(self.now)
        assert len(found) == min(limit, len(lapsed))
        assert set(found) <= lapsed
        self._end([Ending(*one, EndingKind.LEASE_EXPIRED, "worker lease expired") for one in found])

    @rule(held=tokens, others=st.lists(tokens, max_size=2))
    def late_sweep(self, held: Fence, others: list[Fence]) -> None:
        """A watchdog ends what it saw lapsed before: only what has lapsed still is ended."""
        self._end([Ending(*one, EndingKind.LEASE_EXPIRED, "worker lease expired") for one in sorted({held, *others})])

    @rule(first=ids, others=st.lists(ids, max_size=2))
    def cancel(self, first: bytes, others: list[bytes]) -> None:
        """An operator cancels."""
        canceled = self.do(self.store.cancel([first, *others], now=self.now))
        assert sorted(canceled, key=lambda one: one.id) == sorted(
            self.model.cancel([first, *others], self.now), key=lambda one: one.id
        )

    @rule(first=ids, others=st.lists(ids, max_size=2))
    def retry(self, first: bytes, others: list[bytes]) -> None:
        """An operator retries."""
        assert set(self.do(self.store.retry([first, *others], now=self.now))) == self.model.retry(
            [first, *others], self.now
        )

    @rule(topic=st.sampled_from(("", *TOPICS)))
    def pause(self, topic: str) -> None:
        """An operator closes a gate."""
        self.do(self.store.gate.pause(topic, None, now=self.now))
        self.model.paused.add(topic)

    @rule(topic=st.sampled_from(("", *TOPICS)))
    def resume(self, topic: str) -> None:
        """An operator opens a gate."""
        assert self.do(self.store.gate.resume(topic)) == (topic in self.model.paused)
        self.model.paused.discard(topic)

    @invariant()
    def database_is_as_the_model(self) -> None:
        """Every row and all history is as the model has it."""
        jobs, history = self.do(self._rows())
        assert jobs == {identity: asdict(job) for identity, job in self.model.jobs.items()}
        assert history == self.model.history

    async def _rows(self) -> tuple[dict[bytes, dict[str, Any]], dict[tuple[bytes, int], dict[str, Any]]]:
        jobs = {row["id"]: dict(row) for row in await self.database.connection.fetch(_JOBS)}
        history: dict[tuple[bytes, int], dict[str, Any]] = {}
        for row in map(dict, await self.database.connection.fetch(_HISTORY)):
            history[row.pop("job_id"), row.pop("attempt")] = row
        return jobs, history


@pytest.mark.timeout(1.2 * settings().max_examples)
def test_the_store_does_what_the_model_does(database: Database) -> None:
    """Whatever happens in whatever order, each answer and each row of the database is as the model says."""

    class OnThisDatabase(StoreMachine):
        def __init__(self) -> None:
            super().__init__(database)

    run_state_machine_as_test(OnThisDatabase, settings=settings(suppress_health_check=[HealthCheck.too_slow]))


def test_the_model_is_strict() -> None:
    """The model itself refuses what is stale, or the test above would prove nothing."""
    model = Model()
    now: datetime = NOW
    model.jobs[b"x"] = ModelJob(b"x", "a", "n", "{}", 0, 1, now, now)
    model.seated([b"x"], ["w"], 1.0, now)
    assert model.complete([Completion(b"x", 2, "w", None), Completion(b"x", 1, "v", None)], now) == set()
    assert model.lapsed(now + timedelta(seconds=1)) == set()
    assert model.end([Ending(b"x", 1, "w", EndingKind.LEASE_EXPIRED)], now) == []
    assert model.complete([Completion(b"x", 1, "w", None)], now) == {(b"x", 1)}
    assert model.complete([Completion(b"x", 1, "w", None)], now) == set()
