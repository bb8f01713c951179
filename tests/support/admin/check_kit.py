"""Histories for the checker: lives of jobs as the store makes them, and every way to break one by hand."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from pulse.common.ids import uuid7
from pulse.store.rows import Completion, Ending, EndingKind, Fence, Firing, NewSchedule, to_us
from pulse.store.store import Store
from tests.support.store.helpers import LEASE_S, at, fence, job

STEP_S: Final = 100.0  # longer than any back-off here
# What happens to each job, one attempt after the other; None: it is claimed, and still runs.
LIVES: Final[dict[str, tuple[EndingKind | str | None, ...]]] = {
    "pending": (), "running": (None,), "completed": ("complete",),
    "completed_late": (EndingKind.ERROR, EndingKind.CRASHED, EndingKind.RELEASED, "complete"),
    "retrying": (EndingKind.ERROR,), "told_when": (EndingKind.RETRY,),
    "spent": (EndingKind.ERROR, EndingKind.TIMEOUT), "discarded": (EndingKind.DISCARDED,),
    "crashing": (EndingKind.CRASHED,),
    "crashed": (EndingKind.CRASHED, EndingKind.RELEASED, EndingKind.CRASHED, EndingKind.CRASHED),
    "given_back": (EndingKind.RELEASED,), "snoozed": (EndingKind.STALLED, EndingKind.SNOOZED),
    "unassigned": (EndingKind.UNASSIGNED, EndingKind.UNASSIGNED), "lapsed": (EndingKind.LEASE_EXPIRED,),
    "silent": (EndingKind.SILENT,), "canceled": (None, "cancel"), "canceled_waiting": ("cancel",),
    "revived": (EndingKind.ERROR, EndingKind.ERROR, "revive", "complete", "revive", EndingKind.ERROR),
}  # fmt: skip
LASTS_S: Final = {EndingKind.LEASE_EXPIRED: LEASE_S + 1}
_clock = itertools.count(1)


def ending(held: Fence, kind: EndingKind) -> Ending:
    exit_code = -9 if kind in {EndingKind.CRASHED, EndingKind.SILENT} else None
    return Ending(*held, kind, "why", delay_s=7.0 if kind is EndingKind.RETRY else None, exit_code=exit_code)


async def live(store: Store, name: str) -> bytes:
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
    for _ in range(2):
        replaced = job(topic="replaced", unique="k", on_conflict="replace", args=f'{{"at": {next(_clock)}}}')
        await store.unique.submit([replaced], now=at(STEP_S * next(_clock)))
    await _live_in_a_sequence(store)
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


async def _live_in_a_sequence(store: Store) -> None:
    """Its back-off is kept apart from its place."""
    new = job(topic="ordered", group_key="g")
    await store.submit([new], now=at(STEP_S * next(_clock)))
    assert new.id is not None
    async with store.query.connection() as connection:
        claimed = (
            "status = 'RUNNING', attempts = 1, locked_by = 'w1', started_at = $2, lease_until = $3, run_after = $2"
        )
        now = at(STEP_S * next(_clock))
        await connection.execute(
            f"UPDATE pulse.jobs SET {claimed} WHERE id = $1", new.id.hex(), now, now + timedelta(seconds=LEASE_S)
        )
    assert await store.end([ending(fence(new.id, 1), EndingKind.CRASHED)], now=now + timedelta(seconds=1.0))


async def _set_back(store: Store, earlier: datetime, later: datetime, *, fires_again: bool) -> None:
    """Let one that occurs once fire; then set it to an earlier time, and perhaps let it fire again."""
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
    """Something that must not be, made by *sql*, in which ids have names: *check* says *says* of *who*."""

    check: str
    sql: str
    who: str
    says: str = ""

    def __str__(self) -> str:
        return f"{self.check}-{self.who}"


def _wrongs(table: str) -> list[Wrong]:
    """One of each line: check, who, message, and the SQL, which goes on in indented lines."""
    wrongs: list[Wrong] = []
    for line in re.sub(r"\n {4}", " ", table).strip().splitlines():
        check, who, says, sql = (word.strip() for word in line.split("|"))
        sql = re.sub("^ENDED SET", "UPDATE pulse.attempts SET", re.sub("^SET", "UPDATE pulse.jobs SET", sql))
        if re.match("UPDATE pulse.(jobs|attempts) SET|DELETE FROM pulse.attempts$", sql) and " WHERE " not in sql:
            sql += f" WHERE {'id' if '.jobs' in sql else 'job_id'} = '{{{who}}}'"
        wrongs.append(Wrong(check, sql, who, says))
    return wrongs


# SET: of that row of pulse.jobs; ENDED SET: of its history.
GUARDS: Final = _wrongs("""
guards | jobs_lease | constraint of pulse.jobs is missing | ALTER TABLE pulse.jobs DROP CONSTRAINT jobs_lease
guards | idx_jobs_claim | index of pulse.jobs is missing | DROP INDEX pulse.idx_jobs_claim
guards | attempts_pkey | missing | ALTER TABLE pulse.attempts DROP CONSTRAINT attempts_pkey
guards | jobs_args | not valid |
    ALTER DOMAIN pulse.job_args DROP CONSTRAINT jobs_args;ALTER DOMAIN pulse.job_args ADD CONSTRAINT jobs_args CHECK
    (jsonb_typeof(VALUE) = 'object') NOT VALID
guards | jobs_timeout | missing | ALTER TABLE pulse.jobs ALTER timeout_s TYPE float8
guards | idx_jobs_running | not valid |
    UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'pulse.idx_jobs_running'::regclass
guards | topics_changed | trigger of pulse.topics is missing | DROP TRIGGER topics_changed ON pulse.topics
guards | gate_opened | is disabled | ALTER TABLE pulse.dispatch_control DISABLE TRIGGER USER
guards | delete_schedule | function pulse.delete_schedule is missing | DROP FUNCTION pulse.delete_schedule
guards | topics_changed | is disabled | ALTER TABLE pulse.topics ENABLE REPLICA TRIGGER topics_changed
anchors | pulse.topics | missing | DELETE FROM pulse.topics
anchors | pulse.dispatch_control | missing | DELETE FROM pulse.dispatch_control WHERE topic = ''
anchors | pulse.sweep_mark | missing | DELETE FROM pulse.sweep_mark
anchors | pulse.retention_mark | missing | DELETE FROM pulse.retention_mark
""")
ROWS: Final = _wrongs("""
leases | pending | PENDING, locked_by w, lease_until NULL | SET locked_by = 'w'
leases | completed | COMPLETED, locked_by NULL | SET lease_until = now()
leases | running | RUNNING, locked_by NULL | SET locked_by = NULL
leases | running | lease_until NULL | SET lease_until = NULL
counters | pending | uncharged -1 | SET uncharged = -1
counters | retrying | attempts 1, uncharged 2 | SET uncharged = 2
counters | running | crashes -1 | SET crashes = -1
counters | retrying | uncharged 0, crashes 1 | SET crashes = 1
counters | retrying | started_at NULL | SET started_at = NULL
counters | pending | attempts 0 | SET started_at = now()
counters | completed | completed_at NULL | SET completed_at = NULL
counters | retrying | RETRYING | SET completed_at = now()
counters | running | RUNNING, attempts 1, uncharged 1 | SET uncharged = 1
counters | completed | COMPLETED | SET uncharged = 1
counters | retrying | PENDING, attempts 1, uncharged 0 | SET status = 'PENDING'
counters | given_back | RETRYING, attempts 1, uncharged 1 | SET status = 'RETRYING'
budgets | retrying | RETRYING, attempts 1, uncharged 0, max_attempts 1 | SET max_attempts = 1
budgets | pending | PENDING | SET attempts = 2
budgets | spent | DEAD_LETTERED, attempts 3 | SET attempts = 3
budgets | running | RUNNING, attempts 3 | SET attempts = 3
dead-letters | spent | last_error '' | SET last_error = ''
dead-letters | discarded | last_error NULL | SET last_error = NULL
dead-letters | spent | attempts 2, uncharged 0, max_attempts 3, last outcome timeout | SET max_attempts = 3
dead-letters | discarded | last outcome error | ENDED SET outcome = 'error'
dead-letters | crashed | last outcome unknown | DELETE FROM pulse.attempts
history | retrying | in the history 0 charged | DELETE FROM pulse.attempts
history | retrying | 0 charged, 1 uncharged | ENDED SET outcome = 'released'
history | crashing | crashes 1, in the history | ENDED SET outcome = 'released'
history | spent | newest 3 | UPDATE pulse.attempts SET attempt = 3 WHERE attempt = 2 AND job_id = '{spent}'
history | running | RUNNING, attempts 1 |
    INSERT INTO pulse.attempts (job_id, attempt, outcome) VALUES ('{running}', 1, 'error')
history | completed | COMPLETED |
    INSERT INTO pulse.attempts (job_id, attempt, outcome) VALUES ('{completed}', 1, 'error')
slots | running | counted by x, its topic | SET counted_by = 'x'
dependencies | pending | waits for 2 jobs, 0 dependencies are not over | SET waiting_on = 2, next_run_at = '9999-12-30Z'
dependencies | pending | waits for 1 jobs, and is PENDING, due at |
    INSERT INTO pulse.dependencies VALUES ('{running}', '{pending}');
    UPDATE pulse.jobs SET is_parent = true WHERE id = '{running}';
    UPDATE pulse.jobs SET waiting_on = 1 WHERE id = '{pending}'
dependencies | pending | neither a schedule nor a job holds it | SET next_run_at = '9999-12-30Z'
dependencies | pending | was not told that job |
    ALTER TABLE pulse.dependencies DISABLE TRIGGER joined;
    INSERT INTO pulse.dependencies VALUES ('{completed}', '{pending}');
    UPDATE pulse.jobs SET is_parent = true WHERE id = '{completed}';
    UPDATE pulse.jobs SET waiting_on = 1, next_run_at = '9999-12-30Z' WHERE id = '{pending}'
dependencies | pending | which does not know it |
    ALTER TABLE pulse.dependencies DISABLE TRIGGER joined;
    INSERT INTO pulse.dependencies VALUES ('{running}', '{pending}');
    UPDATE pulse.jobs SET waiting_on = 1, next_run_at = '9999-12-30Z' WHERE id = '{pending}'
signals | pending | has had 2 signals, 0 are there | SET signals = 2
signals | pending | has had 1 signals, 2 are there |
    INSERT INTO pulse.signals (job_id, name, key) VALUES ('{pending}', 'n', 'a'), ('{pending}', 'n', 'b');
    SET CONSTRAINTS ALL IMMEDIATE;
    UPDATE pulse.jobs SET signals = 1 WHERE id = '{pending}'
slots | running | goes by running | INSERT INTO pulse.limits (name) SELECT topic FROM pulse.jobs WHERE id = '{running}'
slots | alone | only for the group g | INSERT INTO pulse.limits (name, group_key) VALUES ('alone', 'g')
slots | running | counts from |
    INSERT INTO pulse.limits (name, oldest_at) VALUES ('running', 'infinity');
    UPDATE pulse.jobs SET counted_by = topic WHERE id = '{running}'
slots | poor | group none, tokens -0.1 | INSERT INTO pulse.limits (name, tokens, tokens_at) VALUES ('poor', -0.1, now())
groups | pending | group_key '' | SET group_key = ''
groups | pending | group_key '*' | SET group_key = '*'
groups | pending | group_key 'x | SET group_key = repeat('x', 201)
groups | pending | group_key NULL | SET run_after = now()
lapsed | running | attempt 1 | SET lease_until = clock_timestamp() - interval '61 s'
occurrences | schedule | 2 jobs for the occurrence |
    INSERT INTO pulse.jobs (id, name, topic, max_attempts, schedule_id, occurrence) SELECT gen_random_uuid(),
    name, topic, 1, schedule_id, occurrence FROM pulse.jobs WHERE schedule_id = '{schedule}' ORDER BY
    occurrence LIMIT 1
occurrences | schedule | the cursor stands at |
    UPDATE pulse.schedules SET next_run_at = last_run_at WHERE kind = 'every'
occurrences | schedule | the cursor stands at |
    UPDATE pulse.schedules SET last_run_at = last_run_at - interval '1 s' WHERE kind = 'every'
occurrences | schedule | no job for the occurrence |
    DELETE FROM pulse.jobs j USING pulse.schedules s WHERE s.kind = 'every' AND j.schedule_id = s.id AND
    j.occurrence = s.last_run_at
late-schedules | schedule | due since |
    UPDATE pulse.schedules SET next_run_at = clock_timestamp() - interval '61 s' WHERE kind = 'every'
""")
RECORD: Final = _wrongs("""
record | pending | not as change |
    ALTER TABLE pulse.jobs DISABLE TRIGGER pulse_audit_changes;UPDATE pulse.jobs SET next_run_at = now() WHERE
    id = '{pending}'
record | completed | not as change |
    ALTER TABLE pulse.jobs DISABLE TRIGGER pulse_audit_rows; DELETE FROM pulse.jobs WHERE id = '{completed}'
record | retrying | begins at RUNNING, attempts 1 |
    DELETE FROM pulse_audit.changes WHERE id = '{retrying}' AND new_status = 'RUNNING'
kept | retrying | while RETRYING | DELETE FROM pulse.jobs WHERE id = '{retrying}'
unchanged | pending |  | SET args = '{{"a": 1}}'
unchanged | running |  | SET topic = 'other'
unchanged | running |  |
    UPDATE pulse.jobs SET unique_key = 'mine', unique_until = 'end' WHERE id = '{running}';UPDATE pulse.jobs SET
    args = '{{"a": 1}}' WHERE id = '{running}'
tokens | running | attempts 1 to 2 | SET attempts = 2
tokens | retrying | RETRYING to RETRYING, attempts 1 to 0 | SET attempts = 0
tokens | pending | attempts 0 to 0 | SET status = 'RUNNING', locked_by = 'w', lease_until = now()
tokens | schedule | new to PENDING, attempts 0 to 1 |
    INSERT INTO pulse.jobs (id, name, topic, max_attempts, attempts) VALUES ('{schedule}', 'n', 't', 1, 1)
claims | running | attempt 1 was claimed 2 times |
    UPDATE pulse.jobs SET status = 'PENDING', attempts = 0, locked_by = NULL WHERE id = '{running}';UPDATE
    pulse.jobs SET status = 'RUNNING', attempts = 1, locked_by = 'w2' WHERE id = '{running}'
moves | pending | PENDING to COMPLETED | SET status = 'COMPLETED'
moves | completed | COMPLETED to RETRYING | SET status = 'RETRYING'
moves | canceled | CANCELED to RUNNING | SET status = 'RUNNING'
moves | schedule | new to RETRYING |
    INSERT INTO pulse.jobs (id, name, topic, max_attempts, status) VALUES ('{schedule}', 'n', 't', 1,
    'RETRYING')
final | completed | COMPLETED to COMPLETED | SET next_run_at = now()
final | spent | DEAD_LETTERED to PENDING, attempts 2, uncharged 1 | SET status = 'PENDING', uncharged = 1
final | spent | attempts 0 | SET status = 'PENDING', attempts = 0, uncharged = 0
final | crashed | crashes 3 | SET status = 'PENDING', uncharged = attempts
final | completed | COMPLETED to CANCELED | SET status = 'CANCELED'
charges | running | uncharged 0 to 2 | SET status = 'RETRYING', uncharged = 2
charges | running | crashes 0 to 1 | SET status = 'DEAD_LETTERED', crashes = 1
charges | running | RUNNING to PENDING, attempts 1, uncharged 0 to 0 | SET status = 'PENDING'
charges | running | crashes 0 to 1 | SET status = 'PENDING', uncharged = 1, crashes = 1
charges | running | RUNNING to PENDING, attempts 2 | SET status = 'PENDING', uncharged = 1, attempts = 2
charges | running | RUNNING to COMPLETED | SET status = 'COMPLETED', uncharged = 1
charges | retrying | RETRYING to RETRYING | SET uncharged = 1
charges | crashing | crashes 1 to 0 | SET crashes = 0
endings | running | in the history nothing of nobody | SET status = 'RETRYING'
endings | running | RUNNING to CANCELED | SET status = 'CANCELED'
endings | running | nothing | SET status = 'RETRYING', uncharged = 1, crashes = 1
endings | canceled | error of w1 | ENDED SET outcome = 'error'
endings | crashing | released of w1 | ENDED SET outcome = 'released'
endings | crashing | error of w1 | ENDED SET outcome = 'error'
endings | given_back | crashed of w1 | ENDED SET outcome = 'crashed'
endings | given_back | error of w1 | ENDED SET outcome = 'error'
endings | retrying | released of w1 | ENDED SET outcome = 'released'
endings | retrying | discarded of w1 | ENDED SET outcome = 'discarded'
endings | discarded | error of w1 | ENDED SET outcome = 'error'
endings | retrying | canceled of w1 | ENDED SET outcome = 'canceled'
endings | retrying | expired of w1 | ENDED SET outcome = 'expired'
endings | spent | timeout of w1 | SET max_attempts = 3
endings | retrying | error of w1 | SET max_attempts = 1
endings | retrying | error of w2 | ENDED SET worker = 'w2'
endings | lapsed | of nobody | ENDED SET worker = NULL
history-ends | completed | attempt 1 is released |
    INSERT INTO pulse.attempts (job_id, attempt, outcome) VALUES ('{completed}', 1, 'released')
history-ends | running | attempt 1 is completed |
    INSERT INTO pulse.attempts (job_id, attempt, outcome) VALUES ('{running}', 1, 'completed')
history-ends | revived | attempt 3 is error |
    UPDATE pulse.attempts SET outcome = 'error' WHERE job_id = '{revived}' AND attempt = 3
history-ends | retrying | attempt 1 is completed |
    UPDATE pulse.attempts SET outcome = 'completed' WHERE job_id = '{retrying}'
history-ends | running | did not end |
    INSERT INTO pulse.attempts (job_id, attempt, outcome) VALUES ('{running}', 1, 'error')
due | retrying | attempt 2 started at |
    UPDATE pulse.jobs SET status = 'RUNNING', attempts = 2, started_at = next_run_at - interval '1 ms' WHERE
    id = '{retrying}'
expiry | running | attempt 1, started at | SET expires_at = now() - interval '1 h'
back-off | retrying | attempt 1 (error) waits 2 s instead of 1 s |
    UPDATE pulse_audit.changes SET new_next_run_at = new_next_run_at + interval '1 s' WHERE id = '{retrying}'
    AND new_status = 'RETRYING'
back-off | crashing | attempt 1 (crashed) waits 1 s instead of 0 s |
    UPDATE pulse_audit.changes SET new_next_run_at = new_next_run_at + interval '1 s' WHERE id = '{crashing}'
    AND new_status = 'RETRYING'
reaps | lapsed | attempt 1 of w1: lease until |
    UPDATE pulse_audit.changes c SET old_lease_until = a.ended_at FROM pulse.attempts a WHERE a.job_id = c.id
    AND c.id = '{lapsed}' AND c.new_status = 'RETRYING'
gate | pending | on topic pending, which was paused |
    UPDATE pulse_audit.changes SET began = began - interval '1 h';INSERT INTO pulse_audit.gates (at, topic,
    paused) VALUES (now() - interval '2 s', '', true);UPDATE pulse.jobs SET status = 'RUNNING', attempts = 1
    WHERE id = '{pending}'
gate | pending | on topic pending, which was paused |
    UPDATE pulse_audit.changes SET began = began - interval '1 h';INSERT INTO pulse_audit.gates (at, topic,
    paused) VALUES (now() - interval '2 s', 'pending', true);UPDATE pulse.jobs SET status = 'RUNNING',
    attempts = 1 WHERE id = '{pending}'
""")
