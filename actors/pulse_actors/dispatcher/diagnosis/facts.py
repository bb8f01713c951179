"""What the dispatcher knows of one job: which worker has it, and which could run it."""

from __future__ import annotations

from typing import Final

from pulse.ops.doctor.finding import Finding
from pulse.store.reading.jobs import StoredFacts
from pulse_actors.dispatcher.claims.handout import is_unended
from pulse_actors.dispatcher.context import RequestContext
from pulse_actors.dispatcher.diagnosis.reasons import Candidate, Holder, JobFacts
from pulse_actors.dispatcher.workers.health import Condition, condition_of, lease_of, quiet_s
from pulse_actors.dispatcher.workers.records import BACKLOG_BYTES, HeldJob, RegisteredWorker
from pulse_actors.shared import identity as identities

CALL_S: Final = 0.1  # from the frame that reports a call to the start of its limits


def facts_of(on: RequestContext, job: StoredFacts, now_s: float, slow: Finding | None = None) -> JobFacts:
    """The dispatcher's facts about *job*; *now_s*: monotonic clock; *slow*: what keeps dead rows from being removed."""
    workers = on.services.registry.workers()
    return JobFacts(
        host=on.services.host.id,
        poll_s=on.services.signal.poll_s,
        candidates=tuple(_candidate(on, one, job.name, now_s) for one in workers if job.topic in one.facts.topics),
        topics=sorted({topic for one in workers for topic in one.facts.topics}),
        holder=_holder(on, job, now_s),
        is_stopping=on.services.registry.closed,
        is_unreadable=on.services.quarantine.is_quarantined(job.topic, now_s),
        earlier=_earlier(on, job),
        is_ageing=job.topic in on.services.registry.policies.ageing_s,
        slow=None if slow is None else _slow(slow),
    )


def _candidate(on: RequestContext, worker: RegisteredWorker, name: str, now_s: float) -> Candidate:
    is_stopped = condition_of(worker, now_s, on.services.server.heartbeat_s) is Condition.STOPPED
    return Candidate(
        worker.facts.name,
        worker.facts.names,
        name in worker.facts.names,
        capacity=worker.capacity,
        places=worker.places,
        held=len(worker.held),
        started=sum(one.started for one in worker.held.values()),
        calls=tuple(worker.calls),
        stopped="stopped (SIGSTOP)" if is_stopped else stopped_by(worker),
    )


def stopped_by(worker: RegisteredWorker) -> str | None:
    """Why *worker* gets no more jobs, even if it has room; None: it does."""
    if worker.contact.silent:
        return "silent"
    if worker.closing:
        return "with handlers that hang"
    if worker.is_draining:
        return "draining"
    return "not reading what it was sent" if worker.link.backlog_bytes > BACKLOG_BYTES else None


def _holder(on: RequestContext, job: StoredFacts, now_s: float) -> Holder | None:
    worker = None if job.locked_by is None else on.services.registry.find(job.locked_by)
    if worker is None:
        return None
    held = worker.held.get((job.id, job.attempts))
    return Holder(
        heard_ago_s=None if worker.contact.heard_s == float("inf") else max(0.0, now_s - worker.contact.heard_s),
        is_connected=on.services.registry.get(worker.identity) is worker,
        condition=condition_of(worker, now_s, on.services.server.heartbeat_s),
        quiet_s=quiet_s(worker, now_s),
        left_s=_left_s(on, worker, now_s),
        calls=tuple(one.name for one in worker.held.values() if one.started),
        started=None if held is None else held.started,
        waiting=sum(not one.started for pair, one in worker.held.items() if pair != (job.id, job.attempts)),
        timeout_s=None if held is None else held.timeout_s,
        stall_s=None if held is None else held.stall_s,
        progress_ago_s=None if held is None else _progress_ago_s(held, now_s),
    )


def _left_s(on: RequestContext, worker: RegisteredWorker, now_s: float) -> float | None:
    """How long it may still be silent before it is killed: what this server renews meanwhile does not count."""
    if not worker.watched or worker.contact.beaten_s == float("inf"):
        return None
    lease_s = lease_of(worker, on.services.registry.policies.leases, on.services.server.lease_s)
    return max(0.0, worker.contact.beaten_s + lease_s - now_s)


def _progress_ago_s(held: HeldJob, now_s: float) -> float | None:
    """When it last reported progress; stall_s counts from its call, which is no progress."""
    return max(0.0, now_s - held.progress_s) if held.progress_s > held.since_s + CALL_S else None


def _slow(found: Finding) -> tuple[str, str]:
    more = f" (and {len(found.details)} more)" if found.details else ""
    text = (
        f"The database is held back, which stops no job but slows all of them down: {found.text}{more}. "
        "While that is so, no dead row can be removed."
    )
    return text, f"If nobody needs it: {found.advice[-1]}"


def _earlier(on: RequestContext, job: StoredFacts) -> str | None:
    """The worker that may run an earlier attempt: as long as it does, claims give the job back."""
    if job.status == "RUNNING":
        return None
    if on.services.registry.running_in_hand([job.id]):
        holder = on.services.registry.holder_of(job.id)
        return _name(job.worker) if holder is None else holder[0].facts.name
    if (
        job.worker is None
        or not is_unended(job.outcome, job.attempt_error)
        or on.services.registry.get(job.worker) is not None
    ):
        return None
    return _name(job.worker) if identities.is_in_hand(on.services.host, job.worker) else None


def _name(identity: str | None) -> str:
    named = identities.parse(identity or "")
    return (identity or "?") if named is None else named.name
