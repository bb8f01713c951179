"""Histories for the checker: lives of jobs as the store makes them, and every way to break one by hand."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from pulse.common.ids import uuid7
from pulse.store.rows import Completion, Ending, EndingKind, Fence, Firing, NewSchedule, to_us
from pulse.store.store import Store
from tests.store.helpers import LEASE_S, at, fence, job

STEP_S: Final = 100.0  # longer than any back-off here
# What happens to each job, one attempt after the other; None: it is claimed, and still runs.
LIVES: Final[dict[str, tuple[EndingKind | str | None, ...]]] = {
    "pending": (),
    "running": (None,),
    "completed": ("complete",),
    "completed_late": (EndingKind.ERROR, EndingKind.CRASHED, EndingKind.RELEASED, "complete"),
    "retrying": (EndingKind.ERROR,),
    "told_when": (EndingKind.RETRY,),
    "spent": (EndingKind.ERROR, EndingKind.TIMEOUT),
    "discarded": (EndingKind.DISCARDED,),
    "crashing": (EndingKind.CRASHED,),
    "crashed": (EndingKind.CRASHED, EndingKind.RELEASED, EndingKind.CRASHED, EndingKind.CRASHED),
    "given_back": (EndingKind.RELEASED,),
    "snoozed": (EndingKind.STALLED, EndingKind.SNOOZED),
    "unassigned": (EndingKind.UNASSIGNED, EndingKind.UNASSIGNED),
    "lapsed": (EndingKind.LEASE_EXPIRED,),
    "silent": (EndingKind.SILENT,),
    "canceled": (None, "cancel"),
    "canceled_waiting": ("cancel",),
    "revived": (EndingKind.ERROR, EndingKind.ERROR, "revive", "complete", "revive", EndingKind.ERROR),
}
LASTS_S: Final = {EndingKind.LEASE_EXPIRED: LEASE_S + 1}
_clock = itertools.count(1)


def ending(held: Fence, kind: EndingKind) -> Ending:
    """An end of that kind, as the actors write it."""
    exit_code = -9 if kind in {EndingKind.CRASHED, EndingKind.SILENT} else None
    return Ending(*held, kind, "why", delay_s=7.0 if kind is EndingKind.RETRY else None, exit_code=exit_code)


async def live(store: Store, name: str) -> bytes:
    """Let a job on a topic of its own have that life; its id."""
    submitted_s = STEP_S * next(_clock)
    new = job(topic=name, max_attempts=2)
    await store.submit([new], now=at(submitted_s))
    assert new.id is not None
    for act in LIVES[name]:
        now = at(STEP_S * next(_clock))
        if act == "cancel":
            assert await store.cancel([new.id], now=now)
        elif act == "revive":
            assert await store.retry([new.id], now=now)
        else:
            [claimed] = await store.claim([name], ["w1"], [0], LEASE_S, now=now)
            if act == "complete":
                assert await store.complete([Completion(*fence(new.id, claimed.attempt), None)], now=now)
            elif isinstance(act, EndingKind):
                assert await store.end(
                    [ending(fence(new.id, claimed.attempt), act)], now=now + timedelta(seconds=LASTS_S.get(act, 1.0))
                )
    return new.id


async def live_all(store: Store) -> dict[str, str]:
    """Every life, a schedule that fired twice, some that were set back, and a pause; ids as text, by name."""
    ids = {name: str(UUID(bytes=await live(store, name))) for name in LIVES}
    await store.gate.pause("pending", None)
    await store.gate.resume("pending")
    schedule = uuid7().bytes
    moments = [at(1_000_000.0 + number) for number in range(3)]
    await store.schedules.create(NewSchedule(schedule, "n", "every", "{}", moments[0], every_s=1.0))
    for cursor, following in itertools.pairwise(moments):
        await store.schedules.fire([Firing(schedule, to_us(cursor), to_us(following), to_us(cursor))], now=cursor)
        for one in await store.claim(["default"], ["w1"], [0], LEASE_S, now=cursor):
            await store.complete([Completion(*fence(one.id, one.attempt), None)], now=cursor)
    for fires_again in (True, False):
        await _set_back(store, moments[0], moments[1], fires_again=fires_again)
    return {**ids, "schedule": str(UUID(bytes=schedule))}


async def _set_back(store: Store, earlier: datetime, later: datetime, *, fires_again: bool) -> None:
    """Let one that occurs once fire; then it is changed to an earlier time, and perhaps fires again."""
    schedule = uuid7().bytes
    await store.schedules.create(NewSchedule(schedule, "n", "at", "{}", later, run_at=later))
    await store.schedules.fire([Firing(schedule, to_us(later), None, to_us(later))], now=later)
    changed = NewSchedule(schedule, "n", "at", "{}", earlier, run_at=earlier)
    assert await store.schedules.update(changed, 0, moved=True)
    if fires_again:
        again = Firing(schedule, to_us(earlier), None, to_us(earlier), revision=1)
        assert await store.schedules.fire([again], now=later)


@dataclass(frozen=True, slots=True)
class Wrong:
    """
    Something that must not be.

    Attributes:
        check: Who notices.
        sql: How it comes to be; ids stand in it by name.
        who: Of which job or other thing it is told.
        says: What is told of it, a part.
    """

    check: str
    sql: str
    who: str
    says: str = ""

    def __str__(self) -> str:
        return f"{self.check}-{self.who}"


def column(check: str, who: str, assignments: str, says: str = "") -> Wrong:
    """A row of pulse.jobs that somebody has changed."""
    return Wrong(check, f"UPDATE pulse.jobs SET {assignments} WHERE id = '{{{who}}}'", who, says)


def history(check: str, who: str, sql: str, says: str = "") -> Wrong:
    """A history that somebody has changed."""
    return Wrong(check, f"{sql} WHERE job_id = '{{{who}}}'", who, says)


GUARDS: Final = [
    Wrong(
        "guards",
        "ALTER TABLE pulse.jobs DROP CONSTRAINT jobs_lease",
        "jobs_lease",
        "constraint of pulse.jobs is missing",
    ),
    Wrong("guards", "DROP INDEX pulse.idx_jobs_claim", "idx_jobs_claim", "index of pulse.jobs is missing"),
    Wrong("guards", "ALTER TABLE pulse.attempts DROP CONSTRAINT attempts_pkey", "attempts_pkey", "missing"),
    Wrong(
        "guards",
        "ALTER TABLE pulse.jobs DROP CONSTRAINT jobs_args;"
        "ALTER TABLE pulse.jobs ADD CONSTRAINT jobs_args CHECK (jsonb_typeof(args) = 'object') NOT VALID",
        "jobs_args",
        "not valid",
    ),
    Wrong(
        "guards",
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'pulse.idx_jobs_running'::regclass",
        "idx_jobs_running",
        "not valid",
    ),
    Wrong(
        "guards", "DROP TRIGGER topics_changed ON pulse.topics", "topics_changed", "trigger of pulse.topics is missing"
    ),
    Wrong("guards", "ALTER TABLE pulse.dispatch_control DISABLE TRIGGER USER", "gate_opened", "is disabled"),
    Wrong(
        "guards", "DROP FUNCTION pulse.delete_schedule", "delete_schedule", "function pulse.delete_schedule is missing"
    ),
    Wrong("guards", "ALTER TABLE pulse.topics ENABLE REPLICA TRIGGER topics_changed", "topics_changed", "is disabled"),
    Wrong("anchors", "DELETE FROM pulse.topics", "pulse.topics", "missing"),
    Wrong("anchors", "DELETE FROM pulse.dispatch_control WHERE topic = ''", "pulse.dispatch_control", "missing"),
    Wrong("anchors", "DELETE FROM pulse.sweep_mark", "pulse.sweep_mark", "missing"),
    Wrong("anchors", "DELETE FROM pulse.retention_mark", "pulse.retention_mark", "missing"),
]
ROWS: Final = [
    column("leases", "pending", "locked_by = 'w'", "PENDING, locked_by w, lease_until NULL"),
    column("leases", "completed", "lease_until = now()", "COMPLETED, locked_by NULL"),
    column("leases", "running", "locked_by = NULL", "RUNNING, locked_by NULL"),
    column("leases", "running", "lease_until = NULL", "lease_until NULL"),
    column("counters", "pending", "uncharged = -1", "uncharged -1"),
    column("counters", "retrying", "uncharged = 2", "attempts 1, uncharged 2"),
    column("counters", "running", "crashes = -1", "crashes -1"),
    column("counters", "retrying", "crashes = 1", "uncharged 0, crashes 1"),
    column("counters", "retrying", "started_at = NULL", "started_at NULL"),
    column("counters", "pending", "started_at = now()", "attempts 0"),
    column("counters", "completed", "completed_at = NULL", "completed_at NULL"),
    column("counters", "retrying", "completed_at = now()", "RETRYING"),
    column("counters", "running", "uncharged = 1", "RUNNING, attempts 1, uncharged 1"),
    column("counters", "completed", "uncharged = 1", "COMPLETED"),
    column("counters", "retrying", "status = 'PENDING'", "PENDING, attempts 1, uncharged 0"),
    column("counters", "given_back", "status = 'RETRYING'", "RETRYING, attempts 1, uncharged 1"),
    column("budgets", "retrying", "max_attempts = 1", "RETRYING, attempts 1, uncharged 0, max_attempts 1"),
    column("budgets", "pending", "attempts = 2", "PENDING"),
    column("budgets", "spent", "attempts = 3", "DEAD_LETTERED, attempts 3"),
    column("budgets", "running", "attempts = 3", "RUNNING, attempts 3"),
    column("dead-letters", "spent", "last_error = ''", "last_error ''"),
    column("dead-letters", "discarded", "last_error = NULL", "last_error NULL"),
    column(
        "dead-letters", "spent", "max_attempts = 3", "attempts 2, uncharged 0, max_attempts 3, last outcome timeout"
    ),
    history("dead-letters", "discarded", "UPDATE pulse.attempts SET outcome = 'error'", "last outcome error"),
    history("dead-letters", "crashed", "DELETE FROM pulse.attempts", "last outcome unknown"),
    history("history", "retrying", "DELETE FROM pulse.attempts", "in the history 0 charged"),
    history("history", "retrying", "UPDATE pulse.attempts SET outcome = 'released'", "0 charged, 1 uncharged"),
    history("history", "crashing", "UPDATE pulse.attempts SET outcome = 'released'", "crashes 1, in the history"),
    Wrong(
        "history", "UPDATE pulse.attempts SET attempt = 3 WHERE attempt = 2 AND job_id = '{spent}'", "spent", "newest 3"
    ),
    Wrong(
        "history",
        "INSERT INTO pulse.attempts (job_id, attempt, outcome) VALUES ('{running}', 1, 'error')",
        "running",
        "RUNNING, attempts 1",
    ),
    Wrong(
        "history",
        "INSERT INTO pulse.attempts (job_id, attempt, outcome) VALUES ('{completed}', 1, 'error')",
        "completed",
        "COMPLETED",
    ),
    column("lapsed", "running", "lease_until = clock_timestamp() - interval '61 s'", "attempt 1"),
    Wrong(
        "occurrences",
        "INSERT INTO pulse.jobs (id, name, topic, max_attempts, schedule_id, occurrence) "
        "SELECT gen_random_uuid(), name, topic, 1, schedule_id, occurrence FROM pulse.jobs "
        "WHERE schedule_id = '{schedule}' ORDER BY occurrence LIMIT 1",
        "schedule",
        "2 jobs for the occurrence",
    ),
    Wrong(
        "occurrences",
        "UPDATE pulse.schedules SET next_run_at = last_run_at WHERE kind = 'every'",
        "schedule",
        "the cursor stands at",
    ),
    Wrong(
        "occurrences",
        "UPDATE pulse.schedules SET last_run_at = last_run_at - interval '1 s' WHERE kind = 'every'",
        "schedule",
        "the cursor stands at",
    ),
    Wrong(
        "occurrences",
        "DELETE FROM pulse.jobs j USING pulse.schedules s "
        "WHERE s.kind = 'every' AND j.schedule_id = s.id AND j.occurrence = s.last_run_at",
        "schedule",
        "no job for the occurrence",
    ),
    Wrong(
        "late-schedules",
        "UPDATE pulse.schedules SET next_run_at = clock_timestamp() - interval '61 s' WHERE kind = 'every'",
        "schedule",
        "due since",
    ),
]
RECORD: Final = [
    Wrong(
        "record",
        "ALTER TABLE pulse.jobs DISABLE TRIGGER pulse_audit_changes;"
        "UPDATE pulse.jobs SET next_run_at = now() WHERE id = '{pending}'",
        "pending",
        "not as change",
    ),
    Wrong(
        "record",
        "ALTER TABLE pulse.jobs DISABLE TRIGGER pulse_audit_rows; DELETE FROM pulse.jobs WHERE id = '{completed}'",
        "completed",
        "not as change",
    ),
    Wrong(
        "record",
        "DELETE FROM pulse_audit.changes WHERE id = '{retrying}' AND new_status = 'RUNNING'",
        "retrying",
        "begins at RUNNING, attempts 1",
    ),
    Wrong("kept", "DELETE FROM pulse.jobs WHERE id = '{retrying}'", "retrying", "while RETRYING"),
    column("unchanged", "pending", "args = '{{\"a\": 1}}'"),
    column("unchanged", "running", "topic = 'other'"),
    column("tokens", "running", "attempts = 2", "attempts 1 to 2"),
    column("tokens", "retrying", "attempts = 0", "RETRYING to RETRYING, attempts 1 to 0"),
    column("tokens", "pending", "status = 'RUNNING', locked_by = 'w', lease_until = now()", "attempts 0 to 0"),
    Wrong(
        "tokens",
        "INSERT INTO pulse.jobs (id, name, topic, max_attempts, attempts) VALUES ('{schedule}', 'n', 't', 1, 1)",
        "schedule",
        "new to PENDING, attempts 0 to 1",
    ),
    Wrong(
        "claims",
        "UPDATE pulse.jobs SET status = 'PENDING', attempts = 0, locked_by = NULL WHERE id = '{running}';"
        "UPDATE pulse.jobs SET status = 'RUNNING', attempts = 1, locked_by = 'w2' WHERE id = '{running}'",
        "running",
        "attempt 1 was claimed 2 times",
    ),
    column("moves", "pending", "status = 'COMPLETED'", "PENDING to COMPLETED"),
    column("moves", "completed", "status = 'RETRYING'", "COMPLETED to RETRYING"),
    column("moves", "canceled", "status = 'RUNNING'", "CANCELED to RUNNING"),
    Wrong(
        "moves",
        "INSERT INTO pulse.jobs (id, name, topic, max_attempts, status) VALUES ('{schedule}', 'n', 't', 1, 'RETRYING')",
        "schedule",
        "new to RETRYING",
    ),
    column("final", "completed", "next_run_at = now()", "COMPLETED to COMPLETED"),
    column("final", "spent", "status = 'PENDING', uncharged = 1", "DEAD_LETTERED to PENDING, attempts 2, uncharged 1"),
    column("final", "spent", "status = 'PENDING', attempts = 0, uncharged = 0", "attempts 0"),
    column("final", "crashed", "status = 'PENDING', uncharged = attempts", "crashes 3"),
    column("final", "completed", "status = 'CANCELED'", "COMPLETED to CANCELED"),
    column("charges", "running", "status = 'RETRYING', uncharged = 2", "uncharged 0 to 2"),
    column("charges", "running", "status = 'DEAD_LETTERED', crashes = 1", "crashes 0 to 1"),
    column("charges", "running", "status = 'PENDING'", "RUNNING to PENDING, attempts 1, uncharged 0 to 0"),
    column("charges", "running", "status = 'PENDING', uncharged = 1, crashes = 1", "crashes 0 to 1"),
    column("charges", "running", "status = 'PENDING', uncharged = 1, attempts = 2", "RUNNING to PENDING, attempts 2"),
    column("charges", "running", "status = 'COMPLETED', uncharged = 1", "RUNNING to COMPLETED"),
    column("charges", "retrying", "uncharged = 1", "RETRYING to RETRYING"),
    column("charges", "crashing", "crashes = 0", "crashes 1 to 0"),
    column("endings", "running", "status = 'RETRYING'", "in the history nothing of nobody"),
    column("endings", "running", "status = 'CANCELED'", "RUNNING to CANCELED"),
    column("endings", "running", "status = 'RETRYING', uncharged = 1, crashes = 1", "nothing"),
    *(
        history("endings", who, f"UPDATE pulse.attempts SET outcome = '{outcome}'", f"{outcome} of w1")
        for who, outcome in (
            ("canceled", "error"),
            ("crashing", "released"),
            ("crashing", "error"),
            ("given_back", "crashed"),
            ("given_back", "error"),
            ("retrying", "released"),
            ("retrying", "discarded"),
            ("discarded", "error"),
            ("retrying", "canceled"),
            ("retrying", "expired"),
        )
    ),
    column("endings", "spent", "max_attempts = 3", "timeout of w1"),
    column("endings", "retrying", "max_attempts = 1", "error of w1"),
    history("endings", "retrying", "UPDATE pulse.attempts SET worker = 'w2'", "error of w2"),
    history("endings", "lapsed", "UPDATE pulse.attempts SET worker = NULL", "of nobody"),
    Wrong(
        "history-ends",
        "INSERT INTO pulse.attempts (job_id, attempt, outcome) VALUES ('{completed}', 1, 'released')",
        "completed",
        "attempt 1 is released",
    ),
    Wrong(
        "history-ends",
        "INSERT INTO pulse.attempts (job_id, attempt, outcome) VALUES ('{running}', 1, 'error')",
        "running",
        "did not end",
    ),
    column(
        "due",
        "retrying",
        "status = 'RUNNING', attempts = 2, started_at = next_run_at - interval '1 ms'",
        "attempt 2 started at",
    ),
    column("expiry", "running", "expires_at = now() - interval '1 h'", "attempt 1, started at"),
    Wrong(
        "back-off",
        "UPDATE pulse_audit.changes SET new_next_run_at = new_next_run_at + interval '1 s' "
        "WHERE id = '{retrying}' AND new_status = 'RETRYING'",
        "retrying",
        "attempt 1 (error) waits 2 s instead of 1 s",
    ),
    Wrong(
        "back-off",
        "UPDATE pulse_audit.changes SET new_next_run_at = new_next_run_at + interval '1 s' "
        "WHERE id = '{crashing}' AND new_status = 'RETRYING'",
        "crashing",
        "attempt 1 (crashed) waits 1 s instead of 0 s",
    ),
    Wrong(
        "reaps",
        "UPDATE pulse_audit.changes c SET old_lease_until = a.ended_at FROM pulse.attempts a "
        "WHERE a.job_id = c.id AND c.id = '{lapsed}' AND c.new_status = 'RETRYING'",
        "lapsed",
        "attempt 1 of w1: lease until",
    ),
    *(
        Wrong(
            "gate",
            "UPDATE pulse_audit.changes SET began = began - interval '1 h';"
            f"INSERT INTO pulse_audit.gates (at, topic, paused) VALUES (now() - interval '2 s', '{topic}', true);"
            "UPDATE pulse.jobs SET status = 'RUNNING', attempts = 1 WHERE id = '{pending}'",
            "pending",
            "on topic pending, which was paused",
        )
        for topic in ("", "pending")
    ),
]
