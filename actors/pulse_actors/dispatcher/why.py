"""
Why a job does not run, in plain words, of what the database and this dispatcher know. Pure: no IO, no clock.

What is in the way, what decides it first; all that applies, since the next one holds when the first is gone. What only
follows from something else (a job that is looked at again later, because nobody could take it) comes behind that.
"""

from __future__ import annotations

import difflib
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias
from uuid import UUID

from pulse.store.standing import BEFORE_MAX, Standing
from pulse.words import ago, count, cut, duration, iso, one_line
from pulse_actors import identity as identities
from pulse_actors.dispatcher.assignments import ISOLATE_AT_CRASHES
from pulse_actors.dispatcher.claims import UNREADABLE_S

ENDED: Final = {"COMPLETED": "completed", "DEAD_LETTERED": "a dead letter", "CANCELED": "canceled"}
ACTIVE: Final = frozenset({"PENDING", "RETRYING", "RUNNING"})
LONG_DUE_S: Final = 10.0  # nothing known is in the way, and it should have been claimed twenty times
_SHOWN: Final = 5  # names in a sentence
_TOLD: Final = 50  # in the details
_ERROR_COLUMNS: Final = 200


@dataclass(frozen=True, slots=True)
class Reason:
    """
    One thing that is in the way.

    Attributes:
        code: For programs.
        text: For people, a sentence or two.
        advice: What to do, or what to look at; '': wait.
        details: The values in the text.
    """

    code: str
    text: str
    advice: str = ""
    details: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass(frozen=True, slots=True)
class Candidate:
    """
    A worker that serves the topic of a job.

    Attributes:
        is_able: It has a handler of the job's name.
        held: Names of what it holds.
        stopped: Why it gets no more jobs: draining, hung, silent or busy; None: it does.
    """

    name: str
    names: frozenset[str]
    is_able: bool
    capacity: int
    held: tuple[str, ...] = ()
    stopped: str | None = None


@dataclass(frozen=True, slots=True)
class Holder:
    """
    The worker that has a job, as this dispatcher knows it.

    Attributes:
        heard_ago_s: None: it has not been heard of yet.
        is_connected: False: its process lives, and is not connected now.
        started: Whether its handler was called; None: it is not in the book.
        waiting: How many others it holds that are not started.
    """

    heard_ago_s: float | None
    is_connected: bool = True
    is_silent: bool = False
    started: bool | None = None
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class Known:
    """
    What a dispatcher knows by itself of a job.

    Attributes:
        host: Its own.
        poll_s: How soon something that is due is found.
        candidates: Workers connected here that serve the job's topic.
        topics: All that are served here.
        holder: Who has it; None: nobody who is known here.
        is_stopping: This dispatcher hands out nothing more.
        is_unreadable: Claims of the topic fail, since the database cannot read a job.
        earlier: The worker that may run an earlier attempt yet.
        is_ageing: Waiting counts in the order of the topic.
    """

    host: str
    poll_s: float
    candidates: Sequence[Candidate] = ()
    topics: Sequence[str] = ()
    holder: Holder | None = None
    is_stopping: bool = False
    is_unreadable: bool = False
    earlier: str | None = None
    is_ageing: bool = False


Rule: TypeAlias = Callable[[Standing, Known], Reason | None]


def explain(job: Standing, known: Known) -> list[Reason]:
    """Why *job* does not run: at least one reason, the decisive one first."""
    if job.status in ENDED:
        return [_ended(job)]
    if job.status == "RUNNING":
        return [_running(job, known)]
    if job.expires_at is not None and job.expires_at <= (job.now if job.held else max(job.now, job.next_run_at)):
        return [_expires_first(job, job.expires_at)]
    rules = DUE if job.is_due or (job.was_given_back and not job.held) else NOT_DUE
    return [reason for rule in rules if (reason := rule(job, known)) is not None] or [_ready(job, known)]


def _ended(job: Standing) -> Reason:
    at = "" if job.completed_at is None else f" since {_moment(job.completed_at, job.now)}"
    error = f": {_short(job.last_error)}" if job.last_error and job.status == "DEAD_LETTERED" else "."
    details = {"completed_at": job.completed_at, "last_error": job.last_error}
    text = f"It does not run any more: it is {ENDED[job.status]}{at}{error}"
    again = "" if job.status == "COMPLETED" else f"; to start it anew: pulse ctl jobs retry {_id(job.id)}"
    return Reason("ended", text, f"Its attempts: pulse ctl jobs get {_id(job.id)}{again}", details)


def _running(job: Standing, known: Known) -> Reason:
    named = identities.parse(job.locked_by or "")
    details: dict[str, object] = {"worker": job.locked_by, "attempt": job.attempts}
    details |= {"started_at": job.started_at, "lease_until": job.lease_until}
    started = "" if job.started_at is None else f", claimed {_moment(job.started_at, job.now)}"
    who = f'worker "{named.name}", pid {named.pid}' if named else f'worker "{job.locked_by}"'
    if named is not None and named.host != known.host:
        seen = "never" if job.host_seen_at is None else ago(job.host_seen_at, job.now)
        text = f"It runs: attempt {job.attempts} is at {who} of another host, {named.host}{started}. {_lease(job)}"
        advice = f"That host was last seen {seen}; ask its server for more."
        return Reason("running", text, advice, {**details, "host": named.host, "host_seen_at": job.host_seen_at})
    holder = known.holder
    if holder is None:
        advice = "Once its lease has ended, or its process is known to be dead, it is tried again by itself."
        text = f"Attempt {job.attempts} is at {who}{started}; this server does not know it. {_lease(job)}"
        return Reason("running", text, advice, details)
    details["heard_ago_s"] = holder.heard_ago_s
    heard = "not heard of yet" if holder.heard_ago_s is None else f"heard of {duration(holder.heard_ago_s)} ago"
    if holder.is_silent or not holder.is_connected:
        how = "silent" if holder.is_silent else "not connected"
        advice = "It is given time, then it is killed, and the job is tried again by itself: pulse ctl workers"
        text = f"Attempt {job.attempts} is at {who}{started}; that is {how}, {heard}. {_lease(job)}"
        return Reason("silent", text, advice, details)
    if holder.started is False:
        return _assigned(job, f"{who}, {heard}{started}", holder, details)
    text = f"It runs: attempt {job.attempts} is at {who}, {heard}{started}."
    return Reason("running", text, f"Where it is now: pulse ctl jobs stack {_id(job.id)}", details)


def _assigned(job: Standing, who: str, holder: Holder, details: Mapping[str, object]) -> Reason:
    details = {**details, "waiting": holder.waiting, "crashes": job.crashes}
    if job.crashes >= ISOLATE_AT_CRASHES:
        text = (
            f"It was there when {job.crashes} workers died, so it is to run alone, in a process of its own. "
            f"It waits for that at {who}."
        )
        return Reason("isolating", text, f"Its crashes: pulse ctl jobs get {_id(job.id)}", details)
    others = f" It holds {count(holder.waiting, 'other')} that wait, too." if holder.waiting else ""
    text = f"It was handed out, and its handler was not called yet: it waits at {who}.{others}"
    return Reason("assigned", text, f"What that worker does now: pulse ctl jobs stack {_id(job.id)}", details)


def _lease(job: Standing) -> str:
    if job.lease_until is None:
        return ""
    return f"Its lease {'ended' if job.lease_until <= job.now else 'ends'} {ago(job.lease_until, job.now)}."


def _expires_first(job: Standing, expires_at: float) -> Reason:
    details = {"expires_at": expires_at, "next_run_at": job.next_run_at}
    when = _moment(expires_at, job.now)
    if expires_at <= job.now:
        text = f"It expired {when}: it is not started any more, and a dead letter within seconds."
    else:
        text = f"It never will: it expires {when}, and is due only after that."
    return Reason(
        "expired", text, f"To run it all the same, once it is one: pulse ctl jobs retry {_id(job.id)}", details
    )


def _held(job: Standing, _known: Known) -> Reason | None:
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
        return Reason("held", text + before, "", details)
    last = _id(job.last_job_id)
    text = f"It is held until an earlier job of its schedule has ended (overlap queue): {last}, {job.last_job_status}."
    return Reason("held", text + before, f"pulse ctl jobs why {last}", details)


@dataclass(frozen=True, slots=True)
class _Pause:
    since: float | None
    until: float | None
    who: str | None
    reason: str | None


def _all_paused(job: Standing, _known: Known) -> Reason | None:
    pause = _Pause(job.all_paused_at, job.all_paused_until, job.all_paused_by, job.all_reason)
    return _paused(job, "", pause)


def _topic_paused(job: Standing, _known: Known) -> Reason | None:
    return _paused(job, job.topic, _Pause(job.paused_at, job.paused_until, job.paused_by, job.reason))


def _paused(job: Standing, topic: str, pause: _Pause) -> Reason | None:
    """A pause that ends before the job is due is in nobody's way."""
    since, until = pause.since, pause.until
    if since is None or (until is not None and until <= job.next_run_at):
        return None
    what = f'Topic "{topic}"' if topic else "Everything"
    by = f" by {pause.who}" if pause.who else ""
    end = "until somebody resumes it" if until is None else f"until {_moment(until, job.now)}"
    why = f"; reason: {_short(pause.reason)}" if pause.reason else ""
    details = {"topic": topic, "paused_at": since, "paused_until": until, "paused_by": pause.who}
    option = f" --topic {shlex.quote(topic)}" if topic else ""
    text = f"{what} is paused since {_moment(since, job.now)}{by}, {end}{why}."
    return Reason("paused", text, f"pulse ctl dispatch resume{option}", {**details, "reason": pause.reason})


def _stopping(_job: Standing, known: Known) -> Reason | None:
    if not known.is_stopping:
        return None
    return Reason(
        "stopping", "This server is stopping, and hands out nothing more.", "Start it again, or wait for its successor."
    )


def _unreadable(job: Standing, known: Known) -> Reason | None:
    if not known.is_unreadable:
        return None
    text = (
        f'Claims of topic "{job.topic}" fail: the database cannot read one of its jobs (args that print as gigabytes). '
        f"They are tried again every {UNREADABLE_S:g} s."
    )
    advice = "Cancel that job; event claim_failed in the server's log says more."
    return Reason("claim_failed", text, advice, {"topic": job.topic})


def _nobody(job: Standing, known: Known) -> Reason | None:
    if known.candidates:
        return None
    served = f"Served here: {_listed(known.topics)}." if known.topics else "No worker is connected at all."
    text = f'No worker that is connected to this server serves topic "{job.topic}". {served}{_elsewhere(job)}'
    advice = f"Start one: pulse worker MODULE:APP --topic {shlex.quote(job.topic)}"
    return Reason(
        "no_worker", text, advice, {"topic": job.topic, "served": _some(known.topics), "other_hosts": job.other_hosts}
    )


def _no_handler(job: Standing, known: Known) -> Reason | None:
    if not known.candidates or any(one.is_able for one in known.candidates):
        return None
    names = sorted({name for one in known.candidates for name in one.names})
    alike = difflib.get_close_matches(job.name, names[:1000], _SHOWN)
    details: dict[str, object] = {"name": job.name, "topic": job.topic, "names": _some(names), "alike": alike}
    text = f'{_workers(len(known.candidates))} topic "{job.topic}", but none has a handler named "{job.name}".'
    if alike:
        text += f" Alike: {_listed(alike)}."
    if job.handler_seen_at is not None:
        where = f' for topic "{job.handler_topic}"' if job.handler_topic else ""
        text += f" A worker last came with that handler{where} {ago(job.handler_seen_at, job.now)}."
        details |= {"handler_seen_at": job.handler_seen_at, "handler_topic": job.handler_topic}
    advice = f'Start a worker whose app has it, for topic "{job.topic}"; or: pulse ctl jobs cancel {_id(job.id)}'
    return Reason("no_handler", text + _elsewhere(job), advice, {**details, "other_hosts": job.other_hosts})


def _held_back(_job: Standing, known: Known) -> Reason | None:
    able = [one for one in known.candidates if one.is_able]
    if not able or any(one.stopped is None for one in able):
        return None
    causes = Counter(one.stopped for one in able)
    counted = ", ".join(f"{number} {cause}" for cause, number in causes.most_common())
    text = f"No worker that could run it gets jobs now: {counted}."
    advice = "pulse ctl workers; those that drain leave, those that are silent or hang are killed: start others."
    return Reason("held_back", text, advice, {"stopped": [list(pair) for pair in causes.most_common()]})


def _full(job: Standing, known: Known) -> Reason | None:
    able = [one for one in known.candidates if one.is_able and one.stopped is None]
    if not able or any(len(one.held) < one.capacity for one in able):
        return None
    places = sum(one.capacity for one in able)
    running = Counter(name for one in able for name in one.held).most_common(_TOLD)
    names = ", ".join(f"{number} {name or '(not known yet)'}" for name, number in running[:_SHOWN])
    more = ", …" if len(running) > _SHOWN else ""
    whose = (
        "The only worker that could run it is" if len(able) == 1 else f"All {len(able)} workers that could run it are"
    )
    stopped = Counter(one.stopped for one in known.candidates if one.is_able and one.stopped is not None)
    others = "".join(f" {number} more: {cause}." for cause, number in stopped.most_common())
    text = f"{whose} full: {count(places, 'place')}, taken by {names}{more}.{others}"
    advice = (
        f"Wait, or start more workers; what runs: pulse ctl jobs list --status RUNNING --topic {shlex.quote(job.topic)}"
    )
    return Reason(
        "full", text, advice, {"workers": len(able), "places": places, "running": [list(pair) for pair in running]}
    )


def _earlier(_job: Standing, known: Known) -> Reason | None:
    if known.earlier is None:
        return None
    text = f'An earlier attempt of it may not have ended yet: its worker "{known.earlier}" lives. Until then it waits.'
    return Reason("earlier_attempt", text, "That worker is being ended; wait.", {"worker": known.earlier})


def _not_due(job: Standing, _known: Known) -> Reason | None:
    if job.is_due or job.held:
        return None
    when = _moment(job.next_run_at, job.now)
    details: dict[str, object] = {"next_run_at": job.next_run_at, "attempt": job.attempts}
    if job.was_given_back:
        text = f"It was claimed, and given back since nobody could take it just then; it is looked at again {when}."
        return Reason("given_back", text, "", details)
    if job.outcome is None:
        return Reason("not_due", f"It is not due yet: it was submitted to start {when}.", "", details)
    details |= {"outcome": job.outcome, "error": job.attempt_error}
    if job.outcome == "snoozed":
        return Reason("snoozed", f"Its handler asked to be called again {when}.", "", details)
    tries = f"{job.attempts - job.uncharged} of {job.max_attempts} tries are used"
    error = f" with: {_short(job.attempt_error)}" if job.attempt_error else ""
    text = f"Attempt {job.attempts} ended ({job.outcome}){error}. It is tried again {when}; {tries}."
    return Reason("back_off", text, f"Its attempts: pulse ctl jobs get {_id(job.id)}", details)


def _behind(job: Standing, known: Known) -> Reason | None:
    if not job.before:
        return None
    number = f"{BEFORE_MAX:,} jobs or more" if job.before >= BEFORE_MAX else count(job.before, "job")
    comes = "comes" if job.before == 1 else "come"
    text = f'{number} of topic "{job.topic}" {comes} first: of higher priority, or due earlier.'
    if known.is_ageing:
        text += " The topic ages: those that have waited for long may go first, too."
    return Reason(
        "behind", text, "Wait, start more workers, or submit with a higher --priority.", {"before": job.before}
    )


def _expires(job: Standing, _known: Known) -> Reason | None:
    if job.expires_at is None:
        return None
    text = (
        f"It expires {_moment(job.expires_at, job.now)}: if it has not been started by then, it becomes a dead letter."
    )
    return Reason("expires", text, "", {"expires_at": job.expires_at})


def _ready(job: Standing, known: Known) -> Reason:
    free = sum(one.capacity - len(one.held) for one in known.candidates if one.is_able and one.stopped is None)
    details = {"next_run_at": job.next_run_at, "free": free}
    text = (
        f"Nothing is in the way: it is due since {_moment(job.next_run_at, job.now)}, "
        f"and workers have {count(free, 'free place')}. It should start within {duration(known.poll_s)}."
    )
    advice = (
        "Ask again."
        if job.now - job.next_run_at < LONG_DUE_S
        else "See the server's log (claim_failed, database_away)."
    )
    return Reason("ready", text, advice, details)


# In the order in which they decide. What is not due is not kept from running by workers that are full now.
DUE: Final[Sequence[Rule]] = (
    _all_paused,
    _topic_paused,
    _stopping,
    _unreadable,
    _nobody,
    _no_handler,
    _held_back,
    _full,
    _earlier,
    _not_due,
    _behind,
    _expires,
)
NOT_DUE: Final[Sequence[Rule]] = (_held, _all_paused, _topic_paused, _not_due, _nobody, _no_handler, _expires)


def _workers(number: int) -> str:
    return f"{count(number, 'worker')} {'serves' if number == 1 else 'serve'}"


def _elsewhere(job: Standing) -> str:
    if not job.other_hosts:
        return ""
    use = "uses" if job.other_hosts == 1 else "use"
    return f" {count(job.other_hosts, 'other host')} {use} this database; of workers there only their own servers know."


def _listed(names: Iterable[str]) -> str:
    shown = [cut(name, _ERROR_COLUMNS) for name in names]
    return ", ".join(shown[:_SHOWN]) + (", …" if len(shown) > _SHOWN else "")


def _some(names: Sequence[str]) -> list[str]:
    return list(names[:_TOLD])


def _moment(moment_s: float, now_s: float) -> str:
    return f"{iso(int(moment_s))} ({ago(moment_s, now_s)})"


def _short(text: str | None) -> str:
    return cut(one_line(text or ""), _ERROR_COLUMNS)


def _id(identity: bytes) -> str:
    return str(UUID(bytes=identity))
