"""What the database and its record say of schedules, policies and pauses, as `reckoning` and `policing` want it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import inf
from typing import Final
from uuid import UUID

from tests.chaos.database import Sql
from tests.chaos.load.ledger import GOVERNED_TOPIC, Line
from tests.chaos.verdicts.calls import Call, calls
from tests.chaos.verdicts.policing import Claimed, Ended, Governed, Police, police
from tests.chaos.verdicts.reckoning import Fired, Reckoned, reckon

# Handlers that leave every option to their topic.
GOVERNED: Final = {GOVERNED_TOPIC: frozenset({"faulty", "fatal", "perishable"})}
SCHEDULES: Final = frozenset({"create", "change", "pause", "resume", "trigger"})
DRAINED: Final = "drained"

_FIRED: Final = """
    SELECT j.id AS job, j.schedule_id AS schedule,
        (extract(epoch FROM j.occurrence) * 1000000)::bigint AS occurrence_us,
        extract(epoch FROM c.began)::float8 AS began_s, extract(epoch FROM j.submitted_at)::float8 AS made_s,
        coalesce(extract(epoch FROM j.completed_at)::float8, 'infinity') AS ended_s
    FROM pulse.jobs j JOIN pulse_audit.changes c ON c.id = j.id AND c.old_status IS NULL
    WHERE j.schedule_id IS NOT NULL"""
_CLAIMED: Final = """
    SELECT c.id AS job, c.new_attempts AS attempt, c.topic, extract(epoch FROM c.began)::float8 AS began_s,
        extract(epoch FROM c.new_started_at)::float8 AS started_s
    FROM pulse_audit.changes c WHERE c.new_status = 'RUNNING' AND c.old_status IS DISTINCT FROM 'RUNNING'"""
_ENDED: Final = """
    SELECT c.id AS job, c.old_attempts AS attempt, c.topic, j.name, a.outcome, c.new_status AS status,
        extract(epoch FROM c.began)::float8 AS began_s, extract(epoch FROM a.ended_at)::float8 AS ended_s,
        c.new_attempts - c.new_uncharged AS tries, c.new_uncharged - c.old_uncharged AS uncharged,
        c.new_crashes AS crashes,
        extract(epoch FROM c.new_next_run_at - a.ended_at)::float8 AS waits_s,
        CASE WHEN j.name = 'later' THEN (j.args->>'seconds')::float8 END AS asked_s
    FROM pulse_audit.changes c
    JOIN pulse.attempts a ON a.job_id = c.id AND a.attempt = c.old_attempts
    JOIN pulse.jobs j ON j.id = c.id
    WHERE c.old_status = 'RUNNING' AND c.new_status IN ('PENDING', 'RETRYING', 'DEAD_LETTERED')"""
_GOVERNED: Final = """
    SELECT j.id, j.topic, j.name, j.status::text AS status, j.max_attempts, j.timeout_s,
        coalesce(extract(epoch FROM j.expires_at)::float8, 'infinity') AS expires_s,
        coalesce(extract(epoch FROM j.completed_at)::float8, 'infinity') AS ended_s,
        EXISTS (SELECT FROM pulse.attempts a
                WHERE a.job_id = j.id AND a.attempt = 0 AND a.outcome = 'expired') AS is_expired,
        coalesce((SELECT extract(epoch FROM max(a.ended_at))::float8 FROM pulse.attempts a
                  WHERE a.job_id = j.id AND a.attempt > 0), 0) AS freed_s
    FROM pulse.jobs j WHERE j.schedule_id IS NULL"""


def reckoned(sql: Sql, lines: Sequence[Line]) -> Reckoned:
    """What fired, held against what was asked for."""
    fired = [Fired(**{**row, "job": _uuid(row["job"]), "schedule": _uuid(row["schedule"])}) for row in sql.rows(_FIRED)]
    until_s = min((line.at_s for line in lines if line.act == DRAINED), default=inf) + to_unix_s()
    return reckon(_calls(lines, of_schedules=True), fired, until_s)


def policed(sql: Sql, lines: Sequence[Line]) -> Police:
    """What was claimed and how it ended, held against what was asked for."""
    intents = {line.job: line.at_s + to_unix_s() for line in lines if line.act == "intent"}
    acked = {line.job: line.at_s + to_unix_s() for line in lines if line.act == "acked"}
    jobs = list[Governed]()
    for row in sql.rows(_GOVERNED):
        job = _uuid(row["id"])
        if job in intents:
            given = {name: value for name, value in row.items() if name != "id"}
            jobs.append(Governed(job=job, submitted_s=(intents[job], acked.get(job, inf)), **given))
    claims = [Claimed(**{**row, "job": _uuid(row["job"])}) for row in sql.rows(_CLAIMED)]
    ends = [Ended(**{**row, "job": _uuid(row["job"])}) for row in sql.rows(_ENDED)]
    return police(_calls(lines, of_schedules=False), jobs, claims, ends, GOVERNED)


def to_unix_s() -> float:
    """What to add to the ledger's times."""
    return time.time() - time.monotonic()


def _calls(lines: Sequence[Line], *, of_schedules: bool) -> dict[str, list[Call]]:
    found = calls(lines, to_unix_s())
    return {target: some for target, some in found.items() if (some[0].what in SCHEDULES) is of_schedules}


def _uuid(value: object) -> UUID:
    return UUID(str(value))
