"""What each database role may do, as the tests want it: every object of the schema is here, or a test fails."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import asyncpg

from tests.support.store.helpers import Sql

# ruff: noqa: E501 - a right is a line

ALL: Final = "SELECT INSERT UPDATE DELETE"
TABLES: Final = frozenset(
    {
        "attempts", "audit", "dispatch_control", "epochs", "handlers", "hosts", "jobs", "retention_mark", "schedules", "schema_version",
        "set_aside", "sweep_mark", "topics", "witnesses", "limits", "dependencies", "signals", "outbox",
    }
)  # fmt: skip
SEQUENCES: Final = frozenset({"audit_id_seq", "signals_id_seq", "work_notified"})
FUNCTIONS: Final = frozenset(
    {
        "backoff_s", "check_schedule", "checked_priority", "create_schedule", "delete_schedule", "time_problem", "is_stored",
        "is_stored_unseen", "jittered", "note", "notify_work", "open_gate", "pause_schedule", "resolved_options",
        "resume_schedule", "set_schedule", "set_topic", "submit", "submit_many", "tell", "tell_topics", "trigger_schedule", "update_schedule", "uuid7",
        "check_attempt", "complete_attempt", "event_args", "set_limit", "unset_limit", "count_slots", "await_claims",
        "group_problem", "insert_unique", "unique_holder", "unique_problem",
        "add_dependencies", "after_problem", "forget_linked", "join_parent", "settle", "wait_again",
        "signal", "signal_problem", "deliver_signal",
    }
)  # fmt: skip
SECRET: Final = {
    "jobs": {"args", "result", "progress", "checkpoint"},
    "attempts": {"progress"},
    "schedules": {"args"},
    "signals": {"payload"},
    "outbox": {"result"},
}
# Role -> table -> privilege -> columns; an empty set of columns: the whole table.
MAY: Final[dict[str, dict[str, dict[str, frozenset[str]]]]] = {
    "server": {
        **{name: dict.fromkeys(ALL.split(), frozenset[str]()) for name in ("jobs", "attempts", "schedules", "topics", "set_aside", "limits", "outbox")},
        **{name: dict.fromkeys(ALL.split()[:3], frozenset[str]()) for name in ("dispatch_control", "handlers", "hosts", "witnesses")},
        **{name: dict.fromkeys(("SELECT", "UPDATE"), frozenset[str]()) for name in ("sweep_mark", "retention_mark")},
        "schema_version": {"SELECT": frozenset()},
        "signals": {"SELECT": frozenset()},
        "dependencies": {"SELECT": frozenset(), "UPDATE": frozenset({"is_over"})},
        "epochs": {"SELECT": frozenset(), "INSERT": frozenset(), "UPDATE": frozenset({"reopened", "detail"})},
        "audit": {**dict.fromkeys(("SELECT", "INSERT", "DELETE"), frozenset[str]()), "UPDATE": frozenset({"id"})},
    },
    "submit": {
        "jobs": {
            "INSERT": frozenset(
                {"id", "name", "topic", "args", "priority", "next_run_at", "max_attempts", "timeout_s", "expires_at", "traceparent",
                 "group_key", "unique_key", "unique_until", "waiting_on", "run_after", "is_parent"}
            )
        },
        "handlers": {"SELECT": frozenset({"name", "topic", "max_attempts", "timeout_s"})},
        "topics": {"SELECT": frozenset({"topic", "max_attempts", "timeout_s", "publish"})},
    },
    "read": {name: {"SELECT": frozenset()} for name in TABLES - set(SECRET)},  # and columns of the others
    "public": {},
}  # fmt: skip
SETS: Final = {"server": {"work_notified"}, "submit": {"work_notified"}, "read": set[str](), "public": set[str]()}
CALLS: Final = {
    "server": {
        "backoff_s", "delete_schedule", "jittered", "note", "notify_work", "resolved_options", "set_topic", "tell", "trigger_schedule",
        "uuid7", "event_args", "submit", "set_limit", "unset_limit", "count_slots", "await_claims", "insert_unique", "unique_holder",
        "add_dependencies", "settle", "wait_again", "signal",
    },
    "submit": {
        "submit", "submit_many", "time_problem", "is_stored", "is_stored_unseen", "notify_work", "resolved_options", "tell", "uuid7",
        "check_attempt", "complete_attempt", "group_problem", "insert_unique", "unique_holder", "unique_problem",
        "add_dependencies", "after_problem", "signal",
    },
    "read": set[str](),
    "public": set[str](),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    dsn: str
    prefix: str
    sql: Sql

    def dsn_of(self, user: str) -> str:
        return re.sub(r"user=[^&]*", f"user={user}", self.dsn)

    def login(self, kind: str) -> str:
        return f"{self.prefix}login_{kind}"

    async def session(self, kind: str) -> Sql:
        return await asyncpg.connect(self.dsn_of(self.login(kind)))


async def forget(connection: Sql, prefix: str) -> None:
    for row in await connection.fetch("SELECT rolname FROM pg_roles WHERE starts_with(rolname, $1)", prefix):
        await connection.execute(f"DROP OWNED BY {row['rolname']} CASCADE")
    for row in await connection.fetch("SELECT rolname FROM pg_roles WHERE starts_with(rolname, $1)", prefix):
        await connection.execute(f"DROP ROLE {row['rolname']}")
