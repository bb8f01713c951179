"""What clients ask for: one function per kind of request, from its typed body to the answer."""

from __future__ import annotations

import dataclasses
import pwd
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, TypeAlias, TypeVar, cast

import msgspec

from pulse import procs, protocol
from pulse.errors import BadRequestError, ConflictError, NotFoundError, UnavailableError
from pulse.store.reads import STATUSES
from pulse.store.rows import Level
from pulse.store.topics import OPTIONS, SERVER_OPTIONS, effective
from pulse_actors import identity as identities
from pulse_actors.bus import Hint
from pulse_actors.dispatcher import schedules
from pulse_actors.dispatcher.desk import Desk, Worker
from pulse_actors.dispatcher.desktop import Answer, Desktop, no_such
from pulse_actors.dispatcher.known import known_of
from pulse_actors.dispatcher.why import explain
from pulse_actors.runtime import database_status

SUPERVISOR_ANSWER_S: Final = 1.0

B = TypeVar("B", bound=msgspec.Struct)


async def list_jobs(on: Desktop, body: protocol.JobsList) -> Answer:
    """A page of jobs, newest first."""
    statuses = [body.status] if isinstance(body.status, str) else body.status
    for status in statuses or ():
        if status not in STATUSES:
            message = f"status is {status!r:.60}; allowed are {', '.join(STATUSES)}"
            raise BadRequestError(message)
    jobs, following = await on.store.reads.jobs(
        statuses=statuses or None,
        topic=body.topic,
        name=body.name,
        schedule=body.schedule,
        limit=body.limit,
        after=body.after,
    )
    return {"jobs": jobs, "next": following}


async def get_job(on: Desktop, body: protocol.ById) -> Answer:
    """One job with its history."""
    job = await on.store.reads.job(body.id)
    if job is None:
        raise no_such("job", body.id)
    return {"job": job}


async def why_job(on: Desktop, body: protocol.ById) -> Answer:
    """What keeps a job from running, the decisive reason first."""
    job = await on.store.reads.why(body.id, on.host.id)
    if job is None:
        which = uuid.UUID(bytes=body.id)
        message = f"there is no job {which}: it was never submitted here, or has ended and was deleted since"
        raise NotFoundError(message)
    reasons = explain(job, known_of(on, job, time.monotonic()))
    return {
        "id": job.id,
        "name": job.name,
        "topic": job.topic,
        "status": job.status,
        "reasons": [dataclasses.asdict(reason) for reason in reasons],
    }


async def cancel_jobs(on: Desktop, body: protocol.ByIds) -> Answer:
    """Cancel at once, and stop the handlers that run here."""
    canceled = await on.store.cancel(body.ids)
    on.claims.forget((job.id, job.attempt) for job in canceled if job.worker is not None)
    for job in canceled:
        worker = None if job.worker is None else on.desk.get(job.worker)
        if worker is not None:
            worker.link.send("stop", None, {"jobs": [(job.id, job.attempt, "canceled")]})
    return await _done_and_refused(on, body.ids, {job.id for job in canceled})


async def retry_jobs(on: Desktop, body: protocol.ByIds) -> Answer:
    """Give terminal jobs fresh budgets, but not while their last attempt is still held here."""
    last_workers = await on.store.reads.last_workers(body.ids)
    absent = {worker for worker in last_workers.values() if _is_absent(on, worker)}
    held = on.desk.held_among(body.ids) | {job for job, worker in last_workers.items() if worker in absent}
    retried = await on.store.retry([job for job in body.ids if job not in held])
    for wake in retried.values():
        on.claims.wake_level(Level(wake.topic, wake.priority), due_s=wake.due_s)
    return await _done_and_refused(on, body.ids, set(retried), conflicts=held)


def _is_absent(on: Desktop, worker: str) -> bool:
    """Whether its process lives here but is not connected: too busy to come back, it may be running its jobs yet."""
    process = identities.process_of(on.host, worker)
    return on.desk.get(worker) is None and process is not None and procs.lives(*process)


async def _done_and_refused(
    on: Desktop, ids: Sequence[bytes], done: AbstractSet[bytes], conflicts: AbstractSet[bytes] = frozenset()
) -> Answer:
    refused = [job for job in dict.fromkeys(ids) if job not in done]
    there = await on.store.statuses(refused) if refused else {}

    def code(job: bytes) -> str:
        if job not in there:
            return NotFoundError.code
        return ConflictError.code if job in conflicts else "invalid_transition"

    answered = [job for job in dict.fromkeys(ids) if job in done]
    return {"done": answered, "refused": [[job, code(job)] for job in refused]}


async def take_stack(on: Desktop, body: protocol.ById) -> Answer:
    """Where the handler process that holds a job is now."""
    holder = on.desk.holder_of(body.id)
    if holder is None:
        if await on.store.reads.job(body.id) is None:
            raise no_such("job", body.id)
        message = "no worker that is connected to this server holds the job: only where a job runs can be told"
        raise ConflictError(message)
    worker, attempt = holder
    shown = await on.stacks.take(worker, (body.id, attempt))
    if shown is None:
        message = f"worker {worker.name}, pid {worker.pid}, shows no stack: it has no pool parent, or is stopped"
        raise UnavailableError(message)
    return {"worker": worker.identity, "pid": shown.pid, "attempt": attempt, "stack": shown.stack}


async def pause_dispatch(on: Desktop, body: protocol.DispatchGate) -> Answer:
    """Close the gate; exact from the next claim on, on every host, since the claim itself looks at it."""
    if body.until is not None:
        if body.for_s is not None:
            message = "until and for_s are both given; one of them is allowed"
            raise BadRequestError(message)
        if body.until * 1e6 <= await on.store.reads.now_us():
            message = f"until is {body.until:.0f} (Unix seconds); a time in the future is allowed"
            raise BadRequestError(message)
    who = None if on.uid is None else _who(on.uid)
    await on.store.gate.pause(body.topic, body.reason, who=who, until_s=body.until, for_s=body.for_s)
    await on.bus.hint(Hint("pause", "gate changed", {"topic": body.topic}))
    return await on.store.gate.get()


async def resume_dispatch(on: Desktop, body: protocol.DispatchGate) -> Answer:
    """Open the gate; opening an open one is no error."""
    await on.store.gate.resume(body.topic)
    on.claims.wake()
    await on.bus.hint(Hint("pause", "gate changed", {"topic": body.topic}))
    return await on.store.gate.get()


async def dispatch_status(on: Desktop, _body: protocol.Nothing) -> Answer:
    """The gate."""
    return await on.store.gate.get()


def _who(uid: int) -> str:
    try:
        return f"uid {uid} ({pwd.getpwuid(uid).pw_name})"
    except KeyError:
        return f"uid {uid}"


async def list_topics(on: Desktop, body: protocol.TopicsList) -> Answer:
    """A page of what is set, in the order of the topics."""
    topics, following = await on.store.topics.page(body.limit, body.after)
    return {"topics": topics, "next": following}


async def get_topic(on: Desktop, body: protocol.TopicGet) -> Answer:
    """The policy of one topic: each value that counts, and whose it is."""
    return {"topic": await _topic(on, body.topic)}


async def set_topic(on: Desktop, body: protocol.TopicSet) -> Answer:
    """Set options; effective here at once, and on other hosts as soon as they have heard."""
    lease_s, least_s = body.policy.get("lease_s"), on.server_policy.get("lease_s")
    if isinstance(lease_s, int | float) and isinstance(least_s, float) and 0 < lease_s < least_s:
        message = (
            f'lease_s of topic "{body.topic}" is {lease_s:g}; at least the server\'s own, {least_s:g} s, is allowed'
        )
        raise BadRequestError(message)
    return await _change_topic(on, body.topic, body.policy)


async def unset_topic(on: Desktop, body: protocol.TopicUnset) -> Answer:
    """Unset options, by their names, or all of them."""
    allowed = OPTIONS if body.topic else SERVER_OPTIONS
    return await _change_topic(on, body.topic, dict.fromkeys(body.options or allowed))


async def _change_topic(on: Desktop, topic: str, policy: Mapping[str, object]) -> Answer:
    await on.store.topics.set(topic, policy)
    await on.read_policies()
    on.claims.wake()  # its order may be another one
    await on.bus.hint(Hint("pause", "policies changed"))
    return {"topic": await _topic(on, topic)}


async def _topic(on: Desktop, topic: str) -> Answer:
    own, server = await on.store.topics.get(topic)
    of_server = {**server, **on.server_policy}
    handlers = await on.store.topics.handlers(topic) if topic else []
    return {"topic": topic, "policy": effective(own, of_server), "handlers": handlers}


async def list_workers(on: Desktop, _body: protocol.Nothing) -> Answer:
    """Handler processes that are connected here."""
    return {"workers": workers(on.desk)}


def workers(desk: Desk) -> list[Answer]:
    """Every connected handler process; pool parents hold no jobs and are left out."""
    return [_worker(worker) for worker in desk.workers() if worker.topics or worker.names]


def _worker(worker: Worker) -> Answer:
    return {
        "identity": worker.identity,
        "name": worker.name,
        "pid": worker.pid,
        "host": socket.gethostname(),
        "topics": list(worker.topics),
        "names": sorted(worker.names),
        "capacity": worker.capacity,
        "running": [identity for identity, _ in worker.held],
        "started": sum(held.started for held in worker.held.values()),
        "draining": worker.draining,
        "silent": worker.silent,
        "recovery": "kernel" if worker.watched else "lease",
    }


async def stats(on: Desktop, body: protocol.Stats) -> Answer:
    """Depths, rates and latencies; also while the database is away."""
    return await on.stats.answer(body)


async def status(on: Desktop, _body: protocol.Nothing) -> Answer:
    """Everything at a glance; the supervisor's part comes over the bus."""
    of_supervisor = await on.bus.ask_status(SUPERVISOR_ANSWER_S) or {}
    database = await database_status(on.store)
    counts, exact, gate = None, None, None
    if database["ok"]:
        counts, exact = await on.store.reads.counts()
        gate = await on.store.gate.get()
    return {
        "supervisor": of_supervisor.get("supervisor"),
        "actors": of_supervisor.get("actors"),
        "pools": of_supervisor.get("pools"),
        "services": of_supervisor.get("services"),
        "database": database,
        "gate": gate,
        "workers": workers(on.desk),
        "jobs": counts,
        "jobs_exact": exact,
    }


async def ping(_on: Desktop, _body: protocol.Nothing) -> Answer:
    """Nothing; that it comes back is the answer."""
    return {}


Handler: TypeAlias = Callable[[Desktop, msgspec.Struct], Awaitable[Answer]]


def _handler(function: Callable[[Desktop, B], Awaitable[Answer]]) -> Handler:
    return cast("Handler", function)  # the body is decoded as the type that protocol.CLIENT_KINDS names for the kind


# `submit` is not here: it goes through the group commit.
REQUESTS: Final[Mapping[str, Handler]] = {
    "jobs.list": _handler(list_jobs),
    "jobs.get": _handler(get_job),
    "jobs.why": _handler(why_job),
    "jobs.cancel": _handler(cancel_jobs),
    "jobs.retry": _handler(retry_jobs),
    "jobs.stack": _handler(take_stack),
    "schedules.list": _handler(schedules.list_schedules),
    "schedules.get": _handler(schedules.get_schedule),
    "schedules.create": _handler(schedules.create_schedule),
    "schedules.update": _handler(schedules.update_schedule),
    "schedules.delete": _handler(schedules.delete_schedule),
    "schedules.pause": _handler(schedules.pause_schedule),
    "schedules.resume": _handler(schedules.resume_schedule),
    "schedules.trigger": _handler(schedules.trigger_schedule),
    "schedules.preview": _handler(schedules.preview_schedule),
    "schedules.declare": _handler(schedules.declare_schedules),
    "dispatch.pause": _handler(pause_dispatch),
    "dispatch.resume": _handler(resume_dispatch),
    "dispatch.status": _handler(dispatch_status),
    "topics.list": _handler(list_topics),
    "topics.get": _handler(get_topic),
    "topics.set": _handler(set_topic),
    "topics.unset": _handler(unset_topic),
    "workers.list": _handler(list_workers),
    "stats": _handler(stats),
    "status": _handler(status),
    "ping": _handler(ping),
}
