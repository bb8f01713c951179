"""Partial indexes have the rows that they are for, and no others, which would make them and each write larger."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pytest

from tests.support.admin.checks import DONE, RUNNING, Columns, insert_of
from tests.support.store.helpers import Sql

_DEAD: Final = {"status": "'DEAD_LETTERED'", "completed_at": "now()", "last_error": "'no handler named n'"}
_OF_SCHEDULE: Final = {"schedule_id": "'00000000-0000-0000-0000-000000000007'", "occurrence": "now()"}
_HELD: Final = {"next_run_at": "'9999-12-30 00:00+00'"}
_FAILED: Final = {"status": "'RETRYING'", "next_run_at": "now()"}
_KEY: Final = {"unique_key": "'k'", "unique_until": "'start'"}
_GROUP: Final = {"group_key": "'g'"}
_DUE: Final = {"next_run_at": "now()"}
# Index -> its table, a row that it has, and rows that it has not: each breaks one part of its condition.
INDEXES: Final[dict[str, tuple[str, Columns, list[Columns]]]] = {
    "idx_attempts_lost": ("attempts", {"outcome": "'crashed'"}, [{}]),
    "idx_handlers_backoff": ("handlers", {"backoff": "'fixed:1'"}, [{}]),
    "idx_handlers_events": ("handlers", {"on_crash": "'n'"}, [{}]),
    "idx_jobs_claim": ("jobs", {}, [_GROUP, DONE]),
    "idx_jobs_counted": ("jobs", {**RUNNING, "counted_by": "'l'"}, [RUNNING, {"counted_by": "'l'"}]),
    "idx_jobs_ended_badly": ("jobs", _DEAD, [{}, DONE]),
    "idx_jobs_expiry": ("jobs", {"expires_at": "now()"}, [{}, {**DONE, "expires_at": "now()"}]),
    "idx_jobs_groups": ("jobs", _GROUP, [{}, {**DONE, **_GROUP}]),
    "idx_jobs_held": (
        "jobs", {**_OF_SCHEDULE, **_HELD}, [_HELD, _OF_SCHEDULE, {**_OF_SCHEDULE, **_HELD, "status": "'RETRYING'"}],
    ),
    "idx_jobs_other_ids": ("jobs", {"id": "gen_random_uuid()"}, [{"id": "pulse.uuid7()"}]),
    "idx_jobs_running": ("jobs", RUNNING, [{}, DONE]),
    "idx_jobs_schedule": ("jobs", _OF_SCHEDULE, [{}]),
    "idx_jobs_unhandled": (
        "jobs", {"last_error": "'no handler named n'"}, [{}, {"last_error": "'it has no handler named n'"}, _DEAD],
    ),
    "idx_jobs_unique": ("jobs", _KEY, [{}, {**_KEY, **DONE}, {**_KEY, **RUNNING}]),
    "idx_schedules_due": (
        "schedules", _DUE, [{}, {**_DUE, "paused": "true"}, {**_DUE, "error": "'e'"}],
    ),
    "idx_schedules_key": ("schedules", {"key": "'k'"}, [{}]),
    "idx_schedules_reckon": ("schedules", {"reckon": "true"}, [{"reckon": "false"}]),
    "idx_schedules_waiting": ("schedules", {"waiting": "1"}, [{}]),
    "idx_topics_backoff": ("topics", {"backoff": "'fixed:1'"}, [{}]),
    "idx_topics_lease": ("topics", {"lease_s": "60"}, [{}]),
    "idx_topics_live": ("topics", {"ageing_s": "60"}, [{"max_attempts": "5"}]),
    "idx_topics_publish": ("topics", {"publish": "true"}, [{}]),
}  # fmt: skip


async def pages(connection: Sql, index: str, rows: Iterable[Columns]) -> int:
    """How many pages an index has when its table has just these rows; the first page of each index is its own."""
    table, _, _ = INDEXES[index]
    await connection.execute(f"TRUNCATE pulse.{table} CASCADE")
    for row in rows:
        await connection.execute(insert_of(table, row))
    size: int = await connection.fetchval("SELECT pg_relation_size(('pulse.' || $1)::regclass) / 8192", index)
    return size


@pytest.mark.parametrize("index", INDEXES)
async def test_what_an_index_has(connection: Sql, index: str) -> None:
    _, row, others = INDEXES[index]
    assert await pages(connection, index, [row]) == 2
    for other in others:
        assert await pages(connection, index, [other]) == 1, other


async def test_every_partial_index_is_here(connection: Sql) -> None:
    sql = """
        SELECT c.relname FROM pg_index x JOIN pg_class c ON c.oid = x.indexrelid
        WHERE x.indpred IS NOT NULL AND c.relnamespace = 'pulse'::regnamespace"""
    assert {row["relname"] for row in await connection.fetch(sql)} == INDEXES.keys()
