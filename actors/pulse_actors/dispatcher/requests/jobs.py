"""Requests about jobs: one function per kind, from the typed body to the answer."""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import Final

from pulse import protocol
from pulse.common.ids import hex_digits
from pulse.errors import BadRequestError, ConflictError, NotFoundError, StatementError, UnavailableError
from pulse.job import Status
from pulse.store.operators.jobs import RestartedJob
from pulse.store.operators.transaction import Acting
from pulse.store.reading.jobs import STATUSES
from pulse.store.reading.listing import JobFilter
from pulse.store.rows import Canceled, GroupLevel, Level, Wake, level_of
from pulse.system import processes
from pulse_actors.dispatcher.context import Answer, RequestContext, no_such
from pulse_actors.dispatcher.diagnosis.facts import facts_of
from pulse_actors.dispatcher.diagnosis.why import ACTIVE, explain
from pulse_actors.dispatcher.writes.batcher import halve
from pulse_actors.shared import identity as identities

RELATIVES: Final = 100  # jobs that one waits for, that wait for it, and signals, in the answer about that one
GRAPH_JOBS: Final = 10_001  # of a graph in one answer, a tenth of a second of work; and dependencies between them
GRAPH_EDGES: Final = 40_000
DEPENDENTS: Final = 50_000  # that one request cancels or retries beside those that it names: seconds
NOTED_IDS: Final = 100  # ids in an audit entry; larger requests have a filter, or the operator has the list
SET_ASIDE: Final = "set_aside"  # why a job was not changed: the database refuses it; it is set aside
SOON_S: Final = 1.0  # due times that differ by less than clocks do count as now


async def list_jobs(on: RequestContext, body: protocol.JobsList) -> Answer:
    """A page of jobs; it ends early when its time is over."""
    statuses = [body.status] if isinstance(body.status, str) else body.status
    for status in statuses or ():
        if status not in STATUSES:
            message = f"status is {status!r:.60}; allowed are {', '.join(STATUSES)}"
            raise BadRequestError(message)
    wanted = dataclasses.replace(_filter_of(body), statuses=tuple(statuses) if statuses else None, due=body.due)
    page = await on.services.store.listing.page(wanted, body.limit, body.after, oldest=body.oldest, brief=body.brief)
    return {"jobs": page.jobs, "next": page.next, "reached": page.reached_s}


async def count_jobs(on: RequestContext, body: protocol.JobsCount) -> Answer:
    """How many jobs match in each state, or are known to."""
    counts, least = await on.services.store.filter_counts.read(_filter_of(body))
    return {**counts, "least": least}


def _filter_of(body: protocol.JobsCount) -> JobFilter:
    return JobFilter(
        topic=body.topic,
        name=body.name,
        schedule=body.schedule,
        error=body.error,
        worker=body.worker,
        older_s=body.older_s,
        newer_s=body.newer_s,
        prefix=None if body.prefix is None else _digits_of(body.prefix),
    )


async def group_errors(on: RequestContext, body: protocol.JobsErrors) -> Answer:
    """The newest dead letters, by what they died of."""
    groups, is_all = await on.services.store.error_groups.read(body.topic, body.rows)
    return {"groups": groups, "is_all": is_all}


async def find_jobs(on: RequestContext, body: protocol.JobsFind) -> Answer:
    """The jobs that each prefix of an id may mean, a few of each."""
    return {"jobs": await on.services.store.prefixes.jobs([_digits_of(one) for one in body.prefixes])}


def _digits_of(prefix: str) -> str:
    digits = hex_digits(prefix)
    if digits is None:
        message = f"prefix is {prefix!r:.60}; 1 to 32 hexadecimal digits are allowed"
        raise BadRequestError(message)
    return digits


async def get_job(on: RequestContext, body: protocol.ById) -> Answer:
    """One job with its history."""
    job = await on.services.store.reads.job(body.id)
    if job is None:
        raise no_such("job", body.id)
    host = on.services.host
    has_relatives = job.pop("is_parent", None) is not None or job.get("waiting_on") is not None
    relatives = await on.services.store.dependencies.of_job(body.id, RELATIVES) if has_relatives else {}
    sent = job.pop("signals", None)
    if sent:
        relatives |= {"signals": await on.services.store.signals.of_job(body.id, RELATIVES), "signals_total": sent}
    return {"job": {**job, **relatives, "hosts": {host.id: host.name}}}


async def graph_of_job(on: RequestContext, body: protocol.ById) -> Answer:
    """The jobs that dependencies link with one, and how."""
    jobs, edges = await on.services.store.dependencies.graph(body.id, GRAPH_JOBS, GRAPH_EDGES)
    if len(jobs) == 1 and jobs[0]["name"] is None:
        raise no_such("job", body.id)
    return {"jobs": jobs, "edges": edges, "is_all": len(jobs) < GRAPH_JOBS and len(edges) < GRAPH_EDGES}


async def list_parents(on: RequestContext, body: protocol.JobsParents) -> Answer:
    """A page of the jobs that one waits for, or has waited for, in the order of their ids."""
    store = on.services.store
    jobs, following = await store.dependencies.parents(body.id, body.limit, body.after)
    if not jobs and body.after is None and await store.reads.job(body.id) is None:
        raise no_such("job", body.id)
    return {"jobs": jobs, "next": following}


async def send_signal(on: RequestContext, body: protocol.JobsSignal) -> Answer:
    """Tell a job something that its handler waits for, or will; the notification of its commit wakes the claims."""
    return {"new": await on.services.store.signals.send(body.id, body.name, body.payload, body.key)}


async def next_signal(on: RequestContext, body: protocol.HandlerSignal) -> Answer:
    """What a handler that waits for a signal has to know to go on, or to give its attempt back."""
    answer = await on.services.store.signals.next(body.id, body.name, body.had)
    if answer is None:
        raise no_such("job", body.id)
    return answer


async def why_job(on: RequestContext, body: protocol.ById) -> Answer:
    """Why a job does not run, the decisive reason first."""
    job = await on.services.store.reads.why(body.id, on.services.host.id)
    if job is None:
        which = uuid.UUID(bytes=body.id)
        message = f"there is no job {which}: it was never submitted here, or has ended and was deleted since"
        raise NotFoundError(message)
    slow = await on.services.findings.snapshot() if job.status in ACTIVE else None
    reasons = explain(job, facts_of(on, job, time.monotonic(), slow))
    return {
        "id": job.id,
        "name": job.name,
        "topic": job.topic,
        "status": job.status,
        "reasons": [dataclasses.asdict(reason) for reason in reasons],
    }


async def cancel_jobs(on: RequestContext, body: protocol.JobsWithDependents) -> Answer:
    """Cancel at once, and stop the handlers that run here; set aside jobs that the database refuses to change."""
    canceled, aside = list[Canceled](), set[bytes]()
    dependents = await on.services.store.dependents(body.ids, DEPENDENTS + 1) if body.with_dependents else []
    _check_number(dependents)

    async def cancel(ids: Sequence[bytes]) -> bool:
        try:
            async with on.acting() as store:
                found = await store.cancel(ids)
                await store.lift([job.id for job in found])
                await _note(store, "jobs.cancel", body, [job.id for job in found])
        except StatementError as error:
            if len(ids) > 1:
                return False
            await on.services.store.cancel([])  # if that is refused, too, the job is not the cause
            async with on.acting() as store:
                if await store.set_aside(ids[0], "cancel_jobs", error):
                    await _note(store, "jobs.set_aside", body, ids, {"sqlstate": error.sqlstate})
                    aside.update(ids)
        else:
            canceled.extend(found)
        return True

    await halve([*body.ids, *dependents], cancel)
    on.services.handout.forget((job.id, job.attempt) for job in canceled if job.worker is not None)
    for job in canceled:
        worker = None if job.worker is None else on.services.registry.get(job.worker)
        if worker is not None:
            worker.link.send("stop", None, {"jobs": [(job.id, job.attempt, "canceled")]})
    if canceled:
        on.services.signal.freed_somewhere()
    return await _done_and_refused(on, body.ids, {job.id for job in canceled}, aside=aside)


def _check_number(dependents: Sequence[bytes]) -> None:
    if len(dependents) > DEPENDENTS:
        message = f"more than {DEPENDENTS} jobs depend on these; up to so many are allowed: name some of them"
        raise BadRequestError(message)


async def retry_jobs(on: RequestContext, body: protocol.JobsWithDependents) -> Answer:
    """
    Retry ended jobs with fresh budgets, but not while their last attempt is still held here.

    Those that wait for them wait for them again, and so do those that were canceled because of them, if that is asked.
    """
    held = await _held_here(on, body.ids)
    async with on.acting() as store:
        named = await store.retry([job for job in body.ids if job not in held])
        retried = await _with_relatives(store, named, with_dependents=body.with_dependents)
        await store.lift(list(retried))
        await _note(store, "jobs.retry", body, list(retried))
    _wake(on, (one.wake for one in retried.values() if one.wake is not None))
    answer = await _done_and_refused(on, body.ids, set(retried), conflicts=held)
    completed = [job for job, one in retried.items() if one.had_completed]
    return {**answer, "completed": completed} if completed else answer


async def _with_relatives(
    store: Acting, named: Mapping[bytes, RestartedJob], *, with_dependents: bool
) -> Mapping[bytes, RestartedJob]:
    """What was retried, with those that were canceled because of it; nothing has to be claimed of what is held."""
    if not any(one.has_relatives for one in named.values()):
        return named
    prevented = await store.prevented([*named], DEPENDENTS + 1) if with_dependents else []
    _check_number(prevented)
    retried = {**named, **(await store.retry(prevented) if prevented else {})}
    waits = await store.wait_again([*retried], prevented)
    return {job: one._replace(wake=None) if waits[job] else one for job, one in retried.items() if job in waits}


async def delete_jobs(on: RequestContext, body: protocol.ByIds) -> Answer:
    """
    Delete jobs that have ended or are set aside, with their history; refused while their last attempt is held here.

    A new job with the same id begins with attempt 1 again: a late report of an old attempt 1 would be taken for
    its result.
    """
    held = await _held_here(on, body.ids)
    async with on.acting() as store:
        gone = await store.delete([job for job in body.ids if job not in held])
        await _note(store, "jobs.delete", body, sorted(gone))
    if gone:
        on.services.signal.freed_somewhere()
    there = await on.services.store.statuses([*held]) if held else {}
    left = {job for job, (status, _) in there.items() if status != Status.RUNNING}
    return await _done_and_refused(on, body.ids, gone, conflicts=left)


async def change_jobs(on: RequestContext, body: protocol.JobsChange) -> Answer:
    """Move waiting jobs to another topic or priority; effective for the next claim of every host."""
    if body.topic is None and body.priority is None:
        message = "neither topic nor priority is given; one of them, or both, is needed"
        raise BadRequestError(message)
    wanted = {key: value for key, value in (("topic", body.topic), ("priority", body.priority)) if value is not None}
    async with on.acting() as store:
        moved = await store.change(body.ids, topic=body.topic, priority=body.priority)
        await _note(store, "jobs.change", body, [job for job, one in moved.items() if one.wake], wanted)
    _wake(on, (one.wake for one in moved.values() if one.wake))
    answer = await _done_and_refused(on, body.ids, set(moved))
    return {**answer, "before": [[job, one.topic, one.priority] for job, one in moved.items() if one.wake]}


def _wake(on: RequestContext, wakes: Iterable[Wake]) -> None:
    """Let the next claims look at each of these levels, from the first due time on."""
    levels: dict[Level | GroupLevel, float] = {}
    now_s = time.time()
    for wake in wakes:
        level = level_of(wake.topic, wake.group_key, wake.priority)
        due_s = now_s if wake.due_s is None else wake.due_s
        levels[level] = min(levels.get(level, due_s), due_s)
    for level, due_s in levels.items():
        on.services.signal.wake_level(level, due_s - now_s if due_s > now_s + SOON_S else 0.0, due_s=due_s)


async def _note(
    store: Acting,
    action: str,
    body: protocol.ByIds,
    done: Sequence[bytes],
    what: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """Write an audit entry with the first of the changed jobs; none if nothing was changed."""
    if not done:
        return
    detail = dict(what)
    if len(done) > 1:
        detail["ids"] = [str(uuid.UUID(bytes=one)) for one in done[:NOTED_IDS]]
    if body.matching is not None:
        detail["matching"] = body.matching
    await store.note(action, job=done[0] if len(done) == 1 else None, jobs=len(done), detail=detail)


async def _held_here(on: RequestContext, ids: Sequence[bytes]) -> set[bytes]:
    """Jobs of which an attempt may still run on this host."""
    last_workers = await on.services.store.reads.last_workers(ids)
    absent = {worker for worker in last_workers.values() if _is_absent(on, worker)}
    return on.services.registry.held_among(ids) | {job for job, worker in last_workers.items() if worker in absent}


def _is_absent(on: RequestContext, worker: str) -> bool:
    """Whether its process lives here without a connection: too busy to reconnect, it may still run its jobs."""
    process = identities.process_of(on.services.host, worker)
    return on.services.registry.get(worker) is None and process is not None and processes.lives(*process)


async def _done_and_refused(
    on: RequestContext,
    ids: Sequence[bytes],
    done: AbstractSet[bytes],
    conflicts: AbstractSet[bytes] = frozenset(),
    aside: AbstractSet[bytes] = frozenset(),
) -> Answer:
    refused = [job for job in dict.fromkeys(ids) if job not in done]
    there = await on.services.store.statuses(refused) if refused else {}

    def code(job: bytes) -> str:
        if job not in there:
            return NotFoundError.code
        if job in aside:
            return SET_ASIDE
        return ConflictError.code if job in conflicts else "invalid_transition"

    answered = [job for job in dict.fromkeys([*ids, *sorted(done)]) if job in done]
    return {"done": answered, "refused": [[job, code(job)] for job in refused]}


async def take_stack(on: RequestContext, body: protocol.ById) -> Answer:
    """The stacks of the handler process that holds a job."""
    holder = on.services.registry.holder_of(body.id)
    if holder is None:
        job = await on.services.store.reads.job(body.id)
        if job is None:
            raise no_such("job", body.id)
        if job["status"] != Status.RUNNING:
            message = f"the job does not run: it is {job['status']}"
            raise ConflictError(message)
        message = "no worker that is connected to this server holds the job: ask the server of the host that runs it"
        raise ConflictError(message)
    worker, attempt = holder
    shown = await on.services.stacks.take(worker, (body.id, attempt))
    if shown is None:
        message = (
            f"worker {worker.facts.name}, pid {worker.facts.pid}, shows no stack: it has no pool parent, or is stopped"
        )
        raise UnavailableError(message)
    return {"worker": worker.identity, "pid": shown.pid, "attempt": attempt, "stack": shown.stack}
