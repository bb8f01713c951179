"""
For every partial index of schema.sql: a row that it holds, and rows that it leaves out.

An index that holds more than it needs costs each write of the others; a unique one would refuse what is allowed.
"""

from __future__ import annotations

from typing import Final

from tests.support.admin.checks import DEAD, DONE, RUNNING, Check

_GROUP: Final = {"group_key": "'g'"}
_SCHEDULE: Final = {"schedule_id": "gen_random_uuid()"}
_HELD: Final = {**_SCHEDULE, "next_run_at": "'9999-12-30 00:00+00'"}
_UNHANDLED: Final = {"last_error": "'no handler named \"n\"'"}
_UNIQUE: Final = {"unique_key": "'k'", "unique_until": "'end'"}
_START: Final = {**_UNIQUE, "unique_until": "'start'"}
_TRIED: Final = {"status": "'RETRYING'", "attempts": "1"}
_EXPIRES: Final = {"expires_at": "now()"}
_DUE: Final = {"next_run_at": "now()"}
_OTHER_ID: Final = {"id": "'04000000-0000-7000-8000-000000000000'"}
_NEW_ID: Final = {"id": "'03ffffff-ffff-7fff-bfff-ffffffffffff'"}

INDEXES: Final = [
    Check("jobs", "idx_jobs_claim", [{}, _TRIED], [_GROUP, RUNNING, DONE]),
    Check("jobs", "idx_jobs_groups", [_GROUP, {**_GROUP, **RUNNING}, {**_GROUP, **DEAD}], [{}, {**_GROUP, **DONE}]),
    Check(
        "jobs", "idx_jobs_counted", [{**RUNNING, "counted_by": "'l'"}],
        [RUNNING, {"counted_by": "'l'"}, {**DONE, "counted_by": "'l'"}],
    ),
    Check("jobs", "idx_jobs_running", [RUNNING], [{}, DONE]),
    Check("jobs", "idx_jobs_schedule", [_SCHEDULE, {**_SCHEDULE, **DONE}], [{}]),
    Check(
        "jobs", "idx_jobs_held", [_HELD],
        [_SCHEDULE, {"next_run_at": _HELD["next_run_at"]}, {**_HELD, **DONE}, {**_HELD, **_TRIED}],
    ),
    Check("jobs", "idx_jobs_unhandled", [_UNHANDLED], [{}, {"last_error": "'boom'"}, {**_UNHANDLED, **RUNNING}]),
    Check(
        "jobs", "idx_jobs_unique", [_UNIQUE, _START, {**_UNIQUE, **_TRIED}],
        [{"unique_key": "'k'"}, {**_UNIQUE, **DONE}, {**_START, **_TRIED}],
    ),
    Check("jobs", "idx_jobs_expiry", [_EXPIRES], [{}, {**_EXPIRES, **RUNNING}, {**_EXPIRES, **DONE}]),
    Check("jobs", "idx_jobs_other_ids", [_OTHER_ID, {"id": "'01a00000-0000-4000-8000-000000000000'"}], [_NEW_ID]),
    Check("jobs", "idx_jobs_ended_badly", [DEAD], [{}, DONE]),
    Check("attempts", "idx_attempts_lost", [{"outcome": "'crashed'"}], [{}]),
    Check("schedules", "idx_schedules_key", [{"key": "'k'"}], [{}]),
    Check(
        "schedules", "idx_schedules_due", [_DUE], [{}, {**_DUE, "paused": "true"}, {**_DUE, "error": "'e'"}]
    ),
    Check("schedules", "idx_schedules_reckon", [{}], [{"reckon": "false"}]),
    Check("schedules", "idx_schedules_waiting", [{"waiting": "1"}], [{}]),
    Check("topics", "idx_topics_backoff", [{"backoff": "'fixed:1'"}], [{}]),
    Check("handlers", "idx_handlers_backoff", [{"backoff": "'fixed:1'"}], [{}]),
    Check("handlers", "idx_handlers_events", [{"on_dead_letter": "'n'"}, {"on_crash": "'n'"}], [{}]),
    Check("topics", "idx_topics_lease", [{"lease_s": "60"}], [{}]),
    Check(
        "topics", "idx_topics_live",
        [{name: "60"} for name in ("stall_s", "lease_s", "retention_s", "retention_dead_s", "ageing_s")], [{}],
    ),
    Check("topics", "idx_topics_publish", [{"publish": "true"}], [{}, {"publish": "false"}]),
]  # fmt: skip
