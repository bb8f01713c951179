"""Group commit of submits: requests that arrive while one statement runs share the next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from pulse.common.ids import uuid7
from pulse.errors import (
    BadRequestError,
    ConflictError,
    PulseError,
    StatementError,
    StatementTimeoutError,
    UnavailableError,
)
from pulse.protocol import SubmittedJob
from pulse.store.failures import IN_VAIN, UNIQUE_VIOLATION, refuse_swallowed
from pulse.store.rows import GroupLevel, Level, Wake, from_s
from pulse.store.store import Store
from pulse_actors.dispatcher.claims.cursors import FEW_TOPICS
from pulse_actors.dispatcher.claims.doubts import InDoubtClaims
from pulse_actors.dispatcher.claims.handout import ASSIGN_CHARS, Handout
from pulse_actors.dispatcher.claims.work_signal import WorkSignal
from pulse_actors.dispatcher.monitoring.counters import DispatchCounters
from pulse_actors.dispatcher.monitoring.observe import count_submitted
from pulse_actors.dispatcher.workers.records import WorkerLink
from pulse_actors.dispatcher.workers.registry import ClaimPlan, WorkerRegistry
from pulse_actors.dispatcher.writes.batcher import ROW_BYTES, Batcher, halve
from pulse_actors.shared.json_size import excess
from pulse_actors.shared.row_writes import spread

BATCH: Final = 5000  # jobs of one statement
MAX_UNHANDLED: Final = 20  # names that an answer warns of
MAX_ARGS_BYTES: Final = 1024 * 1024  # larger work belongs into a file whose path is the argument
_NOTHING: Final = (None,) * 6


@dataclass(frozen=True, slots=True)
class PendingSubmit:
    """One submit frame; every job has an id."""

    link: WorkerLink
    request: int | None
    jobs: Sequence[SubmittedJob]


class SubmitWriter:
    """
    Collects submits and inserts them; each is answered after its commit.

    Args:
        batch: Limit of jobs in one claim.
    """

    def __init__(
        self,
        store: Store,
        registry: WorkerRegistry,
        *,
        counters: DispatchCounters,
        batch: int,
        handout: Handout,
        in_doubt: InDoubtClaims,
        signal: WorkSignal,
    ) -> None:
        self._store, self._unique = store, store.unique
        self._registry = registry
        self._signal = signal
        self._in_doubt = in_doubt
        self._handout = handout
        self._batch = batch
        self._counters = counters
        self._in_vain = 0  # requests of one batch that were refused one by one before one succeeded
        self.batcher: Batcher[PendingSubmit] = Batcher(self._write, _weight, BATCH)

    async def _write(self, submits: Sequence[PendingSubmit]) -> None:
        self._in_vain = 0
        if not await self._insert(submits):
            await halve(spread(submits), self._insert)

    async def _insert(self, submits: Sequence[PendingSubmit]) -> bool:
        try:
            woken = await self.submit([job for submit in submits for job in submit.jobs])
        except StatementError as error:
            if len(submits) > 1:
                if self._in_vain < IN_VAIN:
                    return False
                for submit in submits:  # the bad one is unknown: all are tried again
                    _refuse(submit, UnavailableError(error.message))
            elif error.sqlstate == UNIQUE_VIOLATION:
                await self._insert_again(submits[0])
            else:
                self._in_vain += not error.is_value
                _refuse(submits[0], _refusal(submits[0].jobs, error))
            return True
        except PulseError as error:
            for submit in submits:
                _refuse(submit, error)
            return True
        self._in_vain = -BATCH  # from here on a refused request is the cause of its own refusal
        self._done(submits, woken)
        return True

    async def submit(self, jobs: Sequence[SubmittedJob]) -> list[Wake]:
        """
        Insert *jobs*, all or none; if workers wait for such jobs, hand them out in the same statement.

        Returns:
            The levels that have jobs to claim now.

        Raises:
            UnavailableError: The database is away.
            StatementError: As of ``Store.submit``.
        """
        if not self._may_hand_out(jobs):
            return await self._submit(jobs)
        async with self._in_doubt.claiming():
            plan = self._plan_for(jobs)
            if plan is None:
                return await self._submit(jobs)
            try:
                woken = await self._submit_and_claim(plan, jobs)
            finally:
                if self._in_doubt.is_unconfirmed:
                    self._signal.look_again()  # to look into the doubt
        return await self._submit(jobs) if woken is None else woken  # outside the lock: nothing is handed out

    async def submit_unique(self, jobs: Sequence[SubmittedJob]) -> dict[str, object]:
        """
        Insert *jobs*, some of which have unique keys or wait for other jobs, all or none; by themselves, since they may
        wait for other transactions.

        Returns:
            The answer.

        Raises:
            UnavailableError: The database is away; or a transaction that is open has one of the keys.
            ConflictError: A key belongs to a job that is to be kept.
        """
        try:
            ids, woken = await self._unique.submit(jobs)
        except StatementTimeoutError as error:
            message = f"a transaction that is not over has one of these unique keys ({error.message})"
            raise UnavailableError(message) from error
        except StatementError as error:
            raise _refusal(jobs, error) from error
        count_submitted(self._counters, woken)
        self._wake(woken)
        self._wake_delayed(jobs)
        return self._answer(jobs, ids)

    async def _submit(self, jobs: Sequence[SubmittedJob]) -> list[Wake]:
        woken = await self._store.submit(jobs)
        count_submitted(self._counters, woken)
        refuse_swallowed(len(jobs), sum(wake.jobs for wake in woken))
        return woken

    def _may_hand_out(self, jobs: Sequence[SubmittedJob]) -> bool:
        """Whether such jobs may start before all others: no other work is known to wait."""
        if not self._signal.is_at_rest or self._in_doubt.is_claiming or not self._in_doubt.is_settled:
            return False
        if len(jobs) > self._batch or any(job.run_at is not None or job.delay_s for job in jobs):
            return False
        return all(excess(job.args, ASSIGN_CHARS // len(jobs)) is None for job in jobs)

    def _plan_for(self, jobs: Sequence[SubmittedJob]) -> ClaimPlan | None:
        self._handout.note_silence()
        topics = {job.topic for job in jobs if job.topic is not None}
        for one in self._registry.with_room():
            if len(one.topics) <= FEW_TOPICS and topics.issubset(one.topics):
                plan = one.plan(len(jobs))
                if len(plan.seats) == len(jobs):
                    return plan
        return None

    async def _submit_and_claim(self, plan: ClaimPlan, jobs: Sequence[SubmittedJob]) -> list[Wake] | None:
        """As ``submit``; None: refused. A plain insert may succeed, where the claim then sets bad jobs aside."""
        self._handout.begin(plan)
        try:
            claims, woken = await self._store.submit_and_claim(
                jobs, plan.topics, plan.workers, plan.seats, self._handout.lease_s
            )
        except StatementError as error:
            if error.may_be_done:
                raise
            self._in_doubt.confirm(plan.workers)  # nothing was done
            if error.sqlstate == UNIQUE_VIOLATION:  # a plain insert fails, too
                raise
            return None
        count_submitted(self._counters, woken, claims)
        await self._handout.take(plan, claims)
        refuse_swallowed(len(jobs), len(claims) + len(woken))
        return woken

    async def _insert_again(self, submit: PendingSubmit) -> None:
        """A request with existing ids: a repeated one, or ids of another client."""
        try:
            self._done([submit], await self._store.submit_again(submit.jobs))
        except StatementError as error:
            inserted_between = error.sqlstate == UNIQUE_VIOLATION
            _refuse(submit, ConflictError(error.message) if inserted_between else _refusal(submit.jobs, error))
        except PulseError as error:
            _refuse(submit, error)

    def _done(self, submits: Sequence[PendingSubmit], woken: Sequence[Wake]) -> None:
        self._wake(woken)  # first: the claim runs while the answers are written
        for submit in submits:
            submit.link.send("ok", submit.request, self._answer(submit.jobs, [job.id for job in submit.jobs]))
        self._wake_delayed([job for submit in submits for job in submit.jobs])

    def _wake(self, woken: Sequence[Wake]) -> None:
        for wake in woken:
            if wake.due_s is not None:
                level: Level | GroupLevel = Level(wake.topic, wake.priority)
                if wake.group_key is not None:
                    level = GroupLevel(wake.topic, wake.group_key, wake.priority)
                self._signal.wake_level(level, due_s=wake.due_s)

    def _wake_delayed(self, jobs: Sequence[SubmittedJob]) -> None:
        delays = [job.delay_s for job in jobs if job.delay_s]
        if delays:
            has_groups = any(job.group_key is not None for job in jobs)
            self._signal.wake_recent(min(delays), has_groups=has_groups)

    def _answer(self, jobs: Sequence[SubmittedJob], ids: Sequence[bytes | None]) -> dict[str, object]:
        """The ids; and which names no worker has a handler for, although workers serve the topic."""
        answer: dict[str, object] = {"ids": ids}
        named = {(job.topic, job.name) for job in jobs}
        unhandled = [(name, *found) for topic, name in named if (found := self._registry.unhandled(topic, name))]
        if unhandled:
            answer["unhandled"] = unhandled[:MAX_UNHANDLED]
        return answer


def _refuse(submit: PendingSubmit, error: PulseError) -> None:
    submit.link.send("error", submit.request, {"code": error.code, "message": error.message})


def _refusal(jobs: Sequence[SubmittedJob], error: StatementError) -> PulseError:
    """The error for a request that is refused by itself."""
    if error.code != BadRequestError.code:
        return error
    which = f"job {jobs[0].name}" if len(jobs) == 1 else f"one of {len(jobs)} jobs"
    return BadRequestError(f"{which} cannot be stored: {error.message}")


def _weight(submit: PendingSubmit) -> int:
    """Jobs; long args count as several jobs, so that a statement ends in time."""
    return sum(1 + len(job.args) // ROW_BYTES for job in submit.jobs)


def checked(jobs: Sequence[SubmittedJob]) -> list[SubmittedJob]:
    """
    *jobs* with an id each, checked as far as that needs no database.

    Raises:
        BadRequestError: A job's args are too long, it has both run_at and delay_s, run_at is out of range, it expires
            before it is due, or has options of unique jobs without a key.
    """
    ready: list[SubmittedJob] = []
    for index, job in enumerate(jobs):
        problem = _problem(job)
        if problem is not None:
            raise BadRequestError(f"job {index} ({job.name}): {problem}")
        ready.append(job if job.id is not None else msgspec.structs.replace(job, id=uuid7().bytes))
    return ready


def args_problem(args: str) -> str | None:
    """What is wrong with *args*; None: nothing."""
    size_bytes = excess(args, MAX_ARGS_BYTES)
    if size_bytes is None:
        return None
    is_long = len(args.encode(errors="surrogatepass")) > MAX_ARGS_BYTES
    words = "" if is_long else " as PostgreSQL prints them, with all digits of numbers like 1e999"
    return f"args have {size_bytes} bytes{words}; at most {MAX_ARGS_BYTES} are allowed"


def _problem(job: SubmittedJob) -> str | None:
    options = job.run_at, job.expires_at, job.expires_in_s, job.unique_until, job.on_conflict, job.on_failure
    return args_problem(job.args) or (_contradiction(job) if options != _NOTHING else None)  # most have none of them


def _contradiction(job: SubmittedJob) -> str | None:
    wrong = _key_problem(job)
    if wrong is None and job.on_failure is not None and not job.after:
        wrong = "on_failure is given; it is allowed with after only"
    if wrong is not None:
        return wrong
    if job.run_at is not None and job.delay_s is not None:
        return "run_at and delay_s are both given; one of them is allowed"
    if job.expires_at is not None and job.expires_in_s is not None:
        return "expires_at and expires_in_s are both given; one of them is allowed"
    for name, moment in (("run_at", job.run_at), ("expires_at", job.expires_at)):
        if moment is not None and not _is_on_a_calendar(moment):
            return f"{name} is {moment:g}; Unix seconds of the years 1 to 9999 are allowed"
    for end, end_s, begin, begin_s in (
        ("expires_at", job.expires_at, "run_at", job.run_at),
        ("expires_in_s", job.expires_in_s, "delay_s", job.delay_s),
    ):
        if end_s is not None and begin_s is not None and end_s <= begin_s:
            return f"{end} is {end_s:.12g}; more than {begin}, {begin_s:.12g}, is allowed"
    return None


def _key_problem(job: SubmittedJob) -> str | None:
    if job.unique is None and (job.unique_until is not None or job.on_conflict is not None):
        return "unique_until or on_conflict is given; they are allowed with unique only"
    return None


def need_transaction(jobs: Iterable[SubmittedJob]) -> bool:
    """Whether some of *jobs* have unique keys, or wait for others: such a request is written by itself."""
    return any(job.unique is not None or job.after for job in jobs)


def _is_on_a_calendar(moment: float) -> bool:
    try:
        from_s(moment)
    except OverflowError:
        return False
    return True
