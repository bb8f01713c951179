"""
The store against a model of it: random histories on the real database, and after each step every row as in the model.

More of it: ``HYPOTHESIS_PROFILE=long``.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import itertools
import json
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Sequence
from dataclasses import asdict
from datetime import timedelta
from operator import attrgetter
from typing import Any, Final, TypeAlias, TypeVar

import asyncpg
import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import structs

from pulse.errors import ConflictError, NotFoundError
from pulse.protocol import SubmittedJob
from pulse.store.operators.transaction import Acting, Operator
from pulse.store.rows import Claim, Completion, Ending, EndingKind, Fence, Renewal
from tests.plugins.databases import EMPTY
from tests.support.servers.postgres import Postgres
from tests.support.store.helpers import EXAMPLES, NOW, Database, history_database, run_histories
from tests.support.store.model import FINISHED, GIVEN_BACK, WAITING, Key
from tests.support.store.rows import Rows

pytestmark = [pytest.mark.long, pytest.mark.heavy]

T = TypeVar("T")
LEASE_S: Final = 30.0
TOPICS: Final = ("a", "b")
WORKERS: Final = ("w0", "w1", "w2")
KINDS: Final = tuple(kind for kind in EndingKind if kind != EndingKind.LEASE_EXPIRED)
_JOBS: Final = """
    SELECT uuid_send(id) AS id, topic, name, args, priority, max_attempts, submitted_at, next_run_at,
        status::text AS status, attempts, uncharged, crashes, started_at, lease_until, completed_at, locked_by,
        ran_by, progress, result, checkpoint, last_error, timeout_s, expires_at, group_key, counted_by,
        coalesce(is_parent, false) AS is_parent, waiting_on, run_after, coalesce(signals, 0) AS signals, awaited_signal
    FROM pulse.jobs"""
_HISTORY: Final = """
    SELECT uuid_send(job_id) AS job_id, attempt, worker, started_at, ended_at, outcome, error, exit_code, progress
    FROM pulse.attempts"""
_NOTES: Final = "SELECT action, jobs FROM pulse.audit ORDER BY id"
_EFFECT: Final = "INSERT INTO pulse.audit (action, jobs, uid) VALUES ('effect', 1, 0)"  # into a table that is compared
_COMPLETE: Final = "SELECT pulse.complete_attempt($1, $2, $3, $4, $5)"
_COMPLETED_AT: Final = "SELECT completed_at FROM pulse.jobs WHERE uuid_send(id) = $1"  # by the clock of the database
PRIORITIES: Final = (-1, 0, 1)
_BY_ID: Final = attrgetter("id")
BACK_S: Final = 0.001  # cursors are floats: go on a little before
Act: TypeAlias = Callable[[Acting], Awaitable[T]]

halves = st.integers(0, 20).map(lambda number: number / 2)
new_jobs = st.tuples(st.sampled_from(TOPICS), st.sampled_from(PRIORITIES), st.just(0.0) | halves, st.integers(1, 3))
json_text = st.none() | st.sampled_from(['"half"', "1", "[]"])
places = st.integers(0, 20)
picks = st.lists(places, min_size=1, max_size=4)
fails = st.sampled_from((False, False, False, True))
seats = st.lists(st.integers(0, 2), max_size=4)
outcomes = st.lists(st.sampled_from(("", "ok", *(kind.value for kind in KINDS))), max_size=4)


@pytest.fixture
def server(newest_server: Postgres) -> Postgres:
    return newest_server


@pytest.fixture
def database(server: Postgres) -> Iterator[Database]:
    with history_database(server, hot=1, queries=1) as made:
        yield made


class StoreMachine(RuleBasedStateMachine):
    """Random histories of a few jobs and three workers that never forget a token."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self.database = database
        self.store = database.store
        self.model = Rows(swept_at=NOW)
        self.now = NOW
        self.tokens: list[Fence] = []  # all that were ever given out, the newest last
        self.made = 0
        self.gone: list[bytes] = []  # jobs that were deleted
        self.notes: list[tuple[str, int]] = []
        self.cursors: dict[tuple[str, int], float] = {}  # up to when all that was due was claimed

    def do(self, doing: Coroutine[Any, Any, T]) -> T:
        return self.database.run(doing)

    def some_tokens(self, picks: list[int]) -> list[Fence]:
        """Tokens for a merged statement: mostly current ones, some that are stale."""
        pool = [*self.model.held(), *self.model.held(), *self.tokens[-5:]]
        return sorted({pool[pick % len(pool)] for pick in picks})

    def some_jobs(self, picks: list[int], statuses: Collection[str]) -> list[bytes]:
        """Ids for an operator's request: mostly of jobs in *statuses*, sometimes the same twice."""
        every = self.model.jobs
        pool = [*(one for one, job in every.items() if job.status in statuses), *every, *self.gone[-2:]]
        return [pool[pick % len(pool)] for pick in picks]

    @initialize(first=st.lists(new_jobs, min_size=3, max_size=6))
    def begin(self, first: list[tuple[str, int, float, int]]) -> None:
        self.do(self.database.connection.execute(EMPTY))
        self.do(self.store.mark_sweep(1e9, 0.0, now=NOW))
        for topic, priority, delay_s, max_attempts in first:
            self._submit(1, topic, priority, delay_s, max_attempts)

    @rule(seconds=halves | st.just(LEASE_S) | st.just(LEASE_S + 0.5), seats=seats, outcomes=outcomes)
    def time_passes(self, seconds: float, seats: list[int], outcomes: list[str]) -> None:
        self.now += timedelta(seconds=seconds)
        self._work(seats, outcomes)

    @rule(number=st.integers(1, 3), new=new_jobs, seats=seats, outcomes=outcomes)
    def submit(self, number: int, new: tuple[str, int, float, int], seats: list[int], outcomes: list[str]) -> None:
        """New jobs, and the claim that follows at once."""
        self._submit(number, *new)
        self._work(seats, outcomes)

    def _submit(self, number: int, topic: str, priority: int, delay_s: float, max_attempts: int) -> None:
        jobs = [self._new(topic, priority, delay_s, max_attempts) for _ in range(number)]
        assert self.do(self.store.submit(jobs, now=self.now)) == self.model.submit(jobs, self.now)

    def _new(self, topic: str, priority: int, delay_s: float, max_attempts: int) -> SubmittedJob:
        self.made += 1
        fields: dict[str, Any] = {"topic": topic, "priority": priority, "max_attempts": max_attempts}
        return SubmittedJob("n", delay_s=delay_s, id=_nth_id(self.made), timeout_s=7.0, **fields)

    @rule(new=new_jobs, topics=st.lists(st.sampled_from(TOPICS), unique=True), seat=st.integers(0, 2))
    def submit_and_claim(self, new: tuple[str, int, float, int], topics: list[str], seat: int) -> None:
        jobs = [msgspec.structs.replace(self._new(*new), delay_s=None)]
        claims, woken = self.do(self.store.submit_and_claim(jobs, topics, WORKERS, [seat], LEASE_S, now=self.now))
        expected, due = self.model.submit_and_claim(jobs, topics, WORKERS, [seat], LEASE_S, self.now)
        assert (woken, [*map(_plain, claims)]) == (due, [*map(_plain, expected)])
        self.tokens += [Fence(one.id, one.attempt, WORKERS[seat]) for one in claims]

    @precondition(lambda self: self.model.jobs)
    @rule(pick=places, name=st.sampled_from(("n", "m")))
    def submit_again(self, pick: int, name: str) -> None:
        identity = list(self.model.jobs)[pick % len(self.model.jobs)]
        again = SubmittedJob(name, topic=self.model.jobs[identity].topic, id=identity)
        with contextlib.nullcontext() if name == "n" else pytest.raises(ConflictError, match="exists already"):
            assert self.do(self.store.submit_again([again], now=self.now)) == []
        with contextlib.nullcontext() if name == "n" else pytest.raises(ConflictError, match="exists already"):
            assert self.model.submit_again([again], self.now) == []

    @precondition(lambda self: self.gone)
    @rule(pick=places, topic=st.sampled_from(TOPICS))
    def submit_what_was_deleted(self, pick: int, topic: str) -> None:
        """It is another job, whose attempts are counted anew: by then none of the first may run."""
        identity = self.gone.pop(pick % len(self.gone))
        self.tokens = [one for one in self.tokens if one.id != identity]
        again = SubmittedJob("n", topic=topic, id=identity, max_attempts=2)
        assert self.do(self.store.submit_again([again], now=self.now)) == self.model.submit_again([again], self.now)

    @rule(topics=st.permutations(TOPICS), seats=seats)
    def claim(self, topics: list[str], seats: list[int]) -> None:
        self._claim_all(topics, seats)

    @rule(topics=st.permutations(TOPICS), seats=seats)
    def claim_from_cursors(self, topics: list[str], seats: list[int]) -> None:
        """One that looks only behind earlier claims finds all there is."""
        self._claim_all(
            topics, seats, [(*level, self.cursors.get(level, 0.0)) for level in itertools.product(topics, PRIORITIES)]
        )

    @rule(
        levels=st.lists(st.tuples(st.sampled_from(TOPICS), st.sampled_from(PRIORITIES)), max_size=4, unique=True),
        ago_s=st.lists(st.none() | halves, min_size=4, max_size=4),
        seats=seats,
    )
    def claim_levels(self, levels: list[tuple[str, int]], ago_s: list[float | None], seats: list[int]) -> None:
        """One that knows some levels finds all of these, from the time that it knows on."""
        begins = [None if ago is None else self.now.timestamp() - ago for ago in ago_s]
        known = [(*level, begin) for level, begin in zip(levels, begins, strict=False)]
        self._claim(seats, known, self.model.claimable_from(known, self.now))

    def _claim_all(
        self, topics: list[str], seats: list[int], levels: list[tuple[str, int, float | None]] | None = None
    ) -> list[Fence]:
        fences = self._claim(seats, levels, self.model.claimable(topics, self.now), topics)
        if len(fences) < len(seats) and "" not in self.model.paused:
            reached_s = self.now.timestamp() - BACK_S
            done = itertools.product({*topics} - self.model.paused, PRIORITIES)
            self.cursors |= dict.fromkeys(done, reached_s)
        return fences

    def _claim(
        self,
        seats: list[int],
        levels: list[tuple[str, int, float | None]] | None,
        candidates: list[tuple[Key, bytes]],
        topics: Sequence[str] = (),
    ) -> list[Fence]:
        claimed = self.do(self.store.claim(topics, WORKERS, seats, LEASE_S, levels=levels, now=self.now))
        keys = {identity: key for key, identity in candidates}
        assert Counter(keys[one.id] for one in claimed) == Counter(key for key, _ in candidates[: len(seats)])
        expected = self.model.take([one.id for one in claimed], WORKERS, seats, LEASE_S, self.now)
        assert [*map(_plain, sorted(claimed, key=_BY_ID))] == [*map(_plain, sorted(expected, key=_BY_ID))]
        fences = [Fence(one.id, one.attempt, WORKERS[one.worker]) for one in claimed]
        self.tokens += fences
        return fences

    def _work(self, seats: list[int], outcomes: list[str]) -> None:
        """Workers get jobs, and finish some of them at once."""
        for fence, outcome in zip(self._claim_all(list(TOPICS), seats), outcomes, strict=False):
            if outcome == "ok":
                self._complete([Completion(*fence, '"done"', None)])
            elif outcome:
                self._end([Ending(*fence, EndingKind(outcome), outcome)])

    @precondition(lambda self: self.tokens)
    @rule(picks=picks, result=json_text, progress=json_text)
    def complete(self, picks: list[int], result: str | None, progress: str | None) -> None:
        held = self.some_tokens(picks)
        self._complete([Completion(*one, result, progress) for one in held])
        asked = {(one.id, one.attempt) for one in held}
        done = {(one.id, one.attempts) for one in self.model.jobs.values() if one.status == "COMPLETED"}
        assert self.do(self.store.completed_already(sorted(asked))) == done & asked

    def _complete(self, completions: list[Completion]) -> None:
        closed = self.do(self.store.complete(completions, now=self.now))
        assert closed == self.model.complete(completions, self.now)

    @precondition(lambda self: self.tokens)
    @rule(pick=places, result=json_text, progress=json_text, fails=fails)
    def complete_by_a_handler(self, pick: int, result: str | None, progress: str | None, fails: bool) -> None:
        """In its own transaction: its effect is there with the end of the job, or neither is."""
        [token] = self.some_tokens([pick])
        done = self.model.is_held(token) and not fails
        refused = pytest.raises((asyncpg.PostgresError, LookupError), match=r"no longer holds job|the handler fails")
        with contextlib.nullcontext() if done else refused:
            self.do(self._complete_by_handler(token, result, progress, fails=fails))
        if done:
            at = self.do(self.database.connection.fetchval(_COMPLETED_AT, token.id))
            self.model.complete([Completion(*token, result, progress)], at)
            self.notes.append(("effect", 1))

    async def _complete_by_handler(
        self, token: Fence, result: str | None, progress: str | None, *, fails: bool
    ) -> None:
        connection = self.database.connection
        async with connection.transaction():
            await connection.execute(_EFFECT)
            key = (uuid.UUID(bytes=token.id), token.attempt, token.worker)
            await connection.execute(_COMPLETE, *key, result, progress)
            if fails:
                raise LookupError("the handler fails")

    @precondition(lambda self: self.tokens)
    @rule(
        picks=picks, kind=st.sampled_from(KINDS), delay_s=st.none() | halves, progress=json_text,
        exit_code=st.none() | st.integers(-15, 15),
    )  # fmt: skip
    def end(
        self, picks: list[int], kind: EndingKind, delay_s: float | None, progress: str | None, exit_code: int | None
    ) -> None:
        error = None if kind in GIVEN_BACK else kind.value
        self._end([Ending(*one, kind, error, delay_s, exit_code, progress) for one in self.some_tokens(picks)])

    def _end(self, endings: list[Ending]) -> None:
        ended = self.do(self.store.end(endings, now=self.now))
        assert sorted(ended) == sorted(self.model.end(endings, self.now))

    @precondition(lambda self: self.tokens)
    @rule(picks=picks, progress=json_text)
    def beat(self, picks: list[int], progress: str | None) -> None:
        renewals = [Renewal(*one, progress) for one in self.some_tokens(picks)]
        extended = self.do(self.store.extend(renewals, LEASE_S, now=self.now))
        assert extended == self.model.extend(renewals, LEASE_S, self.now)

    @precondition(lambda self: self.tokens)
    @rule(picks=picks, saved=st.sampled_from(["1", "[2]"]))
    def save(self, picks: list[int], saved: str) -> None:
        checkpoints = [Renewal(*one, saved) for one in self.some_tokens(picks)]
        assert self.do(self.store.checkpoint(checkpoints)) == self.model.save(checkpoints)

    @precondition(lambda self: self.tokens)
    @rule(pick=places, heir=st.sampled_from(WORKERS))
    def move(self, pick: int, heir: str) -> None:
        """A dispatcher passes a claim on; the token of the heir may be good or not."""
        [token] = self.some_tokens([pick])
        assert self.do(self.store.move([(token, heir)])) == self.model.move(token, heir)
        self.tokens.append(token._replace(worker=heir))

    @rule(limit=st.integers(1, 5))
    def sweep(self, limit: int) -> None:
        """A watchdog ends lapsed attempts: of workers that died unnoticed."""
        found = self.do(self.store.lapsed(limit, now=self.now))
        lapsed = self.model.lapsed(self.now)
        assert len(found) == min(limit, len(lapsed))
        assert set(found) <= lapsed
        self._end([Ending(*one, EndingKind.LEASE_EXPIRED, "worker lease expired") for one in found])

    @precondition(lambda self: self.tokens)
    @rule(picks=picks)
    def late_sweep(self, picks: list[int]) -> None:
        """A watchdog ends attempts that it saw lapsed before: only those still lapsed end."""
        held = self.some_tokens(picks)
        self._end([Ending(*one, EndingKind.LEASE_EXPIRED, "worker lease expired") for one in held])

    @rule(gap_s=st.sampled_from((5.0, 20.0)), doubt_s=st.none() | st.sampled_from((1.0, LEASE_S)))
    def mark_sweep(self, gap_s: float, doubt_s: float | None) -> None:
        """A watchdog marks its sweep, and hears how long to wait; a dispatcher may doubt the leases before."""
        if doubt_s is not None:
            self.do(self.store.doubt_leases(doubt_s, now=self.now))
            self.model.doubt_leases(doubt_s, self.now)
        said = self.do(self.store.mark_sweep(gap_s, LEASE_S, now=self.now))
        assert said == pytest.approx(self.model.mark_sweep(gap_s, LEASE_S, self.now))

    @rule(picks=picks, spared=st.lists(st.sampled_from(WORKERS), unique=True))
    def ask(self, picks: list[int], spared: list[str]) -> None:
        self.do(self._answers(self.some_jobs(picks, WAITING), spared))

    async def _answers(self, ids: list[bytes], spared: list[str]) -> None:
        store, model = self.store, self.model
        lapsed = await store.lapsed(100, spared=spared, now=self.now)
        assert lapsed == model.lapsed_except(100, spared, self.now)
        oldest = [await store.lapsed(2, spared=spared, now=self.now), model.lapsed_except(2, spared, self.now)]
        first, second = (sorted(str(model.jobs[one.id].started_at) for one in found) for found in oldest)
        assert first == second  # of attempts that began together, any
        worker = WORKERS[len(ids) % len(WORKERS)]
        assert await store.running_of(worker) == model.running_of(worker)
        assert await store.leases_of(WORKERS, now=self.now) == model.leases_of(WORKERS, self.now)
        assert sorted(await store.running_workers()) == model.running_workers()
        assert await store.statuses(ids) == model.statuses(ids)
        assert await store.named(ids) == model.named(ids)
        assert await store.reads.last_workers(ids) == model.last_workers(ids)

    @rule(picks=picks, fails=fails)
    def cancel(self, picks: list[int], fails: bool) -> None:
        chosen = self.some_jobs(picks[:2], {"RUNNING", "RETRYING"})
        with self._operates("cancel", fails=fails) as (act, model):
            canceled = act(lambda store: store.cancel(chosen, now=self.now))
            assert {one.id: one for one in canceled} == {one.id: one for one in model.cancel(chosen, self.now)}

    @rule(picks=picks, fails=fails)
    def retry(self, picks: list[int], fails: bool) -> None:
        chosen = self.some_jobs(picks, FINISHED)
        with self._operates("retry", fails=fails) as (act, model):
            assert set(act(lambda store: store.retry(chosen, now=self.now))) == model.retry(chosen, self.now)

    @rule(picks=picks, fails=fails)
    def delete(self, picks: list[int], fails: bool) -> None:
        """An operator deletes finished jobs; running and retried ones stay."""
        chosen = self.some_jobs(picks[:2], FINISHED)
        with self._operates("delete", fails=fails) as (act, model):
            gone = act(lambda store: store.delete(chosen))
            assert gone == model.delete(chosen)
        if not fails:
            self.gone += gone

    @rule(
        picks=picks, topic=st.none() | st.sampled_from(TOPICS), priority=st.none() | st.sampled_from(PRIORITIES),
        fails=fails,
    )  # fmt: skip
    def change(self, picks: list[int], topic: str | None, priority: int | None, fails: bool) -> None:
        chosen = self.some_jobs(picks, WAITING)
        with self._operates("change", fails=fails) as (act, model):
            moved = act(lambda store: store.change(chosen, topic=topic, priority=priority, now=self.now))
            assert moved == model.moved(chosen, topic, priority, self.now)

    @contextlib.contextmanager
    def _operates(self, action: str, *, fails: bool) -> Iterator[tuple[Callable[[Act[Any]], Any], Rows]]:
        """An operator's transaction, its change, and its note: all of it is there afterwards, or nothing."""
        after = copy.deepcopy(self.model)

        async def act(doing: Act[Any]) -> Any:
            answer: Any = None
            with contextlib.suppress(*[NotFoundError] * fails):
                async with self.store.acting(Operator()) as store:
                    answer = await doing(store)
                    await store.note(f"jobs.{action}", jobs=len(answer))
                    if fails:
                        raise NotFoundError("the second of two requests is refused")
            if not fails:
                self.notes.append((f"jobs.{action}", len(answer)))
            return answer

        yield lambda doing: self.do(act(doing)), after
        self.model = self.model if fails else after

    @rule(topic=st.sampled_from(("", *TOPICS)), closed=st.sampled_from((False, False, True)))
    def gate(self, topic: str, closed: bool) -> None:
        """An operator closes a gate or, more often, opens it."""
        if closed:
            self.do(self.store.gate.pause(topic, None, now=self.now))
            self.model.paused.add(topic)
        else:
            assert self.do(self.store.gate.resume(topic)) == (topic in self.model.paused)
            self.model.paused.discard(topic)

    @invariant()
    def database_is_as_the_model(self) -> None:
        jobs, history = self.do(self._rows())
        assert [tuple(note) for note in self.do(self.database.connection.fetch(_NOTES))] == self.notes
        assert jobs == {identity: asdict(job) for identity, job in self.model.jobs.items()}
        assert history == self.model.history

    async def _rows(self) -> tuple[dict[bytes, dict[str, Any]], dict[tuple[bytes, int], dict[str, Any]]]:
        jobs = {row["id"]: dict(row) for row in await self.database.connection.fetch(_JOBS)}
        history: dict[tuple[bytes, int], dict[str, Any]] = {}
        for row in map(dict, await self.database.connection.fetch(_HISTORY)):
            history[row.pop("job_id"), row.pop("attempt")] = row
        return jobs, history


@pytest.mark.rest
@EXAMPLES
@pytest.mark.timeout(2.0 * settings().max_examples)
def test_the_store_does_what_the_model_does(database: Database, part: int) -> None:
    """Each answer and each row of the database is as the model says."""
    run_histories(lambda: StoreMachine(database), part)


def _plain(claim: Claim) -> Claim:
    previous = None if claim.previous is None else json.dumps(json.loads(claim.previous))
    return structs.replace(claim, previous=previous, due_at=round(claim.due_at, 6))


def _nth_id(number: int) -> bytes:
    """An id that is the same in every run; ids of later jobs are not larger."""
    return hashlib.md5(str(number).encode(), usedforsecurity=False).digest()
