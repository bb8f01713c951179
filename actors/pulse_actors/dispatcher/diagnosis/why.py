"""
Why a job does not run, in plain words, from the facts of the database and this dispatcher. Pure: no IO, no clock.

The decisive reason comes first, then all others that apply, since the next one decides when the first is gone. A mere
consequence of another reason (a job that is looked at again later, because no worker could take it) comes last.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from pulse.common.text import ago, count, cut, duration, shell_word, similar_names
from pulse.job import is_endless, keeps_unique_key
from pulse.store.reading.jobs import StoredFacts
from pulse_actors.dispatcher.claims.handout import ISOLATE_AT_CRASHES
from pulse_actors.dispatcher.claims.quarantine import LONGEST_S
from pulse_actors.dispatcher.diagnosis import why_limits
from pulse_actors.dispatcher.diagnosis.reasons import Cause, JobFacts, job_id, moment, short, short_error
from pulse_actors.dispatcher.diagnosis.why_running import running
from pulse_actors.shared import identity as identities

ENDED: Final = {"COMPLETED": "completed", "DEAD_LETTERED": "became a dead letter", "CANCELED": "was canceled"}
ACTIVE: Final = frozenset({"PENDING", "RETRYING", "RUNNING"})
LONG_DUE_S: Final = 10.0  # a job without a reason to wait should have been claimed twenty times by then
_SHOWN: Final = 5  # names in a sentence
_DETAILED: Final = 50  # in the details
_NAME_COLUMNS: Final = 200

Rule: TypeAlias = Callable[[StoredFacts, JobFacts], Cause | None]


def explain(job: StoredFacts, facts: JobFacts) -> list[Cause]:
    """Why *job* does not run: at least one reason, the decisive one first."""
    if job.status in ENDED:
        return [_ended(job)]
    if job.aside_since is not None:
        return [_set_aside(job, job.aside_since)]
    if job.status == "RUNNING":
        return [running(job, facts)]
    if job.expires_at is not None and job.expires_at <= (
        job.now if job.held or job.waiting_on else max(job.now, job.next_run_at)
    ):
        return [_expires_first(job, job.expires_at)]
    rules = DUE if job.is_due or (job.was_given_back and not job.held) else NOT_DUE
    found = [reason for rule in rules if (reason := rule(job, facts)) is not None] or [_ready(job, facts)]
    return [*found, *_unique(job), *_slow(facts)]


def _ended(job: StoredFacts) -> Cause:
    at = "" if job.completed_at is None else f" at {moment(job.completed_at, job.now)}"
    error = f": {short_error(job.last_error)}" if job.last_error and job.status == "DEAD_LETTERED" else "."
    details = {"completed_at": job.completed_at, "last_error": job.last_error, "crashes": job.crashes}
    text = f"It does not run any more: it {ENDED[job.status]}{at}{error}"
    if job.outcome == "crashed" and job.status == "DEAD_LETTERED":
        text += f". It has killed {count(job.crashes, 'worker')}, which is all that it may (max_crashes)."
    again = "" if job.status == "COMPLETED" else f"; to run it again: pulse ctl jobs retry {job_id(job.id)}"
    return Cause("ended", text, f"Its attempts: pulse ctl jobs get {job_id(job.id)}{again}", details=details)


def _set_aside(job: StoredFacts, since: float) -> Cause:
    details = {
        "since": since,
        "sqlstate": job.aside_sqlstate,
        "statement": job.aside_statement,
        "error": job.aside_error,
        "for_good": job.aside_for_good,
    }
    refusal = f"{job.aside_statement}: {short(job.aside_error or '')} (SQLSTATE {job.aside_sqlstate})"
    text = f"It is set aside since {moment(since, job.now)}: the database refuses {refusal}."
    again = "" if job.aside_for_good else " It is tried again by itself."
    advice = f"Repair what the error names; to give it up, whatever it has: pulse ctl jobs delete {job_id(job.id)}"
    return Cause("set_aside", text + again, advice, details=details)


def _expires_first(job: StoredFacts, expires_at: float) -> Cause:
    details = {"expires_at": expires_at, "next_run_at": job.next_run_at}
    when = moment(expires_at, job.now)
    if expires_at <= job.now:
        text = f"It expired {when}: it is not started any more, and a dead letter within seconds."
    else:
        text = f"It never will: it expires {when}, and is due only after that."
    return Cause(
        "expired",
        text,
        f"To run it all the same, once it is one: pulse ctl jobs retry {job_id(job.id)}",
        details=details,
    )


def _held(job: StoredFacts, _facts: JobFacts) -> Cause | None:
    if not job.held:
        return None
    wait = "waits" if job.held_before == 1 else "wait"
    before = f" {count(job.held_before, 'job')} of it {wait} before it." if job.held_before else ""
    details = {
        "last_job_id": job.last_job_id,
        "last_job_status": job.last_job_status,
        "held_before": job.held_before,
    }
    if job.last_job_id is None or job.last_job_status not in ACTIVE:
        text = "It was held behind an earlier job of its schedule, which has ended: the next one goes within 2 s."
        return Cause("held", text + before, "", details=details)
    last = job_id(job.last_job_id)
    text = f"It is held until an earlier job of its schedule has ended (overlap queue): {last}, {job.last_job_status}."
    return Cause("held", text + before, f"pulse ctl jobs why {last}", details=details)


def _waits(job: StoredFacts, _facts: JobFacts) -> Cause | None:
    if not job.waiting_on:
        return None
    named = ", ".join(map(job_id, job.waits_for))
    more = ", …" if job.waiting_on > len(job.waits_for) else ""
    text = f"It waits for {count(job.waiting_on, 'other job')} to end: {named}{more}."
    if job.failed:
        text += f" {count(job.failed, 'job')} that it waited for failed; it is to run all the same."
    details = {"waiting_on": job.waiting_on, "waits_for": list(job.waits_for), "failed": job.failed}
    return Cause("waits_for_jobs", text, f"pulse ctl jobs why {job_id(job.waits_for[0])}", details=details)


def _waits_for_signal(job: StoredFacts, _facts: JobFacts) -> Cause | None:
    if not job.waits_for_signal or job.awaited_signal is None:
        return None
    until = None if is_endless(job.next_run_at, job.now) else job.next_run_at
    since = "" if job.ended_at is None else f" since {moment(job.ended_at, job.now)}"
    end = "without a time limit" if until is None else f"until {moment(until, job.now)} at most"
    text = f'Its handler has waited for the signal "{job.awaited_signal}"{since}, {end}.'
    details = {"signal": job.awaited_signal, "since": job.ended_at, "until": until}
    advice = f"To send it: pulse ctl jobs signal {job_id(job.id)} {shell_word(job.awaited_signal)}"
    return Cause("waits_for_signal", text, advice, details=details)


@dataclass(frozen=True, slots=True)
class _PauseState:
    since: float | None
    until: float | None
    who: str | None
    reason: str | None


def _all_paused(job: StoredFacts, _facts: JobFacts) -> Cause | None:
    pause = _PauseState(job.all_paused_at, job.all_paused_until, job.all_paused_by, reason=job.all_reason)
    return _paused(job, "", pause)


def _topic_paused(job: StoredFacts, _facts: JobFacts) -> Cause | None:
    return _paused(job, job.topic, _PauseState(job.paused_at, job.paused_until, job.paused_by, reason=job.reason))


def _paused(job: StoredFacts, topic: str, pause: _PauseState) -> Cause | None:
    """A pause that ends before the job is due does not matter."""
    since, until = pause.since, pause.until
    if since is None or (until is not None and until <= job.next_run_at):
        return None
    what = f'Topic "{topic}"' if topic else "Everything"
    by = f" by {pause.who}" if pause.who else ""
    end = "until somebody resumes it" if until is None else f"until {moment(until, job.now)}"
    why = f"; reason: {short(pause.reason)}" if pause.reason else ""
    details = {"topic": topic, "paused_at": since, "paused_until": until, "paused_by": pause.who}
    option = f" --topic {shlex.quote(topic)}" if topic else ""
    text = f"{what} has been paused since {moment(since, job.now)}{by}, {end}{why}."
    return Cause("paused", text, f"pulse ctl dispatch resume{option}", details={**details, "reason": pause.reason})


def _stopping(_job: StoredFacts, facts: JobFacts) -> Cause | None:
    if not facts.is_stopping:
        return None
    return Cause(
        "stopping", "This server is stopping, and hands out nothing more.", "Start it again, or wait for its successor."
    )


def _unreadable(job: StoredFacts, facts: JobFacts) -> Cause | None:
    if not facts.is_unreadable:
        return None
    text = (
        f'Claims of topic "{job.topic}" fail: the database cannot read one of its jobs (args that print as gigabytes). '
        f"They are tried again every {LONGEST_S:g} s."
    )
    advice = "Cancel that job; event claim_failed in the server's log says more."
    return Cause("claim_failed", text, advice, details={"topic": job.topic})


def _nobody(job: StoredFacts, facts: JobFacts) -> Cause | None:
    if facts.candidates:
        return None
    served = f"Served here: {_listed(facts.topics)}." if facts.topics else "No worker is connected at all."
    text = f'No worker that is connected to this server serves topic "{job.topic}". {served}{_elsewhere(job)}'
    advice = f"Start one: pulse worker MODULE:APP --topic {shlex.quote(job.topic)}"
    return Cause(
        "no_worker",
        text,
        advice,
        details={"topic": job.topic, "served": _some(facts.topics), "other_hosts": job.other_hosts},
    )


def _no_handler(job: StoredFacts, facts: JobFacts) -> Cause | None:
    if not facts.candidates or any(one.is_able for one in facts.candidates):
        return None
    names = sorted({name for one in facts.candidates for name in one.names})
    alike = similar_names(job.name, names[:1000], _SHOWN)
    details: dict[str, object] = {"name": job.name, "topic": job.topic, "names": _some(names), "alike": alike}
    text = f'{_workers(len(facts.candidates))} topic "{job.topic}", but none has a handler named "{job.name}".'
    if alike:
        text += f" Alike: {_listed(alike)}."
    if job.handler_seen_at is not None:
        where = f' for topic "{job.handler_topic}"' if job.handler_topic else ""
        text += f" A worker last came with that handler{where} {ago(job.handler_seen_at, job.now)}."
        details |= {"handler_seen_at": job.handler_seen_at, "handler_topic": job.handler_topic}
    advice = f'Start a worker whose app has it, for topic "{job.topic}"; or: pulse ctl jobs cancel {job_id(job.id)}'
    return Cause("no_handler", text + _elsewhere(job), advice, details={**details, "other_hosts": job.other_hosts})


def _held_back(_job: StoredFacts, facts: JobFacts) -> Cause | None:
    able = [one for one in facts.candidates if one.is_able]
    if not able or any(one.stopped is None for one in able):
        return None
    causes = Counter(one.stopped for one in able)
    counted = ", ".join(f"{number} {cause}" for cause, number in causes.most_common())
    text = f"No worker that could run it starts jobs now: {counted}."
    advice = (
        "pulse ctl workers; those that drain leave, those that are stopped, silent or hang are killed: start others."
    )
    return Cause("held_back", text, advice, details={"stopped": [list(pair) for pair in causes.most_common()]})


def _full(job: StoredFacts, facts: JobFacts) -> Cause | None:
    able = [one for one in facts.candidates if one.is_able and one.stopped is None]
    if not able or any(one.held < one.capacity for one in able):
        return None
    places = sum(one.places for one in able)
    running = Counter(name for one in able for name in one.calls).most_common(_DETAILED)
    ahead = sum(one.held - one.started for one in able)
    names = ", ".join(f"{number} {name or '(not known yet)'}" for name, number in running[:_SHOWN])
    more = ", …" if len(running) > _SHOWN else ""
    whose = (
        "The only worker that could run it is" if len(able) == 1 else f"All {len(able)} workers that could run it are"
    )
    stopped = Counter(one.stopped for one in facts.candidates if one.is_able and one.stopped is not None)
    others = "".join(f" {number} more: {cause}." for cause, number in stopped.most_common())
    sent = f"; {count(ahead, 'more job')} {'was' if ahead == 1 else 'were'} sent ahead" if ahead else ""
    text = f"{whose} full: {count(places, 'place')}, taken by {names or 'jobs about to start'}{more}{sent}.{others}"
    advice = (
        f"Wait, or start more workers; what runs: pulse ctl jobs list --status RUNNING --topic {shlex.quote(job.topic)}"
    )
    return Cause(
        "full",
        text,
        advice,
        details={
            "workers": len(able),
            "places": places,
            "ahead": ahead,
            "running": [list(pair) for pair in running],
        },
    )


def _earlier(_job: StoredFacts, facts: JobFacts) -> Cause | None:
    if facts.earlier is None:
        return None
    text = f'An earlier attempt of it may not have ended yet: its worker "{facts.earlier}" lives. Until then it waits.'
    return Cause("earlier_attempt", text, "That worker is being ended; wait.", details={"worker": facts.earlier})


def _not_due(job: StoredFacts, _facts: JobFacts) -> Cause | None:
    if job.is_due or job.held or job.waiting_on or job.waits_for_signal:
        return None
    when = moment(job.next_run_at, job.now)
    details: dict[str, object] = {"next_run_at": job.next_run_at, "attempt": job.attempts}
    if job.was_given_back:
        text = f"It was claimed, and given back since nobody could take it just then; it is looked at again {when}."
        return Cause("given_back", text, "", details=details)
    if job.outcome is None:
        return Cause("not_due", f"It is scheduled: it was submitted to start {when}.", "", details=details)
    details |= {"outcome": job.outcome, "error": job.attempt_error}
    if job.outcome == "snoozed":
        return Cause("snoozed", f"Its handler asked to be called again {when}.", "", details=details)
    tries = f"{job.attempts - job.uncharged} of {job.max_attempts} tries are used"
    error = f" with: {short_error(job.attempt_error)}" if job.attempt_error else ""
    text = f"Attempt {job.attempts} ended ({job.outcome}){_where(job)}{error}. It is tried again {when}; {tries}."
    if job.outcome == "crashed":
        alone = ", and runs alone, in a process of its own" if job.crashes >= ISOLATE_AT_CRASHES else ""
        text += f" {count(job.crashes, 'worker')} died while it ran: it is suspected to kill them{alone}."
    return Cause("back_off", text, f"Its attempts: pulse ctl jobs get {job_id(job.id)}", details=details)


def _where(job: StoredFacts) -> str:
    """The worker of a lapsed lease: it was frozen or cut off, or its host died."""
    named = identities.parse(job.worker or "") if job.outcome == "lease_expired" else None
    if named is None:
        return ""
    seen = "never seen" if job.host_seen_at is None else f"last seen {ago(job.host_seen_at, job.now)}"
    return f' at worker "{named.name}", pid {named.pid} of host {named.host} (which was {seen})'


def _expires(job: StoredFacts, _facts: JobFacts) -> Cause | None:
    if job.expires_at is None:
        return None
    text = (
        f"It expires {moment(job.expires_at, job.now)}: if it has not been started by then, it becomes a dead letter."
    )
    return Cause("expires", text, "", details={"expires_at": job.expires_at})


def _ready(job: StoredFacts, facts: JobFacts) -> Cause:
    ready = [one for one in facts.candidates if one.is_able and one.stopped is None]
    free = sum(max(0, one.places - len(one.calls)) for one in ready)
    room = f"have {count(free, 'free place')}" if free else "take jobs ahead"
    details = {"next_run_at": job.next_run_at, "free": free}
    text = (
        f"Nothing blocks it: it has been due since {moment(job.next_run_at, job.now)}, "
        f"and workers {room}. It should start within {duration(facts.poll_s)}."
    )
    advice = (
        "Ask again."
        if job.now - job.next_run_at < LONG_DUE_S
        else "See the server's log (claim_failed, database_away)."
    )
    return Cause("ready", text, advice, details=details)


def _unique(job: StoredFacts) -> list[Cause]:
    """What it keeps from others, and not what keeps it: why a submit may have found this job."""
    if job.unique_key is None or not keeps_unique_key(job.unique_until, job.attempts):
        return []
    until = "has ended" if job.unique_until == "end" else "starts"
    text = f'It has the unique key "{cut(job.unique_key, _NAME_COLUMNS)}": until it {until}, no other job gets that.'
    return [Cause("unique", text, "", details={"unique_key": job.unique_key, "unique_until": job.unique_until})]


def _slow(facts: JobFacts) -> list[Cause]:
    """What keeps no job from running, but slows all of them down."""
    return [] if facts.slow is None else [Cause("slow_database", *facts.slow)]


# In the order in which they decide. Workers or limits that are full now are no reason for a job that is not due.
DUE: Final[Sequence[Rule]] = (
    _all_paused,
    _topic_paused,
    _stopping,
    _unreadable,
    why_limits.limit_paused,
    why_limits.group_paused,
    why_limits.halted,
    _nobody,
    _no_handler,
    _held_back,
    why_limits.limit_full,
    why_limits.in_sequence,
    why_limits.group_full,
    why_limits.rate,
    _full,
    _earlier,
    _not_due,
    why_limits.behind,
    _expires,
)
NOT_DUE: Final[Sequence[Rule]] = (
    _held,
    _waits,
    _waits_for_signal,
    _all_paused,
    _topic_paused,
    why_limits.limit_paused,
    why_limits.group_paused,
    why_limits.halted,
    _not_due,
    _nobody,
    _no_handler,
    _expires,
)


def _workers(number: int) -> str:
    return f"{count(number, 'worker')} {'serves' if number == 1 else 'serve'}"


def _elsewhere(job: StoredFacts) -> str:
    if not job.other_hosts:
        return ""
    use = "uses" if job.other_hosts == 1 else "use"
    return f" {count(job.other_hosts, 'other host')} {use} this database; of workers there only their own servers know."


def _listed(names: Iterable[str]) -> str:
    shown = [cut(name, _NAME_COLUMNS) for name in names]
    return ", ".join(shown[:_SHOWN]) + (", …" if len(shown) > _SHOWN else "")


def _some(names: Sequence[str]) -> list[str]:
    return list(names[:_DETAILED])
