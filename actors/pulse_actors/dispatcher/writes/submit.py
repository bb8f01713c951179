"""Group commit of submits: requests that arrive while one statement runs share the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from pulse.common.ids import uuid7
from pulse.errors import BadRequestError, ConflictError, PulseError, StatementError, UnavailableError
from pulse.protocol import NewJob
from pulse.store.failures import IN_VAIN, UNIQUE_VIOLATION
from pulse.store.rows import Level, Wake
from pulse.store.store import Store
from pulse.store.times import from_s
from pulse_actors.dispatcher.claims.loop import ClaimLoop
from pulse_actors.dispatcher.workers.registry import WorkerLink
from pulse_actors.dispatcher.writes.batcher import ROW_BYTES, Batcher, halve
from pulse_actors.shared.json_size import excess
from pulse_actors.shared.row_writes import spread

BATCH: Final = 5000  # jobs of one statement
MAX_ARGS_BYTES: Final = 1024 * 1024  # larger work belongs into a file whose path is the argument


@dataclass(frozen=True, slots=True)
class PendingSubmit:
    """One submit frame; every job has an id."""

    link: WorkerLink
    request: int | None
    jobs: Sequence[NewJob]


class SubmitWriter:
    """
    Collects submits and inserts them; each is answered after its commit.

    Args:
        store: The database.
        claims: To be woken for the topics that got work.
    """

    def __init__(self, store: Store, claims: ClaimLoop) -> None:
        self._store = store
        self._claims = claims
        self._in_vain = 0  # of one batch: requests that were refused, each by itself, before one was carried out
        self.batcher: Batcher[PendingSubmit] = Batcher(self._write, _weight, BATCH)

    async def _write(self, submits: Sequence[PendingSubmit]) -> None:
        self._in_vain = 0
        if not await self._insert(submits):
            await halve(spread(submits), self._insert)

    async def _insert(self, submits: Sequence[PendingSubmit]) -> bool:
        try:
            woken = await self._claims.submit([job for submit in submits for job in submit.jobs])
        except StatementError as error:
            if len(submits) > 1:
                if self._in_vain < IN_VAIN:
                    return False
                for submit in submits:  # nobody knows which of them it is about: all are to try again
                    _refuse(submit, UnavailableError(error.message))
            elif error.sqlstate == UNIQUE_VIOLATION:
                await self._insert_again(submits[0])
            else:
                self._in_vain += not error.is_value
                _refuse(submits[0], _refusal(submits[0], error))
            return True
        except PulseError as error:
            for submit in submits:
                _refuse(submit, error)
            return True
        self._in_vain = -BATCH  # what is refused beside this is refused for itself
        self._done(submits, woken)
        return True

    async def _insert_again(self, submit: PendingSubmit) -> None:
        """A request some of whose ids exist: a repeated one, or somebody else's."""
        try:
            self._done([submit], await self._store.submit_again(submit.jobs))
        except StatementError as error:
            inserted_between = error.sqlstate == UNIQUE_VIOLATION
            _refuse(submit, ConflictError(error.message) if inserted_between else _refusal(submit, error))
        except PulseError as error:
            _refuse(submit, error)

    def _done(self, submits: Sequence[PendingSubmit], woken: Sequence[Wake]) -> None:
        for wake in woken:  # first: the claim is on its way while the answers are written
            if wake.due_s is not None:
                self._claims.wake_level(Level(wake.topic, wake.priority), due_s=wake.due_s)
        for submit in submits:
            submit.link.send("ok", submit.request, {"ids": [job.id for job in submit.jobs]})
        delays = [job.delay_s for submit in submits for job in submit.jobs if job.delay_s]
        if delays:
            self._claims.wake_recent(min(delays))


def _refuse(submit: PendingSubmit, error: PulseError) -> None:
    submit.link.send("error", submit.request, {"code": error.code, "message": error.message})


def _refusal(submit: PendingSubmit, error: StatementError) -> PulseError:
    """What is said of a request that the database refuses for itself."""
    if error.code != BadRequestError.code:
        return error
    which = f"job {submit.jobs[0].name}" if len(submit.jobs) == 1 else f"one of {len(submit.jobs)} jobs"
    return BadRequestError(f"{which} cannot be stored: {error.message}")


def _weight(submit: PendingSubmit) -> int:
    """Jobs, and long args as many jobs as they have pages: a statement has to end within its time."""
    return sum(1 + len(job.args) // ROW_BYTES for job in submit.jobs)


def checked(jobs: Sequence[NewJob]) -> list[NewJob]:
    """
    *jobs* with an id each, held against what can be told without the database.

    Raises:
        BadRequestError: A job's args are too long, it has both run_at and delay_s, no calendar has its run_at, or it
            expires before it is due.
    """
    ready: list[NewJob] = []
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


def _problem(job: NewJob) -> str | None:
    wrong = args_problem(job.args)
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


def _is_on_a_calendar(moment: float) -> bool:
    try:
        from_s(moment)
    except OverflowError:
        return False
    return True
