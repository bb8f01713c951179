"""All requests of clients: one function per kind, from the typed body to the answer."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar, cast

import msgspec

from pulse import protocol
from pulse.errors import BadRequestError, NotFoundError
from pulse.ops.doctor import running
from pulse.ops.doctor.finding import Finding, State, bad_of, document_of
from pulse.protocol.answers import Worker, read
from pulse.protocol.bus import HintEvent, TopicGate, hint
from pulse.store.connections.usage import away_s
from pulse.store.operators.policies import OPTIONS, SERVER_OPTIONS, effective
from pulse.store.operators.transaction import Operator
from pulse.system import processes
from pulse_actors.dispatcher.context import Answer, RequestContext
from pulse_actors.dispatcher.monitoring.findings import WAIT_S
from pulse_actors.dispatcher.requests import jobs, limits, schedules
from pulse_actors.dispatcher.workers.health import condition_of, quiet_s
from pulse_actors.dispatcher.workers.records import RegisteredWorker
from pulse_actors.runtime.actor import database_status

SUPERVISOR_ANSWER_S: Final = 1.0

B = TypeVar("B", bound=msgspec.Struct)


async def pause_dispatch(on: RequestContext, body: protocol.DispatchGate) -> Answer:
    """Pause a topic; exact from the next claim on, on every host, since claims read the gate."""
    if body.until is not None:
        if body.for_s is not None:
            message = "until and for_s are both given; one of them is allowed"
            raise BadRequestError(message)
        if body.until * 1e6 <= await on.services.store.reads.now_us():
            message = f"until is {body.until:.0f} (Unix seconds); a time in the future is allowed"
            raise BadRequestError(message)
    ends = {"reason": body.reason, "until": body.until, "for_s": body.for_s}
    async with on.acting() as store:
        await store.gate.pause(body.topic, body.reason, who=_who(on.operator), until_s=body.until, for_s=body.for_s)
        await store.note("dispatch.pause", topic=body.topic, detail=_given(ends))
    await on.services.bus.hint(hint("pause", HintEvent.GATE_CHANGED, TopicGate(body.topic)))
    return await on.services.store.gate.get()


async def resume_dispatch(on: RequestContext, body: protocol.DispatchGate) -> Answer:
    """Resume a topic; resuming one that is not paused is no error."""
    async with on.acting() as store:
        if await store.gate.resume(body.topic):
            await store.note("dispatch.resume", topic=body.topic)
    on.services.signal.wake()
    await on.services.bus.hint(hint("pause", HintEvent.GATE_CHANGED, TopicGate(body.topic)))
    return await on.services.store.gate.get()


def _given(values: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in values.items() if value is not None}


def _who(operator: Operator) -> str | None:
    if operator.uid is None:
        return operator.user
    who = f"uid {operator.uid}" if operator.user is None else f"uid {operator.uid} ({operator.user})"
    return who if operator.behalf is None else f"{who} for {operator.behalf}"


async def dispatch_status(on: RequestContext, _body: protocol.NoBody) -> Answer:
    """What is paused."""
    return await on.services.store.gate.get()


async def list_topics(on: RequestContext, body: protocol.TopicsList) -> Answer:
    """A page of policies, in the order of the topics."""
    topics, following = await on.services.store.topics.page(body.limit, body.after)
    return {"topics": topics, "next": following}


async def get_topic(on: RequestContext, body: protocol.TopicGet) -> Answer:
    """The policy of one topic: each value in force, and where it is set."""
    return {"topic": await _topic(on, body.topic)}


async def topic_groups(on: RequestContext, body: protocol.TopicGroups) -> Answer:
    """What waits in the groups of a topic."""
    groups, is_all = await on.services.store.limit_reads.groups(body.topic, body.limit)
    rows = [{**one._asdict(), "full": one.is_full} for one in groups]
    return {"groups": rows, "is_all": is_all}


async def set_topic(on: RequestContext, body: protocol.TopicSet) -> Answer:
    """Set options; effective here at once, on other hosts when the notification arrives."""
    lease_s, least_s = body.policy.get("lease_s"), on.services.server.policy.get("lease_s")
    if isinstance(lease_s, int | float) and isinstance(least_s, float) and 0 < lease_s < least_s:
        message = (
            f'lease_s of topic "{body.topic}" is {lease_s:g}; at least the server\'s own, {least_s:g} s, is allowed'
        )
        raise BadRequestError(message)
    return await _change_topic(on, body.topic, body.policy)


async def take_ends(on: RequestContext, body: protocol.OutboxTake) -> Answer:
    """Ends of jobs for a publisher, who has them in hand for a while."""
    return {"ends": await on.services.store.outbox.take(body.limit, body.lease_s, body.result_bytes)}


async def forget_ends(on: RequestContext, body: protocol.OutboxDone) -> Answer:
    """A broker has these."""
    return {"gone": await on.services.store.outbox.forget(body.ends)}


async def unset_topic(on: RequestContext, body: protocol.TopicUnset) -> Answer:
    """Unset options, by their names, or all of them."""
    allowed = OPTIONS if body.topic else SERVER_OPTIONS
    return await _change_topic(on, body.topic, dict.fromkeys(body.options or allowed))


async def _change_topic(on: RequestContext, topic: str, policy: Mapping[str, object]) -> Answer:
    async with on.acting() as store:
        await store.topics.set(topic, policy)  # the SQL function writes the audit entry
    await on.services.policies_changed()
    return {"topic": await _topic(on, topic)}


async def _topic(on: RequestContext, topic: str) -> Answer:
    own, server = await on.services.store.topics.get(topic)
    of_server = {**server, **on.services.server.policy}
    handlers = await on.services.store.topics.handlers(topic) if topic else []
    retention = await on.services.store.audit.retention()
    return {"topic": topic, "policy": effective(own, of_server), "handlers": handlers, "retention": retention}


async def list_actions(on: RequestContext, body: protocol.AuditList) -> Answer:
    """A page of the audit, newest first."""
    rows, following = await on.services.store.audit.page(
        body.limit, body.after, action=body.action, topic=body.topic, since_s=body.since_s
    )
    return {"audit": rows, "next": following}


async def list_workers(on: RequestContext, _body: protocol.NoBody) -> Answer:
    """Handler processes that are connected here."""
    return {"workers": workers(on)}


async def drain_worker(on: RequestContext, body: protocol.WorkerRequest) -> Answer:
    """Let a handler process finish what it runs, and end; its pool starts a new one."""
    worker = on.services.registry.get(body.worker)
    if worker is None or not (worker.facts.topics or worker.facts.names):
        raise NotFoundError(f"no worker {body.worker!r:.300} is connected here")
    async with on.acting() as store:
        await store.note("workers.drain", detail={"worker": worker.facts.name, "pid": worker.facts.pid})
    worker.drain(reconnect=False, replace=True)  # else a pool would shrink, unnoticed, until it is restarted
    return {}


def workers(on: RequestContext) -> list[Answer]:
    """Every connected handler process, without pool parents, which hold no jobs."""
    now_s = time.monotonic()
    return [
        _worker(on, worker, now_s)
        for worker in on.services.registry.workers()
        if worker.facts.topics or worker.facts.names
    ]


def _worker(on: RequestContext, worker: RegisteredWorker, now_s: float) -> Answer:
    used = processes.facts(worker.facts.pid) if worker.watched else None
    return {
        "identity": worker.identity,
        "name": worker.facts.name,
        "pid": worker.facts.pid,
        "host": worker.facts.source or on.services.host.name,
        "topics": list(worker.facts.topics),
        "names": sorted(worker.facts.names),
        "capacity": worker.capacity,
        "concurrency": worker.facts.concurrency,
        "running": [identity for identity, _ in worker.held],
        "started": sum(held.started for held in worker.held.values()),
        "taken": worker.taken,
        "draining": worker.is_draining,
        "silent": worker.contact.silent,
        "condition": condition_of(worker, now_s, on.services.server.heartbeat_s),
        "quiet_s": quiet_s(worker, now_s),
        "calls": dict(Counter(held.name for held in worker.held.values() if held.started)),
        "recovery": "kernel" if worker.watched else "lease",
        "cpu_s": None if used is None else used.cpu_s,
        "rss_bytes": None if used is None else used.rss_bytes,
        "uptime_s": None if used is None else used.uptime_s,
    }


async def stats(on: RequestContext, body: protocol.StatsRequest) -> Answer:
    """Depths, rates and latencies; also while the database is away."""
    answer = await on.services.stats.answer(body)
    looked = await on.services.findings.current(wait_s=0.0)
    found = {one.check: one.state.value for one in _findings(workers(on), looked)}
    usages = (pool.usage for pool in on.services.store.pools.values())
    is_away = away_s(usages, time.monotonic()) > 0
    return {**answer, "findings": found | ({"database": State.WRONG.value} if is_away else {})}


async def status(on: RequestContext, _body: protocol.NoBody) -> Answer:
    """Everything at a glance; the supervisor's part comes over the bus."""
    of_supervisor = await on.services.bus.ask_status(SUPERVISOR_ANSWER_S) or {}
    database = await database_status(on.services.store)
    counts, exact, gate, waiting, limits = None, None, None, None, None
    if database["ok"]:
        waiting = await on.services.stats.waiting()
        limits = on.services.stats.full_limits()
        counts, exact = await on.services.store.reads.counts()
        gate = await on.services.store.gate.get()
    looked = await on.services.findings.current(WAIT_S if database["ok"] else 0.0)
    connected = workers(on)
    return {
        "supervisor": of_supervisor.get("supervisor"),
        "actors": of_supervisor.get("actors"),
        "pools": of_supervisor.get("pools"),
        "services": of_supervisor.get("services"),
        "database": database,
        "gate": gate,
        "workers": connected,
        "jobs": counts,
        "jobs_exact": exact,
        "waiting": waiting,
        "limits": limits,
        "findings": list(map(document_of, _findings(connected, looked))),
    }


def _findings(connected: Sequence[Answer], looked: Sequence[Finding]) -> list[Finding]:
    """What is wrong, and the warnings; the supervisor's part is left to those who ask."""
    return bad_of([running.workers([read(Worker, row) for row in connected], processes.age_s()), *looked])


async def ping(_on: RequestContext, _body: protocol.NoBody) -> Answer:
    """Nothing; the answer itself proves that the server works."""
    return {}


Handler: TypeAlias = Callable[[RequestContext, msgspec.Struct], Awaitable[Answer]]


def _handler(function: Callable[[RequestContext, B], Awaitable[Answer]]) -> Handler:
    return cast("Handler", function)  # the body is decoded as the type that protocol.CLIENT_KINDS names for the kind


# `submit` is not here: it goes through the group commit.
REQUESTS: Final[Mapping[str, Handler]] = {
    "jobs.list": _handler(jobs.list_jobs),
    "jobs.count": _handler(jobs.count_jobs),
    "jobs.errors": _handler(jobs.group_errors),
    "jobs.find": _handler(jobs.find_jobs),
    "jobs.get": _handler(jobs.get_job),
    "jobs.parents": _handler(jobs.list_parents),
    "jobs.why": _handler(jobs.why_job),
    "jobs.graph": _handler(jobs.graph_of_job),
    "jobs.cancel": _handler(jobs.cancel_jobs),
    "jobs.retry": _handler(jobs.retry_jobs),
    "jobs.delete": _handler(jobs.delete_jobs),
    "jobs.change": _handler(jobs.change_jobs),
    "jobs.stack": _handler(jobs.take_stack),
    "jobs.signal": _handler(jobs.send_signal),
    "handler.parents": _handler(jobs.list_parents),
    "handler.signal": _handler(jobs.next_signal),
    "schedules.list": _handler(schedules.list_schedules),
    "schedules.find": _handler(schedules.find_schedules),
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
    "topics.groups": _handler(topic_groups),
    "topics.set": _handler(set_topic),
    "topics.unset": _handler(unset_topic),
    "outbox.take": _handler(take_ends),
    "outbox.done": _handler(forget_ends),
    "limits.list": _handler(limits.list_limits),
    "limits.set": _handler(limits.set_limit),
    "limits.unset": _handler(limits.unset_limit),
    "limits.declare": _handler(limits.declare_limits),
    "audit.list": _handler(list_actions),
    "workers.list": _handler(list_workers),
    "workers.drain": _handler(drain_worker),
    "stats": _handler(stats),
    "status": _handler(status),
    "ping": _handler(ping),
}
