"""What the tests of `pulse doctor` ask, and the databases that it examines."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import Any, Final

import asyncpg

from pulse.ops.doctor.finding import Finding
from pulse.ops.doctor.verdicts import CheckContext, judge
from pulse.store.admin.doctor import expected_indexes, look
from tests.support.store.helpers import Sql
from tests.support.waiting import until_async

# As an operator would have it, and able to keep prepared transactions and slots.
SOUND: Final = {
    "fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", "autovacuum": "on", "wal_level": "logical",
    "max_wal_senders": "4", "max_prepared_transactions": "4",
}  # fmt: skip
WITHIN_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Patient:
    dsn: str
    sql: Sql
    sessions: list[Sql] = field(default_factory=list)

    async def found(
        self, *, grace_s: float = 60.0, served: set[str] | None = None, dsn: str = ""
    ) -> dict[str, Finding]:
        seen = await look(dsn or self.dsn, WITHIN_S)
        return {
            one.check: one
            for one in judge(seen, CheckContext(expected=expected_indexes(), served=served), grace_s=grace_s)
        }

    async def rows(self, name: str, *, dsn: str = "") -> list[dict[str, Any]]:
        seen = await look(dsn or self.dsn, WITHIN_S)
        assert name in seen.rows, seen.failed
        return [dict(row) for row in seen.rows[name]]

    async def session(self, dsn: str = "") -> Sql:
        made = await asyncpg.connect(dsn or self.dsn, server_settings={"application_name": "night report"})
        self.sessions.append(made)
        return made


def said(finding: Finding) -> str:
    return "\n".join((finding.text, *finding.details))


def check_age(pattern: str, text: str, since_s: float) -> None:
    """*pattern* is in *text*; its group is an age in seconds of what began after *since_s* (time.monotonic)."""
    found = re.search(pattern, text)
    assert found, text
    assert int(found[1]) <= time.monotonic() - since_s + 1


async def until_true(connection: Sql, sql: str) -> None:
    await until_async(lambda: connection.fetchval(sql), sql)
