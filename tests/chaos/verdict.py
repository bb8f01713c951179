"""
What must hold between a ledger and the database; pure, so that a test can break each rule.

A *duplicate* is work that is done again: an attempt whose handler ended, and after which another one started.
Delivery is at-least-once, so there may be some; each must be explained by a reap: a way in which pulse itself ended the
attempt, which is in the history. Only three do: a lease that lapsed before the result was committed, and the end of the
process that was to report it (``crashed``, ``released``). The last two are checked against the ledger: a process that
wrote a line after the next attempt had started was there to report.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final
from uuid import UUID

from tests.chaos.load.ledger import LIMITED_TOPIC, MOST, MOST_OF_A_GROUP, ORDERED_TOPIC, Line

Pair = tuple[UUID, int]

TERMINAL: Final = frozenset({"COMPLETED", "DEAD_LETTERED", "CANCELED"})
FAILED: Final = frozenset({"DEAD_LETTERED", "CANCELED"})
# After these a slot is free while the handler may still run, until it obeys.
FREES_EARLY: Final = frozenset({"lease_expired", "canceled", "timeout", "stalled"})
# How pulse ends an attempt by itself; what the handler says of it then changes nothing.
REAPS: Final = frozenset({"crashed", "lease_expired", "released", "timeout", "stalled", "canceled"})
# Those that may lose the result of work that was done: the others end handlers that went on after their cancel.
LOSSES: Final = frozenset({"crashed", "lease_expired", "released"})
DEATHS: Final = frozenset({"crashed", "released"})  # of finished work: that its process has ended
# Jobs that never fail by themselves: when such a one is dead, others have killed it.
INNOCENT: Final = frozenset(
    {"short", "limited", "unique", "child", "long", "busy", "later", "tick", "hold", "grip", "forks", "gathered"}
)
DEADLY: Final = frozenset(
    {"deadly", "fatal"}
)  # all others never end their process, so deaths must not end them for good
MAX_CRASHES: Final = 3  # the server's, which no handler but the deadly ones has of its own
# Handlers that come to their end without having succeeded: what they return asks for another try, or cannot be stored.
RETURNS: Final = {"later": "snoozed", "wicked": "error"}
# What the handler wrote as its end, and the outcome that its report becomes.
TOLD: Final = {"Snooze": "snoozed", "RetryAfter": "retry", "Discard": "discarded"}


@dataclass(frozen=True, slots=True)
class Row:
    """A job as the database has it in the end; ``told_by``: the attempt whose result it keeps."""

    status: str
    attempts: int
    name: str
    is_scheduled: bool = False
    told_by: int | None = None


@dataclass(frozen=True, slots=True)
class Database:
    """
    What the database and its audit say.

    Attributes:
        history: Outcome of each attempt that did not simply succeed.
        claims: Every attempt that was ever claimed; what starts and is not among them is wrong.
        revived: Terminal attempts after which an operator started the job anew.
        processes: Pid and start time of the worker process of each attempt in the history.
        strikes: How often the nemesis has ended processes that run jobs.
        dark_s: Host -> from when until when it was cut off, or felt that (monotonic).
    """

    jobs: Mapping[UUID, Row]
    history: Mapping[Pair, str] = field(default_factory=dict)
    claims: frozenset[Pair] = frozenset()
    revived: frozenset[Pair] = frozenset()
    processes: Mapping[Pair, tuple[int, int]] = field(default_factory=dict)
    strikes: int = 0
    dark_s: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """*wrong*: rule -> what breaks it; *duplicates*: each job that was done twice, its attempt, and its reap."""

    wrong: Mapping[str, Sequence[str]]
    counts: Mapping[str, int]
    duplicates: Mapping[Pair, str]

    @property
    def is_good(self) -> bool:
        return not self.wrong


def judge(lines: Sequence[Line], database: Database) -> Verdict:
    book = _Book(lines)
    duplicates = {pair: database.history.get(pair, "") for pair in book.finished if _is_duplicate(pair, book, database)}
    rules = {
        "I1 no acked job is lost": _lost(book, database),
        "I2 nothing unexpected is there": _unexpected(book, database),
        "I5 an attempt starts once": (
            f"{_name(pair)} started {count} times" for pair, count in book.starts.items() if count > 1
        ),
        "I9 only what was claimed starts": _unclaimed(book, database),
        "I16 jobs are conserved": _conserved(book, database),
        "I17 what is COMPLETED was run, by that attempt": _not_run(book, database),
        "I18 no two attempts of a job at the same time": _overlaps(book, database),
        "no attempt starts after a later one": _started_late(book),
        "each end in the history is what happened": _misreported(book, database),
        "each end is on record": _unrecorded(book, database),
        "who is said to have died writes nothing more": _risen(book, database),
        "no neighbour's death is the end of a job": _killed_by_others(book, database),
        "each duplicate is explained by a reap": (
            f"{_name(pair)} came to its end, and is {reap or 'unknown'} in the history"
            for pair, reap in duplicates.items()
            if reap not in LOSSES
        ),
        "no more of a limit run than it allows": _over_limit(book, database),
        "the jobs of a sequence run in their order": _out_of_order(book, database),
        "a unique key has one job": _sharing_keys(book, database),
        "a job starts after those that it waits for": _too_early(book, database),
        "a failed job cancels those that wait for it": _not_told(book, database),
        "nothing is left to do": _left(database),
    }
    wrong = {rule: found for rule, violations in rules.items() if (found := list(violations))}
    return Verdict(wrong, _counts(book, database, duplicates), duplicates)


class _Book:
    def __init__(self, lines: Sequence[Line]) -> None:
        self.intents = {line.job for line in lines if line.act == "intent"}
        facts = {line.job: line.facts for line in lines if line.act == "intent" and line.facts}
        self.limited = {job: one["group_key"] for job, one in facts.items() if one.get("topic") == LIMITED_TOPIC}
        self.ordered = {job: one["group_key"] for job, one in facts.items() if one.get("topic") == ORDERED_TOPIC}
        self.keys = {job: one["unique"] for job, one in facts.items() if "unique" in one}
        self.until_end = {job for job, one in facts.items() if one.get("unique_until") == "end"}
        self.after = {job: [UUID(parent) for parent in one["after"]] for job, one in facts.items() if "after" in one}
        self.canceled_with = {job for job, one in facts.items() if one.get("on_failure") == "cancel"}
        self.not_new = {line.job: UUID(line.facts["other"]) for line in lines if line.act == "not_new"}
        self.acked = {line.job for line in lines if line.act == "acked"}
        started = [line for line in lines if line.act == "start"]
        self.starts = Counter((line.job, line.attempt) for line in started)
        self.begun = {(line.job, line.attempt): line for line in started}
        self.ends = {(line.job, line.attempt): line for line in lines if line.act == "end"}
        self.overlaps = [line for line in lines if line.act == "overlap"]
        self.finished = {pair for pair, line in self.ends.items() if line.facts.get("how") == "ok"}
        self.last_s: dict[tuple[int, int], float] = {}  # of each process: its last line
        for line in lines:
            self.last_s[line.process] = max(line.at_s, self.last_s.get(line.process, line.at_s))
        self.attempts: dict[UUID, list[int]] = defaultdict(list)
        for job, attempt in self.starts:
            self.attempts[job].append(attempt)

    def next_start(self, pair: Pair) -> Line | None:
        later = [attempt for attempt in self.attempts[pair[0]] if attempt > pair[1]]
        return self.begun[pair[0], min(later)] if later else None

    def end_s(self, pair: Pair) -> float:
        """When its handler ended; of one that came to no end, when its process wrote last."""
        end = self.ends.get(pair)
        return self.last_s[self.begun[pair].process] if end is None else end.at_s


def _lost(book: _Book, database: Database) -> Iterator[str]:
    yield from (f"{job} was acknowledged and is not there" for job in book.acked - database.jobs.keys())


def _unexpected(book: _Book, database: Database) -> Iterator[str]:
    for job, row in database.jobs.items():
        if not row.is_scheduled and job not in book.intents:
            yield f"{job} ({row.name}) was never submitted"


def _conserved(book: _Book, database: Database) -> Iterator[str]:
    rows = sum(not row.is_scheduled for row in database.jobs.values())
    present = sum(job in database.jobs for job in book.intents - book.acked)
    if len(book.acked) + present != rows:
        yield f"{len(book.acked)} acknowledged and {present} others that are there, and {rows} rows"


def _unclaimed(book: _Book, database: Database) -> Iterator[str]:
    for pair in book.starts:
        row = database.jobs.get(pair[0])
        if row is None or pair[1] > row.attempts:
            yield f"{_name(pair)} started, and the row has {row.attempts if row else 'no'} attempts"
        elif pair not in database.claims:
            yield f"{_name(pair)} started, and was never claimed"


def _not_run(book: _Book, database: Database) -> Iterator[str]:
    for job, row in database.jobs.items():
        if row.status != "COMPLETED":
            continue
        if (job, row.attempts) not in book.finished:
            yield f"{_name((job, row.attempts))} ({row.name}) did not come to its end"
        elif row.told_by not in {None, row.attempts}:
            yield f"{_name((job, row.attempts))} ({row.name}) has the result of attempt {row.told_by}"


def _overlaps(book: _Book, database: Database) -> Iterator[str]:
    for line in book.overlaps:
        yield f"{_name((line.job, line.attempt))} started in {line.pid} while {line.facts.get('other')} ran that job"
    for earlier, end, start in _beside(book):
        if not _is_cut_off(earlier, start, book, database):
            over_s = end.at_s - start.at_s
            yield f"{_name((start.job, start.attempt))} started {over_s:.3f} s before attempt {earlier[1]} ended"


def _beside(book: _Book) -> Iterator[tuple[Pair, Line, Line]]:
    """Each attempt that ended after the next one had started, its end, and that start."""
    for job, attempts in book.attempts.items():
        for earlier, later in pairwise(sorted(attempts)):
            end, start = book.ends.get((job, earlier)), book.begun[job, later]
            if end is not None and end.at_s > start.at_s:
                yield (job, earlier), end, start


def _is_cut_off(pair: Pair, start: Line, book: _Book, database: Database) -> bool:
    """
    Whether *pair* may still have run when the next attempt started.

    That was on another host, its own one was cut off, and its lease had lapsed. What it reports is stale then: I17.
    """
    host = book.begun[pair].host
    is_dark = any(from_s <= start.at_s <= until_s for from_s, until_s in database.dark_s.get(host, ()))
    return is_dark and start.host != host and database.history.get(pair) == "lease_expired"


def _started_late(book: _Book) -> Iterator[str]:
    """What has no lease any more starts nothing."""
    for job, attempts in book.attempts.items():
        for earlier, later in pairwise(sorted(attempts)):
            late_s = book.begun[job, earlier].at_s - book.begun[job, later].at_s
            if late_s > 0:
                yield f"{_name((job, earlier))} started {late_s:.3f} s after attempt {later}"


def _over_limit(book: _Book, database: Database) -> Iterator[str]:
    for at_s, group, running in _starts(book, database, book.limited):
        if running[group] > MOST_OF_A_GROUP or running.total() > MOST:
            yield f"{running[group]} of group {group} and {running.total()} in all run at {at_s:.3f} s"
    for at_s, group, running in _starts(book, database, book.ordered):
        if running[group] > 1:
            yield f"{running[group]} of sequence {group} run at {at_s:.3f} s"


def _starts(book: _Book, database: Database, groups: Mapping[UUID, str]) -> Iterator[tuple[float, str, Counter[str]]]:
    """
    Each start of a job that has a group, and how many of each run then.

    By handlers, which run for less time than their rows.
    """
    moves: list[tuple[float, int, str]] = []
    for pair, line in book.begun.items():
        group, end_s = groups.get(pair[0]), book.end_s(pair)
        if group is not None and end_s > line.at_s and database.history.get(pair) not in FREES_EARLY:
            moves += [(line.at_s, 1, group), (end_s, -1, group)]
    running: Counter[str] = Counter()
    for at_s, change, group in sorted(moves):  # ends come first
        running[group] += change
        if change > 0:
            yield at_s, group, running


def _out_of_order(book: _Book, database: Database) -> Iterator[str]:
    """In the order of the submits; what an operator has started anew runs when it may."""
    revived = {job for job, _ in database.revived}
    over_s: dict[str, float] = {}
    for job, group in book.ordered.items():
        pairs = [(job, attempt) for attempt in book.attempts.get(job, ())]
        if job in revived or not pairs:
            continue
        start_s = min(book.begun[pair].at_s for pair in pairs)
        if start_s < over_s.get(group, start_s):
            yield f"{job} of sequence {group} started {over_s[group] - start_s:.3f} s before an earlier one was over"
        over_s[group] = max(over_s.get(group, 0.0), _over_s(book, database, job))


def _over_s(book: _Book, database: Database, job: UUID) -> float:
    """When the handlers of its attempts had ended; those that may outlast their attempt count from their start."""
    pairs = [(job, attempt) for attempt in book.attempts.get(job, ())]
    ends_s = (
        book.begun[pair].at_s if database.history.get(pair) in FREES_EARLY else book.end_s(pair) for pair in pairs
    )
    return max(ends_s, default=0.0)


def _too_early(book: _Book, database: Database) -> Iterator[str]:
    """What an operator has started anew waits for nothing that has ended, and nothing waits for it again."""
    revived = {job for job, _ in database.revived}
    for child, parents in book.after.items():
        starts_s = [book.begun[child, attempt].at_s for attempt in book.attempts.get(child, ())]
        for parent in parents:
            if (
                starts_s
                and not revived & {child, parent}
                and (over_s := _over_s(book, database, parent)) > min(starts_s)
            ):
                yield f"{child} started {over_s - min(starts_s):.3f} s before {parent} was over, for which it waits"


def _not_told(book: _Book, database: Database) -> Iterator[str]:
    revived = {job for job, _ in database.revived}
    for child in book.canceled_with - revived:
        failed = [
            parent
            for parent in book.after[child]
            if parent not in revived and (row := database.jobs.get(parent)) is not None and row.status in FAILED
        ]
        row = database.jobs.get(child)
        if failed and row is not None and row.status == "COMPLETED":
            yield f"{child} is {row.status}, although {failed[0]} has failed, for which it waited"


def _sharing_keys(book: _Book, database: Database) -> Iterator[str]:
    for job, other in book.not_new.items():
        if job in database.jobs:
            yield f"{job} is there, and its submit was told that {other} has its key"
        elif other not in database.jobs or book.keys.get(other) != book.keys[job]:
            yield f"{job} was not stored for {other}, which has not the key {book.keys[job]}"
    revived = {job for job, _ in database.revived}  # their key may be another's
    kept = {job: key for job, key in book.keys.items() if job in book.until_end and job not in revived}
    for at_s, key, running in _starts(book, database, kept):
        if running[key] > 1:
            yield f"{running[key]} with the key {key} run at {at_s:.3f} s"


def _misreported(book: _Book, database: Database) -> Iterator[str]:
    for pair, line in book.ends.items():
        outcome, how = database.history.get(pair), str(line.facts.get("how"))
        if outcome is None or outcome in REAPS:
            continue
        if outcome != _wanted(how, database.jobs.get(pair[0])):
            yield f"{_name(pair)} ended with {how}, and is {outcome} in the history"
    for pair in database.history.keys() & book.starts.keys() - book.ends.keys():
        if database.history[pair] not in REAPS:
            yield f"{_name(pair)} never ended, and is {database.history[pair]} in the history"


def _wanted(how: str, row: Row | None) -> str | None:
    """The outcome of an end that is no reap; None: the job is COMPLETED, and has no history."""
    if how == "ok":
        return RETURNS.get(row.name) if row is not None else None
    return next((told for word, told in TOLD.items() if how.startswith(word)), "error")


def _unrecorded(book: _Book, database: Database) -> Iterator[str]:
    for pair, line in book.ends.items():
        row = database.jobs.get(pair[0])
        if row is None or pair in database.history or pair in database.revived or pair[1] != row.attempts:
            continue  # with a later attempt: it is a duplicate, or failed and the tables' own check has it
        if row.status != "COMPLETED":
            yield f"{_name(pair)} ({row.name}) ended with {line.facts.get('how')}, and the job is just {row.status}"


def _risen(book: _Book, database: Database) -> Iterator[str]:
    for pair, outcome in database.history.items():
        if outcome not in DEATHS or (outcome == "released" and pair not in book.finished):
            continue  # a worker that drains interrupts, gives back, and lives on for a while
        start, begun = book.next_start(pair), book.begun.get(pair)
        if start is None or begun is None:
            continue
        after_s = book.last_s[begun.process] - start.at_s
        if after_s >= 0:
            wrote = f"process {begun.pid} wrote a line {after_s:.3f} s after attempt {start.attempt} had begun"
            yield f"{_name(pair)} is {outcome}, and {wrote}"


def _killed_by_others(book: _Book, database: Database) -> Iterator[str]:
    for job, row in database.jobs.items():
        last = job, row.attempts
        is_killed = row.status == "DEAD_LETTERED" and database.history.get(last) == "crashed"
        has_expired = database.history.get((job, 0)) == "expired"  # before it was tried again
        if not is_killed or has_expired or row.name in DEADLY:
            continue
        if neighbour := _deadly_beside(last, book, database):
            yield f"{_name(last)} ({row.name}) is dead of crashes, and {_name(neighbour)} died in the same process"
        elif database.strikes < MAX_CRASHES:  # else the nemesis may have hit it that often
            yield f"{_name(last)} ({row.name}) never ends its process, and is dead of crashes"


def _deadly_beside(pair: Pair, book: _Book, database: Database) -> Pair | None:
    """An attempt that ended the worker process of *pair*: it began in it, and has no end."""
    process = database.processes.get(pair)
    return next(
        (
            other
            for other, line in book.begun.items()
            if line.process == process
            and other not in book.ends
            and other != pair
            and (row := database.jobs.get(other[0])) is not None
            and row.name in DEADLY
        ),
        None,
    )


def _left(database: Database) -> Iterator[str]:
    yield from (
        f"{job} ({row.name}) is {row.status}" for job, row in database.jobs.items() if row.status not in TERMINAL
    )


def _is_duplicate(pair: Pair, book: _Book, database: Database) -> bool:
    """Whether an attempt ended, should have been the last, and was not."""
    outcome, row = database.history.get(pair), database.jobs.get(pair[0])
    if pair in database.revived or (outcome is not None and outcome == _wanted("ok", row)):
        return False
    return book.next_start(pair) is not None


def _counts(book: _Book, database: Database, duplicates: Mapping[Pair, str]) -> dict[str, int]:
    statuses = Counter(row.status for row in database.jobs.values())
    reaps = Counter(outcome for outcome in database.history.values() if outcome in REAPS)
    return {
        "submitted": len(book.intents), "acked": len(book.acked),
        "scheduled": sum(row.is_scheduled for row in database.jobs.values()), "completed": statuses["COMPLETED"],
        "dead": statuses["DEAD_LETTERED"],
        "innocents dead": sum(row.name in INNOCENT and row.status == "DEAD_LETTERED" for row in database.jobs.values()),
        "canceled": statuses["CANCELED"], "started": sum(book.starts.values()), "duplicates": len(duplicates),
        **({"overlaps": overlaps} if (overlaps := sum(1 for _ in _beside(book))) else {}),
        **{f"reaped: {outcome}": count for outcome, count in sorted(reaps.items())},
    }  # fmt: skip


def _name(pair: Pair) -> str:
    return f"{pair[0]} attempt {pair[1]}"
