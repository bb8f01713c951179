"""How limits, groups and sequences keep a job waiting, as the statement `claim_limited` decides it. Pure."""

from __future__ import annotations

from typing import Final

from pulse.common.text import count, cut, duration, shell_word
from pulse.store.reading.jobs import BEFORE_MAX, StoredFacts
from pulse.store.reading.limits import SlotUsage
from pulse_actors.dispatcher.diagnosis.reasons import Cause, JobFacts, job_id, moment

_NAME_COLUMNS: Final = 200


def limit_paused(job: StoredFacts, _facts: JobFacts) -> Cause | None:
    """Nothing of the limit may start."""
    if job.limits.total.concurrency != 0:
        return None
    text = f"Nothing starts under {_limit(job)}: its concurrency is 0."
    return Cause("limit_paused", text, _raise(job), details={"limit": job.limits.limit})


def group_paused(job: StoredFacts, _facts: JobFacts) -> Cause | None:
    """Nothing of its group may start."""
    if job.limits.group.concurrency != 0:
        return None
    text = f"Its {_group(job)} is paused: {_limit(job)} gives it a concurrency of 0."
    details = {"limit": job.limits.limit, "group_key": job.group_key}
    return Cause("group_paused", text, _raise(job, of_group=True), details=details)


def halted(job: StoredFacts, _facts: JobFacts) -> Cause | None:
    """A dead letter halts its sequence."""
    place = job.limits.sequence
    if place is None or place.halted_by is None:
        return None
    dead = job_id(place.halted_by)
    text = f"The sequence of {_group(job)} is halted by a dead letter, {dead}: nothing of it starts."
    advice = (
        f"Look at it: pulse ctl jobs get {dead}; then pulse ctl jobs retry {dead}, or pulse ctl jobs delete {dead}. "
        "With the policy sequence=continue a dead letter halts nothing."
    )
    return Cause("halted", text, advice, details={"group_key": job.group_key, "dead_letter": place.halted_by})


def in_sequence(job: StoredFacts, _facts: JobFacts) -> Cause | None:
    """Another job of its sequence runs, or goes first."""
    place, running = job.limits.sequence, job.limits.group.holders
    ahead = None if place is None else next(iter(running), place.ahead_id)
    if place is None or ahead is None:
        return None
    put_off_at = None if running or place.ahead_at is None or place.ahead_at <= job.now else place.ahead_at
    how = "runs" if running else "waits" if put_off_at is None else f"is put off until {moment(put_off_at, job.now)}"
    text = f"The jobs of {_group(job)} run one by one, in sequence; before it comes {job_id(ahead)}, which {how}."
    details = {"group_key": job.group_key, "ahead": ahead, "is_running": bool(running), "put_off_until": put_off_at}
    return Cause("sequence", text, f"pulse ctl jobs why {job_id(ahead)}", details=details)


def limit_full(job: StoredFacts, _facts: JobFacts) -> Cause | None:
    """All slots of its limit are taken."""
    slots = job.limits.total
    if not slots.concurrency or slots.running < slots.concurrency:
        return None
    return Cause("limit_full", _full(_limit(job), slots), _wait(job), details=_details(job, slots))


def group_full(job: StoredFacts, _facts: JobFacts) -> Cause | None:
    """All slots of its group are taken; in a sequence the job that has the only one says so."""
    slots = job.limits.group
    if job.limits.sequence is not None or not slots.concurrency or slots.running < slots.concurrency:
        return None
    details = {**_details(job, slots), "group_key": job.group_key}
    return Cause("group_full", _full(_group(job), slots), _wait(job, of_group=True), details=details)


def rate(job: StoredFacts, _facts: JobFacts) -> Cause | None:
    """There is no token, of the limit or of its group: the later one counts."""
    waits = [(job.limits.total.retry_s, False), (job.limits.group.retry_s, True)]
    known = [(retry_s, of_group) for retry_s, of_group in waits if retry_s is not None]
    if not known:
        return None
    retry_s, of_group = max(known)
    whose = f"{_group(job)} under {_limit(job)}" if of_group else _limit(job)
    text = f"The rate of {whose} is used up: next in {duration(retry_s)}. Other jobs may take that start."
    details = {"limit": job.limits.limit, "retry_s": retry_s, "group_key": job.group_key if of_group else None}
    return Cause("rate", text, _raise(job, of_group=of_group), details=details)


def behind(job: StoredFacts, facts: JobFacts) -> Cause | None:
    """How many due jobs of its topic, or of its group, come first."""
    if not job.before:
        return None
    number = f"{BEFORE_MAX:,} jobs or more" if job.before >= BEFORE_MAX else count(job.before, "job")
    comes = "comes" if job.before == 1 else "come"
    whose = f'topic "{job.topic}"' if job.group_key is None else f'{_group(job)}, topic "{job.topic}",'
    text = f"{number} of {whose} {comes} first: of higher priority, or due earlier."
    advice = "Wait, start more workers, or submit with a higher --priority."
    details: dict[str, object] = {"before": job.before}
    if job.group_key is not None:
        text += " The groups of a topic take turns."
        details["group_key"] = job.group_key
    if facts.is_ageing and job.limits.sequence is None:
        text += " The topic ages: those that have waited for long may go first, too."
    return Cause("behind", text, advice, details=details)


def _limit(job: StoredFacts) -> str:
    return f'limit "{cut(job.limits.limit or "", _NAME_COLUMNS)}"'


def _group(job: StoredFacts) -> str:
    return f'group "{cut(job.group_key or "", _NAME_COLUMNS)}"'


def _full(what: str, slots: SlotUsage) -> str:
    ids = ", ".join(map(job_id, slots.holders))
    more = ", …" if len(slots.holders) < slots.running else ""
    return f"Its {what} is full: {slots.running:,} of {slots.concurrency:,} run: {ids}{more}."


def _details(job: StoredFacts, slots: SlotUsage) -> dict[str, object]:
    return {
        "limit": job.limits.limit,
        "concurrency": slots.concurrency,
        "running": slots.running,
        "holders": list(slots.holders),
    }


def _wait(job: StoredFacts, *, of_group: bool = False) -> str:
    return f"Wait until one ends; more workers do not help. {_raise(job, of_group=of_group)}"


def _raise(job: StoredFacts, *, of_group: bool = False) -> str:
    """The command that changes the limit."""
    group = f" --group {shell_word(job.group_key)}" if of_group and job.group_key is not None else ""
    return f"To change it: pulse ctl limits set {shell_word(job.limits.limit or '')}{group}"
