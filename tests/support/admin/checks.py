"""
For every CHECK of schema.sql: rows that it allows and rows that it refuses, on both sides of each boundary.

A row is its difference from the base row of its table; values are SQL expressions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pulse.store.rows import EndingKind
from tests.support.store.backoffs import BACKOFFS, NO_BACKOFFS

Columns = dict[str, str]

OUTCOMES: Final = sorted(
    set(EndingKind) - {EndingKind.UNASSIGNED, EndingKind.SILENT}
)  # written as nothing, and as another
BASE: Final[dict[str, Columns]] = {
    "schema_version": {"version": "77", "release": "'r'"},
    "jobs": {"id": "gen_random_uuid()", "max_attempts": "5", "topic": "'t'", "name": "'n'"},
    "attempts": {"job_id": "gen_random_uuid()", "attempt": "1", "outcome": "'error'"},
    "schedules": {"id": "gen_random_uuid()", "kind": "'every'", "every_s": "60", "name": "'n'"},
    "dispatch_control": {"topic": "'t'"},
    "handlers": {"name": "'n'"},
    "topics": {"topic": "'t'"},
    "sweep_mark": {"one": "true"},
    "retention_mark": {"one": "true"},
    "set_aside": {
        "job_id": "'00000000-0000-0000-0000-000000000007'", "sqlstate": "'XX001'", "statement": "'claim_jobs'",
        "error": "'e'",
    },
    "audit": {"action": "'jobs.cancel'"},
    "epochs": {"epoch": "77"},
    "limits": {"name": "'l'"},
    "dependencies": {
        "parent_id": "'00000000-0000-0000-0000-000000000007'", "child_id": "'00000000-0000-0000-0000-000000000008'",
    },
    "outbox": {
        "job_id": "'00000000-0000-0000-0000-000000000007'", "ended_at": "'2026-01-01Z'", "attempt": "1",
        "status": "'COMPLETED'", "topic": "'t'", "name": "'n'",
    },
    "signals": {"job_id": "'00000000-0000-0000-0000-000000000007'", "name": "'n'", "key": "'k'"},
    "witnesses": {
        "instance": "'00000000-0000-0000-0000-000000000007'", "counter": "1", "epoch": "1", "highest": "1000",
        "place": "'p'", "host": "'h'",
    },
}  # fmt: skip
RUNNING: Final = {
    "status": "'RUNNING'", "locked_by": "'w'", "lease_until": "now()", "started_at": "now()", "attempts": "1",
}  # fmt: skip
DONE: Final = {"status": "'COMPLETED'", "completed_at": "now()"}
DEAD: Final = {"status": "'DEAD_LETTERED'", "completed_at": "now()", "last_error": "'boom'"}
_CRON: Final = {"kind": "'cron'", "cron": "'* * * * *'", "timezone": "'UTC'", "every_s": "NULL"}
_AT: Final = {"kind": "'at'", "run_at": "now()", "every_s": "NULL"}


def insert_of(table: str, columns: Columns) -> str:
    """The INSERT of a row that differs from the base row in these."""
    row = {**BASE[table], **columns}
    return f"INSERT INTO pulse.{table} ({', '.join(row)}) VALUES ({', '.join(row.values())})"


@dataclass(frozen=True, slots=True)
class Check:
    """A constraint with rows that keep it and rows that break only it."""

    table: str
    name: str
    good: list[Columns]
    bad: list[Columns]

    def __str__(self) -> str:
        return self.name


def _column(table: str, name: str, column: str, *, good: Iterable[str], bad: Iterable[str]) -> Check:
    return Check(table, name, [{column: value} for value in good], [{column: value} for value in bad])


def _text(table: str, name: str, column: str, least: int = 1) -> Check:
    good = [f"repeat('é', {length})" for length in (max(least, 1), 200)]
    return _column(table, name, column, good=good, bad=["repeat('é', 201)", *(["''"] if least else [])])


def _budget(table: str, name: str, column: str) -> Check:
    return _column(table, name, column, good=("1", "10000"), bad=("0", "-1", "10001"))


def _seconds(table: str, name: str, column: str) -> Check:
    bad = ("0", "-1", "1000000000.001", "'NaN'", "'Infinity'", "'-Infinity'")
    return _column(table, name, column, good=("1e-9", "1e9"), bad=bad)


def _seconds_or_zero(table: str, column: str) -> Check:
    bad = ("-1e-9", "1000000000.001", "'NaN'", "'Infinity'")
    return _column(table, f"{table}_{column}_check", column, good=("0", "1e9"), bad=bad)


def _backoff(table: str) -> Check:
    return _column(
        table, f"{table}_backoff", "backoff", good=[f"'{word}'" for word in BACKOFFS],
        bad=[f"'{word}'" for word in NO_BACKOFFS],
    )  # fmt: skip


def _priority(table: str, name: str) -> Check:
    return _column(table, name, "priority", good=("-100", "100"), bad=("-101", "101"))


def _object(table: str, name: str) -> Check:
    return _column(
        table, name, "args", good=("'{}'", """'{"a": []}'"""), bad=("'[]'", "'null'", "'1'", """'"{}"'""", "'true'")
    )


def _time(table: str, name: str, column: str, **others: str) -> Check:
    good = ("'0001-01-02 00:00+00'", "'9999-12-30 23:59:59.999999+00'")
    bad = ("'0001-01-01 23:59:59.999999+00'", "'9999-12-31 00:00+00'", "'infinity'", "'-infinity'", "'0044-03-15 BC'")
    return Check(table, name, [{column: one, **others} for one in good], [{column: one, **others} for one in bad])


CHECKS: Final = [
    _column("schema_version", "schema_version_version_check", "version", good=("2",), bad=("0", "-1")),
    Check(
        "jobs",
        "jobs_lease",
        [RUNNING, {"status": "'PENDING'"}, {"status": "'RETRYING'", "attempts": "1", "started_at": "now()"}],
        [
            {**RUNNING, "locked_by": "NULL"}, {**RUNNING, "lease_until": "NULL"}, {"locked_by": "'w'"},
            {"lease_until": "now()"}, {**DEAD, "locked_by": "'w'"}, {**DEAD, "lease_until": "now()"},
        ],
    ),
    Check("jobs", "jobs_ran_by", [{**DONE, "ran_by": "'w'"}, DONE], [{**DEAD, "ran_by": "'w'"}, {"ran_by": "'w'"}]),
    Check("jobs", "jobs_claimed", [RUNNING, {}], [{**RUNNING, "started_at": "NULL"}, {**RUNNING, "attempts": "0"}]),
    Check(
        "jobs",
        "jobs_finished",
        [
            DEAD,
            *({"status": f"'{status}'", "completed_at": "now()"} for status in ("COMPLETED", "CANCELED")),
            {"status": "'RETRYING'"},
        ],
        [
            {**DEAD, "completed_at": "NULL"},
            {"status": "'COMPLETED'"},
            {"status": "'CANCELED'"},
            *({"status": f"'{status}'", "completed_at": "now()"} for status in ("PENDING", "RETRYING")),
            {**RUNNING, "completed_at": "now()"},
        ],
    ),
    Check(
        "jobs", "jobs_dead_letter_reason", [DEAD, {}], [{**DEAD, "last_error": "NULL"}, {**DEAD, "last_error": "''"}]
    ),
    Check(
        "jobs",
        "jobs_attempts",
        [{"attempts": "2", "uncharged": "2"}, {"attempts": "2", "uncharged": "0"}],
        [
            {"attempts": "1", "uncharged": "2"},
            {"attempts": "1", "uncharged": "-1"},
            {"attempts": "-1", "uncharged": "0"},
        ],
    ),
    _column("jobs", "jobs_crashes", "crashes", good=("0", "7"), bad=("-1",)),
    _budget("jobs", "jobs_max_attempts", "max_attempts"),
    _priority("jobs", "jobs_priority"),
    _time("jobs", "jobs_time", "next_run_at"),
    _seconds("jobs", "jobs_timeout", "timeout_s"),
    _time("jobs", "jobs_time", "expires_at"),
    _text("jobs", "jobs_topic", "topic"),
    _text("jobs", "jobs_name", "name"),
    _object("jobs", "jobs_args"),
    _text("limits", "limits_name_check", "name"),
    _text("limits", "limits_group_key_check", "group_key", 0),
    _column("limits", "limits_concurrency_check", "concurrency", good=("0", "1000000"), bad=("-1", "1000001")),
    _column("limits", "limits_rate_check", "rate", good=("1e-6", "1e6"), bad=("9e-7", "1000001", "'NaN'")),
    Check(
        "limits", "limits_burst_check", [{"rate": "1", "burst": "1"}, {"rate": "1", "burst": "1000000"}],
        [{"rate": "1", "burst": "0"}, {"rate": "1", "burst": "1000001"}],
    ),
    Check("limits", "limits_burst", [{"rate": "1", "burst": "1"}], [{"burst": "1"}]),
    Check(
        "limits", "limits_sequence_check",
        [{"group_key": "'*'", "sequence": "'continue'"}, {"group_key": "'*'", "sequence": "'halt'"}],
        [{"group_key": "'*'", "sequence": "'x'"}],
    ),
    Check(
        "limits", "limits_sequence",
        [{"group_key": "'*'", "sequence": "'halt'", "concurrency": one} for one in ("NULL", "0", "1")],
        [{"sequence": "'halt'"}, {"group_key": "'*'", "sequence": "'halt'", "concurrency": "2"}],
    ),
    Check(
        "limits", "limits_tokens", [{"tokens": "1", "tokens_at": "now()"}], [{"tokens": "1"}, {"tokens_at": "now()"}],
    ),
    _text("topics", "topics_limit_name_check", "limit_name"),
    Check(
        "dependencies", "dependencies_on_failure_check", [{"on_failure": "'cancel'"}, {"on_failure": "'run'"}],
        [{"on_failure": "'x'"}],
    ),
    _column("attempts", "attempts_attempt_check", "attempt", good=("0", "9"), bad=("-1",)),
    _column(
        "attempts", "attempts_outcome_check", "outcome",
        good=[f"'{outcome}'" for outcome in (*OUTCOMES, "canceled", "expired", "completed")],
        bad=("''", "'ERROR'", "'ok'", "'unassigned'"),
    ),
    Check(
        "schedules",
        "schedules_kind",
        [_CRON, _AT, {}],
        [
            {"kind": "'never'"}, {"every_s": "NULL"}, {"run_at": "now()"}, {"cron": "'* * * * *'"},
            {"timezone": "'UTC'"}, {**_CRON, "cron": "NULL"}, {**_CRON, "timezone": "NULL"},
            {**_CRON, "run_at": "now()"}, {**_CRON, "every_s": "1"}, {**_AT, "run_at": "NULL"},
            {**_AT, "every_s": "1"}, {**_AT, "cron": "'* * * * *'"}, {**_AT, "timezone": "'UTC'"},
        ],
    ),
    _time("schedules", "schedules_next_run_at", "next_run_at"),
    _time("schedules", "schedules_run_at", "run_at", kind="'at'", every_s="NULL"),
    _seconds("schedules", "schedules_every", "every_s"),
    _seconds("schedules", "schedules_timeout", "timeout_s"),
    _budget("schedules", "schedules_max_attempts", "max_attempts"),
    _priority("schedules", "schedules_priority"),
    _text("schedules", "schedules_topic", "topic"),
    _text("schedules", "schedules_name", "name"),
    _object("schedules", "schedules_args"),
    Check(
        "schedules", "schedules_cron",
        [{**_CRON, "cron": f"'{cron}'"} for cron in ("0 * * * *", " 0  0 * * * * ", "@daily", "a b c d e")],
        [{**_CRON, "cron": f"'{cron}'"} for cron in ("", "* * * *", "* * * * * * *", "@", "@daily *")],
    ),
    Check(
        "schedules",
        "schedules_span",
        [{"starts_at": "now()", "ends_at": "now()"}, {"starts_at": "now()"}, {"ends_at": "now()"}, _AT],
        [
            {"starts_at": "now()", "ends_at": "now() - interval '1 us'"},
            {**_AT, "starts_at": "now()"},
            {**_AT, "ends_at": "now()"},
        ],
    ),
    _time("schedules", "schedules_starts_at", "starts_at"),
    _time("schedules", "schedules_ends_at", "ends_at"),
    Check(
        "schedules",
        "schedules_jitter",
        [
            {"jitter_s": "0"}, {"jitter_s": "60"}, {**_CRON, "jitter_s": "86400"},
            {"every_s": "1e6", "jitter_s": "86400"},
        ],
        [
            {"jitter_s": "-0.1"}, {"jitter_s": "60.1"}, {**_CRON, "jitter_s": "86400.1"},
            {"every_s": "1e6", "jitter_s": "86400.1"}, {**_CRON, "jitter_s": "'NaN'"},
        ],
    ),
    _column("schedules", "schedules_catch_up", "catch_up", good=("'skip'", "'latest'", "'all'"), bad=("''", "'none'")),
    _column(
        "schedules", "schedules_overlap", "overlap", good=("'allow'", "'skip'", "'queue'", "'cancel'"),
        bad=("''", "'none'"),
    ),
    Check(
        "schedules",
        "schedules_unique",
        [
            {}, {"unique_key": "'k'"}, {"unique_key": "'k'", "unique_until": "'start'", "on_conflict": "'replace'"},
            {"unique_key": "'k'", "unique_until": "'end'", "on_conflict": "'skip'"}, {"unique_key": "repeat('x', 500)"},
        ],
        [
            {"unique_until": "'end'"}, {"on_conflict": "'skip'"}, {"unique_key": "''"},
            {"unique_key": "repeat('x', 501)"}, {"unique_key": "'k'", "unique_until": "'stop'"},
            {"unique_key": "'k'", "on_conflict": "'error'"}, {"unique_key": "'k'", "overlap": "'skip'"},
        ],
    ),
    Check(
        "schedules",
        "schedules_group_key",
        [{}, {"group_key": "'g'"}, {"group_key": "repeat('x', 200)"}],
        [{"group_key": "''"}, {"group_key": "repeat('x', 201)"}, {"group_key": "'*'"}],
    ),
    _column("schedules", "schedules_waiting", "waiting", good=("0", "1"), bad=("-1",)),
    _text("schedules", "schedules_key", "key"),
    _text("dispatch_control", "dispatch_control_topic_check", "topic", least=0),
    Check(
        "dispatch_control", "dispatch_control_paused", [{"paused": "true", "paused_at": "now()"}, {}],
        [{"paused": "true"}, {"paused_at": "now()"}],
    ),
    Check(
        "dispatch_control", "dispatch_control_open",
        [{"paused": "true", "paused_at": "now()", "paused_by": "'me'", "paused_until": "now()"}, {}],
        [{"paused_by": "'me'"}, {"paused_until": "now()"}],
    ),
    _time("dispatch_control", "dispatch_control_until", "paused_until", paused="true", paused_at="now()"),
    _backoff("handlers"),
    _text("handlers", "handlers_name_check", "name"),
    _text("handlers", "handlers_topic_check", "topic"),
    _text("handlers", "handlers_on_dead_letter_check", "on_dead_letter"),
    _text("handlers", "handlers_on_crash_check", "on_crash"),
    _budget("handlers", "handlers_max_attempts_check", "max_attempts"),
    _budget("handlers", "handlers_max_crashes_check", "max_crashes"),
    _seconds("handlers", "handlers_timeout_s_check", "timeout_s"),
    _seconds("handlers", "handlers_stall_s_check", "stall_s"),
    _column("attempts", "attempts_cpu_s_check", "cpu_s", good=("0", "1e9"), bad=("-1e-9",)),
    _column("attempts", "attempts_peak_rss_bytes_check", "peak_rss_bytes", good=("0", str(2**62)), bad=("-1",)),
    _column("sweep_mark", "sweep_mark_one_check", "one", good=("true",), bad=("false",)),
    _column("retention_mark", "retention_mark_one_check", "one", good=("true",), bad=("false",)),
    _column("epochs", "epochs_epoch_check", "epoch", good=("77",), bad=("0", "-1")),
    _column("epochs", "epochs_attempts_floor_check", "attempts_floor", good=("0", "1000"), bad=("-1",)),
    _column("epochs", "epochs_reopened_check", "reopened", good=("0", "7"), bad=("-1",)),
    _column("epochs", "epochs_detail_check", "detail", good=("'{}'",), bad=("'[]'", "'1'")),
    _column("epochs", "epochs_lineage", "lineage", good=("NULL",), bad=("gen_random_uuid()",)),
    _column("witnesses", "witnesses_counter_check", "counter", good=("1",), bad=("0",)),
    _column("audit", "audit_action_check", "action", good=("'a'", "repeat('é', 64)"), bad=("''", "repeat('é', 65)")),
    _column("audit", "audit_uid_check", "uid", good=("0", "4294967295"), bad=("-1",)),
    _column("audit", "audit_jobs_check", "jobs", good=("0", "10000"), bad=("-1",)),
    _column("audit", "audit_detail_check", "detail", good=("'{}'", """'{"a": []}'"""), bad=("'[]'", "'null'", "'1'")),
    _text("topics", "topics_topic_check", "topic", least=0),
    _budget("topics", "topics_max_attempts_check", "max_attempts"),
    _budget("topics", "topics_max_crashes_check", "max_crashes"),
    _seconds("topics", "topics_timeout_s_check", "timeout_s"),
    _seconds("topics", "topics_stall_s_check", "stall_s"),
    _seconds("topics", "topics_lease_s_check", "lease_s"),
    *(_seconds_or_zero("topics", name) for name in ("retention_s", "retention_dead_s", "ageing_s")),
    _backoff("topics"),
    Check(
        "topics", "topics_server", [{"topic": "''", "max_attempts": "1", "max_crashes": "1"}, {"topic": "'x'"}],
        [{"topic": "''", "max_attempts": "1"}, {"topic": "''", "max_crashes": "1"}],
    ),
]  # fmt: skip
