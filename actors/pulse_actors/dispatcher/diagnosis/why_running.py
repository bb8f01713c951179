"""Why a RUNNING job does not end: where it is, and what is wrong with that worker. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from pulse.common.text import ago, count, duration
from pulse.store.reading.jobs import StoredFacts
from pulse_actors.dispatcher.claims.handout import ISOLATE_AT_CRASHES
from pulse_actors.dispatcher.diagnosis.reasons import Cause, Holder, JobFacts, job_id, moment
from pulse_actors.dispatcher.workers.health import Condition
from pulse_actors.shared import identity as identities

UNSEEN_S: Final = 60.0  # a watchdog notes its host every few seconds; as the doctor's
_SHOWN: Final = 5


def running(job: StoredFacts, facts: JobFacts) -> Cause:
    """Where it runs."""
    named = identities.parse(job.locked_by or "")
    details: dict[str, object] = {"worker": job.locked_by, "attempt": job.attempts}
    details |= {"started_at": job.started_at, "lease_until": job.lease_until}
    started = "" if job.started_at is None else f", claimed {moment(job.started_at, job.now)}"
    who = f'worker "{named.name}", pid {named.pid}' if named else f'worker "{job.locked_by}"'
    if named is not None and named.host != facts.host:
        return _elsewhere(job, f"{who} of another host, {named.host}{started}", {**details, "host": named.host})
    holder = facts.holder
    if holder is None:
        advice = "Once its lease has ended, or its process is known to be dead, it is tried again by itself."
        text = f"Attempt {job.attempts} is at {who}{started}; this server does not know it. {_lease(job)}"
        return Cause("running", text, advice, details=details)
    details |= {"heard_ago_s": holder.heard_ago_s, "condition": holder.condition.value, "quiet_s": holder.quiet_s}
    return _here(job, who + started, 0 if named is None else named.pid, holder, details)


def _here(job: StoredFacts, where: str, pid: int, holder: Holder, details: Mapping[str, object]) -> Cause:
    """On a worker that this server knows."""
    heard = "not heard of yet" if holder.heard_ago_s is None else f"heard of {duration(holder.heard_ago_s)} ago"
    if holder.condition is Condition.STOPPED:
        text = (
            f"Attempt {job.attempts} is at {where}; that process is stopped (SIGSTOP), {heard}. "
            f"{_patience(job, holder)}"
        )
        advice = f"kill -CONT {pid} lets it go on."
        return Cause("silent", text, advice, details=details)
    if holder.condition is Condition.SILENT or not holder.is_connected:
        how = "silent" if holder.condition is Condition.SILENT else "not connected"
        advice = "It is given time, then it is killed, and the job is tried again by itself: pulse ctl workers"
        text = f"Attempt {job.attempts} is at {where}; that is {how}, {heard}. {_patience(job, holder)}"
        return Cause("silent", text, advice, details=details)
    if holder.condition is Condition.BLOCKED:
        return _blocked(job, where, pid, holder, details)
    if holder.started is False:
        return _assigned(job, f"{where}, {heard}", holder, details)
    text = f"It runs: attempt {job.attempts} is at {where}, {heard}.{_limits(holder)}"
    return Cause("running", text, f"Where it is now: pulse ctl jobs stack {job_id(job.id)}", details=details)


def _elsewhere(job: StoredFacts, where: str, details: Mapping[str, object]) -> Cause:
    """On a worker of another host, of which only the lease and its last sign of life are known."""
    seen_at = job.host_seen_at
    details = {**details, "host_seen_at": seen_at}
    seen = "never" if seen_at is None else ago(seen_at, job.now)
    if seen_at is None or job.now - seen_at >= UNSEEN_S:
        text = f"Attempt {job.attempts} is at {where}. That host is gone: it was last seen {seen}. {_lease(job)}"
        advice = "Is that machine up? Start its supervisor. When the lease has ended the job is tried again by itself."
        return Cause("host_gone", text, advice, details=details)
    text = f"It runs: attempt {job.attempts} is at {where}. {_lease(job)}"
    return Cause("running", text, f"That host was last seen {seen}; ask its server for more.", details=details)


def _blocked(job: StoredFacts, where: str, pid: int, holder: Holder, details: Mapping[str, object]) -> Cause:
    """Its worker cannot answer: this handler, or another one there, blocks it."""
    called = Counter(holder.calls).most_common(_SHOWN)
    names = ", ".join(f"{number} {name or '(not known yet)'}" for name, number in called) or "nothing"
    text = (
        f"Attempt {job.attempts} is at {where}; that process is at work, but has not answered for "
        f"{duration(holder.quiet_s)}: a handler there blocks the event loop, or holds the interpreter. "
        f"Called there: {names}.{_limits(holder)}"
    )
    advice = (
        f"Where it hangs: pulse ctl jobs stack {job_id(job.id)}; if it never lets go: pulse ctl jobs cancel "
        f"{job_id(job.id)}, then kill -9 {pid}"
    )
    return Cause("blocked", text, advice, details={**details, "calls": dict(called)})


def _limits(holder: Holder) -> str:
    """The limits that would end it if it hung."""
    progress = (
        "has told no progress"
        if holder.progress_ago_s is None
        else f"told progress {duration(holder.progress_ago_s)} ago"
    )
    limits = [f"timeout_s {holder.timeout_s:g}"] if holder.timeout_s is not None else []
    limits += [f"stall_s {holder.stall_s:g}"] if holder.stall_s is not None else []
    if limits:
        return f" It is ended by {' and '.join(limits)}; it {progress}."
    return f" No limit ends it if it hangs, neither timeout_s nor stall_s; it {progress}."


def _assigned(job: StoredFacts, who: str, holder: Holder, details: Mapping[str, object]) -> Cause:
    details = {**details, "waiting": holder.waiting, "crashes": job.crashes}
    if job.crashes >= ISOLATE_AT_CRASHES:
        text = (
            f"It was there when {job.crashes} workers died, so it is to run alone, in a process of its own. "
            f"It waits for that at {who}."
        )
        return Cause("isolating", text, f"Its crashes: pulse ctl jobs get {job_id(job.id)}", details=details)
    others = f" It holds {count(holder.waiting, 'other')} that wait, too." if holder.waiting else ""
    text = f"It was handed out, and its handler was not called yet: it waits at {who}.{others}"
    return Cause("assigned", text, f"What that worker does now: pulse ctl jobs stack {job_id(job.id)}", details=details)


def _patience(job: StoredFacts, holder: Holder) -> str:
    """How long this goes on. The lease is no answer where the server renews it until it has killed the worker."""
    if holder.left_s is None:
        return _lease(job)
    return f"If it stays so, it is killed in {duration(holder.left_s)}, and the job is tried again by itself."


def _lease(job: StoredFacts) -> str:
    if job.lease_until is None:
        return ""
    return f"Its lease {'ended' if job.lease_until <= job.now else 'ends'} {ago(job.lease_until, job.now)}."
