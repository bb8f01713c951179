"""Verdicts on the queue: leases, topics, waits, the gate, schedules, crashes, dead letters, the outbox, hosts. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from pulse.common.text import headline, one_line, shell_word, similar_names
from pulse.ops.doctor.finding import Finding, Row, State, list_some, shown_s, verdict_of
from pulse.ops.doctor.limits import LIMITED_S, is_full
from pulse.ops.job_text import where
from pulse.security.schema_name import DEFAULT

UNSEEN_S: Final = 60.0  # a watchdog notes its host every few seconds
MANY_CRASHES: Final = 3
NEW_S: Final = 900.0  # older crashes are no more than a warning
MANY_HUNG: Final = 3  # handlers that ran out of time and ended when cancelled are worth a word from so many on
MANY_DEAD: Final = 10  # in an hour, of one handler
MOST_ENDS: Final = 10_000  # of the outbox that are looked at
LONG: Final = 10  # times the patience: so long may a handler run that has no limit


def watchdog(rows: Sequence[Row], grace_s: float) -> Finding:
    """Whether a watchdog sweeps."""
    age_s = rows[0]["age_s"] if rows else None
    if age_s is not None and age_s < grace_s:
        waits = f"; leases mean nothing for another {shown_s(rows[0]['wait_s'])}" if rows[0]["wait_s"] > 0 else ""
        return Finding("watchdog", State.OK, f"a watchdog swept {shown_s(age_s)} ago{waits}")
    words = "no watchdog has ever swept" if age_s is None else f"no watchdog has swept for {shown_s(age_s)}"
    return Finding(
        "watchdog",
        State.WRONG,
        words,
        details=("what a dead worker of another host held stays RUNNING",),
        advice=("Start pulse-supervisor, or look why its watchdog does not work: pulse ctl logs --actor watchdog",),
    )


def leases(rows: Sequence[Row], grace_s: float) -> Finding:
    """RUNNING jobs that no worker runs."""
    wrong: list[str] = []
    for row in rows:
        worker = f"worker {where(row['worker'])}"
        lapsed = row["lapsed"] and row["lapsed_s"] >= grace_s
        unseen = row["host_s"] is None or row["host_s"] >= max(grace_s, UNSEEN_S)
        if lapsed:
            wrong.append(f"{worker}: {_jobs(row['lapsed'])}, the lease lapsed {shown_s(row['lapsed_s'])} ago")
        elif unseen:
            seen = "was never seen" if row["host_s"] is None else f"was last seen {shown_s(row['host_s'])} ago"
            wrong.append(f"{worker}: {_jobs(row['jobs'])}, and its host {seen}")
    total = sum(row["jobs"] for row in rows)
    return verdict_of(
        "leases",
        list(list_some(wrong)),
        [],
        f"{_jobs(total)} RUNNING, each with a lease that holds",
        "A watchdog gives them back when their lease lapses: does one sweep? pulse ctl jobs list --status RUNNING",
    )


def topics(rows: Sequence[Row], grace_s: float, *, served: Collection[str] | None) -> Finding:
    """Topics with due jobs that no worker serves."""
    if served is None and rows:
        return Finding("topics", State.SKIPPED, "which topics workers serve is not known, or not yet")
    served = served or ()
    late = [row for row in rows if row["due_s"] >= min(grace_s, 5.0) and not row["is_paused"]]
    unserved = [
        f"topic {row['topic']!r}: a job has been due for {shown_s(row['due_s'])}"
        for row in late
        if row["topic"] not in served
    ]
    slow = [
        f"topic {row['topic']!r}: the first job has been due for {shown_s(row['due_s'])}, although workers serve it"
        for row in late
        if row["topic"] in served
        and row["due_s"] >= (grace_s if row["limit"] is None else LIMITED_S)
        and not is_full(row)
    ]
    first = f"{_topics(len(unserved))} due jobs, and no worker that is connected here"
    told = [first, *list_some(unserved)] if unserved else []
    only_host = all(row["hosts"] <= 1 for row in rows)
    return verdict_of(
        "topics",
        told if only_host else [],
        [*([] if only_host else told), *list_some(slow)],
        f"{_topics(len(rows))} due jobs, and workers" if rows else "no job is due",
        "pulse worker MODULE:APP --topic TOPIC",
        "pulse ctl jobs why ID says why one job waits.",
    )


def unhandled(rows: Sequence[Row], _grace_s: float) -> Finding:
    """Jobs whose name no worker has a handler for."""
    first = rows[0] if rows else {"topic": "TOPIC", "name": "NAME"}
    return verdict_of(
        "unhandled",
        list(list_some([_unhandled(row) for row in rows])),
        [],
        "every job that was claimed has a handler",
        "Start a worker whose app has that handler, for that topic; the jobs then run by themselves.",
        f"pulse ctl jobs list --topic {shell_word(first['topic'])} --name {shell_word(first['name'])}",
    )


def _unhandled(row: Row) -> str:
    alike = similar_names(row["name"], row["handlers"])
    similar = f"; handlers with a similar name: {', '.join(map(repr, alike))}" if alike else ""
    return (
        f"topic {row['topic']!r}: {_jobs(row['jobs'])} named {row['name']!r}, the oldest submitted "
        f"{shown_s(row['age_s'])} ago, and no worker has a handler of that name{similar}"
    )


def gate(rows: Sequence[Row], _grace_s: float) -> Finding:
    """Pauses."""
    topic = rows[0]["topic"] if rows else ""
    resume = f"pulse ctl dispatch resume --topic {shell_word(topic)}" if topic else "pulse ctl dispatch resume"
    shown = list_some([_pause(row) for row in rows], rows[0]["total"] if rows else 0)
    return verdict_of("gate", [], list(shown), "nothing is paused", resume)


def schedules(rows: Sequence[Row], grace_s: float) -> Finding:
    """Schedules whose times cannot be computed, and those that are late."""
    stuck = [f"schedule {row['id']} ({row['name']}): {row['error']}" for row in rows if row["error"]]
    late = [
        f"schedule {row['id']} ({row['name']}) is {shown_s(row['late_s'])} late"
        for row in rows
        if not row["error"] and row["late_s"] >= grace_s
    ]
    return verdict_of(
        "schedules",
        list(list_some(stuck)),
        list(list_some(late)),
        "every schedule is followed",
        "pulse ctl schedules get ID",
        "Late ones: pulse ctl logs --actor scheduler",
    )


def crashes(rows: Sequence[Row], _grace_s: float) -> Finding:
    """Handlers during which workers died."""
    died = [row for row in rows if row["outcome"] == "crashed"]
    grave = [row["attempts"] >= MANY_CRASHES and row["age_s"] <= NEW_S for row in died]
    wrong = [_crashed(row) for row, is_grave in zip(died, grave, strict=True) if is_grave]
    few = [_crashed(row) for row, is_grave in zip(died, grave, strict=True) if not is_grave]
    return verdict_of(
        "crashes",
        list(list_some(wrong)),
        list(list_some(few)),
        "no worker died of a job within the last hour",
        f"Signal, memory and stack of each attempt: pulse ctl jobs get {_example(died)}",
        "From its second crash on a job runs alone, in a process of its own; at max_crashes (3) it is a dead letter.",
    )


def hung(rows: Sequence[Row], _grace_s: float) -> Finding:
    """Handlers that outlast their limits, and leases that lapsed: a worker was frozen, or cut off."""
    words = {
        "timeout": ("timeout", "timeouts"),
        "stalled": ("stall", "stalls"),
        "lease_expired": ("lapsed lease", "lapsed leases"),
    }
    hung_ = [row for row in rows if row["outcome"] in words and _is_hung(row)]
    found = [_ended(row, row["attempts"], *words[row["outcome"]]) + _where(row) for row in hung_]
    lapsed = any(row["outcome"] == "lease_expired" for row in hung_)
    return verdict_of(
        "hung",
        [],
        list(list_some(found)),
        "no handler hung, and no lease lapsed within the last hour",
        f"Where it hung: pulse ctl jobs get {_example(hung_)}; of one that runs now: pulse ctl jobs stack ID",
        *(["A lease lapses where a worker was frozen (SIGSTOP, swap) or cut off, or its host died."] if lapsed else []),
    )


def running(rows: Sequence[Row], grace_s: float) -> Finding:
    """Handlers that run for long, and that nothing ends if they hang."""
    longest_s = LONG * grace_s
    found = [row for row in rows if row["age_s"] >= longest_s]
    return verdict_of(
        "running",
        [],
        list(list_some([_endless(row) for row in found])),
        f"no handler without a limit has run for {shown_s(longest_s)}",
        f"Where it is: pulse ctl jobs stack {_example(found)}; to end it: pulse ctl jobs cancel {_example(found)}",
        "stall_s, or timeout_s, in the handler or its topic's policy ends the next one that hangs.",
    )


def dead_letters(rows: Sequence[Row], _grace_s: float) -> Finding:
    """Handlers whose jobs become dead letters."""
    wrong = [_ended(row, row["jobs"], "dead letter", "dead letters") for row in rows if row["jobs"] >= MANY_DEAD]
    few = [_ended(row, row["jobs"], "dead letter", "dead letters") for row in rows if row["jobs"] < MANY_DEAD]
    return verdict_of(
        "dead-letters",
        [],
        list(list_some([*wrong, *few])),
        "no job became a dead letter within the last hour",
        "pulse ctl jobs list --status DEAD_LETTERED",
        "When the cause is gone: pulse ctl jobs retry ID…",
    )


def waits(rows: Sequence[Row], _grace_s: float) -> Finding:
    """Jobs that have waited for a day for what has no time of its own: other jobs, or a signal."""
    first = next((row for row in rows if row["signal"] is not None), None)
    advice = f"pulse ctl jobs why {_example(rows)}"
    if first is not None:
        name = shell_word(first["signal"])
        advice += f"; to send it: pulse ctl jobs signal {first['job']} {name}; wait_for with timeout_s ends by itself"
    return verdict_of(
        "waits", [], list(list_some([_waiting(row) for row in rows])), "no job has waited for others for a day", advice
    )


def outbox(rows: Sequence[Row], _grace_s: float, *, home: str = DEFAULT) -> Finding:
    """Ends of jobs that no broker has got for ten minutes."""
    idle = [_unpublished(row) + ", and nothing publishes them" for row in rows if not row["is_taken"]]
    taken = [_unpublished(row) + ", though something publishes them" for row in rows if row["is_taken"]]
    topic = shell_word(rows[0]["topic"]) if rows else "TOPIC"
    return verdict_of(
        "outbox",
        list(list_some(idle)),
        list(list_some(taken)),
        "no end of a job waits for a broker",
        *(["pulse bridge nats-outbox"] if idle else []),
        *(["Its log says why, as outbox_publish_failed: it is behind, or the broker refuses them."] if taken else []),
        f"If nobody wants them: pulse ctl topics set {topic} --no-publish, then delete its rows in {home}.outbox.",
    )


def hosts(rows: Sequence[Row], grace_s: float) -> Finding:
    """Hosts that are not there any more."""
    longest_s = max(grace_s, UNSEEN_S)
    gone = [row for row in rows if row["age_s"] >= longest_s]
    wrong = [
        f"{_host(row)}, and holds {_jobs(row['running'])}{_of(row)}{_taken(row)}" for row in gone if row["running"]
    ]
    quiet = [_host(row) + _taken(row) for row in gone if not row["running"] and row["lapsed"]]
    there = len(rows) - len(gone)
    return verdict_of(
        "hosts",
        list(list_some(wrong)),
        list(list_some(quiet)),
        f"hosts that are there: {there}",
        "Is the machine up? Start pulse-supervisor there again.",
        "What it held is tried elsewhere, by itself, when its leases have ended.",
        "If it was stopped for good, ignore this: after a day it disappears.",
    )


def _host(row: Row) -> str:
    return f"host {row['host']} was last seen {shown_s(row['age_s'])} ago"


def _of(row: Row) -> str:
    """Of which workers: their names say more than the id of a host that nobody named."""
    names: Sequence[str] = row["workers"]
    return f", of {'worker' if len(names) == 1 else 'workers'} {', '.join(map(one_line, names))}" if names else ""


def _taken(row: Row) -> str:
    lapsed = row["lapsed"]
    were = "was" if lapsed == 1 else "were"
    return f"; {lapsed:,} of its attempts {were} taken back, as lapsed leases" if lapsed else ""


def _waiting(row: Row) -> str:
    what = "for other jobs" if row["signal"] is None else f"for signal {row['signal']!r}"
    jobs = f"{_jobs(row['jobs'])} named {row['name']!r}"
    return f"topic {row['topic']!r}: {jobs} waiting {what}, the oldest, {row['job']}, for {shown_s(row['age_s'])}"


def _unpublished(row: Row) -> str:
    ends = f"{row['ends']:,} end{'' if row['ends'] == 1 else 's'}{' or more' if row['ends'] >= MOST_ENDS else ''}"
    return f"topic {row['topic']!r}: {ends} of jobs in the outbox, the oldest for {shown_s(row['age_s'])}"


def _topics(number: int) -> str:
    return f"{number:,} {'topic has' if number == 1 else 'topics have'}"


def _jobs(number: int) -> str:
    return f"{number:,} job{'' if number == 1 else 's'}"


def _pause(row: Row) -> str:
    what = f"topic {row['topic']!r}" if row["topic"] else "everything"
    by = f" by {row['paused_by']}" if row["paused_by"] else ""
    until = "until somebody resumes it" if row["left_s"] is None else f"for another {shown_s(row['left_s'])}"
    reason = f"; reason: {row['reason']}" if row["reason"] else ""
    return f"{what} was paused {shown_s(row['age_s'])} ago{by}, {until}{reason}"


def _ended(row: Row, number: int, one: str, many: str) -> str:
    words = f"{number:,} {one if number == 1 else many} within the last hour, the newest {shown_s(row['age_s'])} ago"
    error = ": " + one_line(headline(str(row["error"]))) if row["error"] else ""
    return f"handler {row['name']!r} of topic {row['topic']!r}: {words}{error}"


def _crashed(row: Row) -> str:
    are = "is a dead letter" if row["jobs_dead"] == 1 else "are dead letters"
    dead = f"; {_jobs(row['jobs_dead'])} of it {are} now" if row["jobs_dead"] else ""
    return _ended(row, row["attempts"], "crash", "crashes") + dead


def _endless(row: Row) -> str:
    first = "has run" if row["jobs"] == 1 else "run, the first one"
    what = f"handler {row['name']!r} of topic {row['topic']!r}: {_jobs(row['jobs'])}"
    return f"{what} {first} for {shown_s(row['age_s'])}, and no timeout_s or stall_s would end it"


def _is_hung(row: Row) -> bool:
    """Whether more than a limit that did its work."""
    return bool(row["outcome"] == "lease_expired" or row["killed"] or row["attempts"] >= MANY_HUNG)


def _where(row: Row) -> str:
    """The worker and host whose lease lapsed: frozen, or cut off."""
    worker = str(row["worker"] or "") if row["outcome"] == "lease_expired" else ""
    host, _, rest = worker.partition("/")
    return f" (worker {rest.rpartition('/')[2]} of host {host})" if rest else ""


def _example(rows: Sequence[Row]) -> str:
    """An id that can be copied, of the first one listed."""
    return str(rows[0]["job"]) if rows else "ID"
