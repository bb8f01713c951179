"""
Reads what `pulse doctor` needs from a database in whatever state, within a time limit.

Settings are made for single transactions, never for the session: so it works through a pooler, and sees the settings as
the role has them.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncGenerator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import msgspec

from pulse.common.dsn import hosts_of
from pulse.errors import PulseError, UnavailableError
from pulse.security.schema_name import DEFAULT, quoted
from pulse.store.admin.schema import SCHEMA_VERSION, is_development, works_with
from pulse.store.connections.citus import CITUS, KEPT_BY_CITUS, is_distributed
from pulse.store.connections.pool import Target, connect
from pulse.store.failures import FAILURES, Meaning, meaning_of
from pulse.store.statements import Statement, parse, schema_sql, texts

if TYPE_CHECKING:
    from asyncpg import Connection, Record

    from pulse.store.connections.pool import Pool

STATEMENT_S: Final = 2.0  # of a statement on a server that is in trouble already
LOCK_S: Final = 0.5
_SLACK_S: Final = 0.5
_PROBES: Final = 8  # a single probe misses one pooler in twenty while three other clients probe
_PROBE_S: Final = 1.0  # a pooler with a single connection lets the second client wait
QUESTIONS: Final = parse(*texts("admin", "doctor.sql", "doctor_limits.sql", "doctor_workflows.sql"))
_HAS_CITUS: Final = CITUS["has_citus"]
_ON_CITUS: Final = CITUS["distributed"]
FINDING_S: Final = 1.5  # of which the server takes a third
IDENTITY: Final = "identity"
_QUEUE: Final = "queue_"
_INDEX: Final = re.compile(r"^CREATE (?:UNIQUE )?INDEX (\w+) ON pulse\.", re.MULTILINE)
SERVER_CHECKS: Final = (
    "settings", "replication", "connections", "role", "rights", "indexes", "additions", "xmin", "transactions", "locks",
    "tables", "wraparound", "notifications",
)  # fmt: skip
_OF_ONE_SERVER: Final = ("clusters", "indexes")  # checks that mean nothing where Citus keeps the tables
QUEUE_CHECKS: Final = tuple(name for name in QUESTIONS if name.startswith(_QUEUE))


class DatabaseAnswers(msgspec.Struct):
    """
    The answers of a database.

    Attributes:
        away: Why there are none; None: it answered.
        shown: Its DSN without the password.
        rows: The rows of each statement, by its name.
        failed: Why a statement has no rows, by its name.
    """

    shown: str
    away: str | None = None
    rows: dict[str, list[Mapping[str, Any]]] = msgspec.field(default_factory=dict[str, list[Mapping[str, Any]]])
    failed: dict[str, str] = msgspec.field(default_factory=dict[str, str])


def expected_indexes() -> list[str]:
    """The indexes that schema.sql makes by name; those of constraints are `pulse check`'s business."""
    return _INDEX.findall(schema_sql())


async def look(dsn: str, within_s: float, schema: str = DEFAULT) -> DatabaseAnswers:
    """
    Run all statements that can run.

    Args:
        dsn: The database.
        within_s: Longest time for the whole, seconds.
        schema: Name of the schema in it.
    """
    target = Target(dsn, "pulse doctor", schema)
    seen = DatabaseAnswers(target.shown)
    reason = "there was no time left to ask"
    deadline_s = time.monotonic() + within_s
    try:
        async with asyncio.timeout(within_s), _connected(target) as connection:
            await _ask_all(seen, target, connection, deadline_s)
    except PulseError as error:
        seen.away = error.message
    except FAILURES as error:
        reason = str(error) or f"no answer within {within_s:g} s"
        if IDENTITY not in seen.rows:
            seen.away = f"the database {target.shown} is away: {reason}"
    for name in (*SERVER_CHECKS, *QUEUE_CHECKS, "schema", "pooler", "clusters"):
        if name not in seen.rows:
            seen.failed.setdefault(name, reason if seen.away is None else "the database is away")
    return seen


async def _ask_all(seen: DatabaseAnswers, target: Target, connection: Connection[Record], deadline_s: float) -> None:
    before_s = time.time()
    await _ask(seen, connection, QUESTIONS[IDENTITY])
    if IDENTITY not in seen.rows:
        raise UnavailableError(seen.failed[IDENTITY])
    (identity,) = seen.rows[IDENTITY] = [_with_skew(row, before_s, time.time()) for row in seen.rows[IDENTITY]]
    await _ask(seen, connection, _HAS_CITUS)
    if any(row["has_citus"] for row in seen.rows.get(_HAS_CITUS.name, [])):
        await _ask(seen, connection, _ON_CITUS)
    if any(row["is_distributed"] for row in seen.rows.get(_ON_CITUS.name, [])):
        seen.failed |= dict.fromkeys(_OF_ONE_SERVER, KEPT_BY_CITUS)
    else:
        seen.rows["clusters"] = await clusters_of(target)
    seen.rows["pooler"] = [await pooler_between(connection, identity["pid"], target)]
    schema = await _schema(seen, connection)
    seen.rows["schema"] = [schema]
    is_known = works_with(schema["version"]) and not schema["is_development"]
    for name in (*SERVER_CHECKS, *(QUEUE_CHECKS if is_known else ())):
        if name not in seen.failed and time.monotonic() + STATEMENT_S < deadline_s:
            await _ask(seen, connection, QUESTIONS[name])
    if not is_known:
        seen.failed |= dict.fromkeys(QUEUE_CHECKS, "the schema is of another version, or not there")


async def _ask(seen: DatabaseAnswers, connection: Connection[Record], question: Statement) -> None:
    """The rows of one statement, or why there are none."""
    try:
        async with _transaction(connection):
            seen.rows[question.name] = [dict(row) for row in await connection.fetch(question.sql)]
    except asyncpg.QueryCanceledError:
        seen.failed[question.name] = f"not told within {STATEMENT_S:g} s"
    except asyncpg.LockNotAvailableError:
        seen.failed[question.name] = f"another session locks what is looked at, for more than {LOCK_S:g} s"
    except asyncpg.PostgresError as error:
        if meaning_of(error) is Meaning.AWAY:
            raise
        seen.failed[question.name] = str(error)


def _with_skew(identity: Mapping[str, Any], before_s: float, after_s: float) -> Mapping[str, Any]:
    """How far the database's clock is ahead of this host's, and how long the question took that lets this be known."""
    skew_s = identity["clock_s"] - (before_s + after_s) / 2
    return {**identity, "skew_s": skew_s, "trip_s": after_s - before_s}


async def _schema(seen: DatabaseAnswers, connection: Connection[Record]) -> Mapping[str, Any]:
    """The version that is installed (0: none), that of this program, and whether the former was never released."""
    await _ask(seen, connection, QUESTIONS["schema_there"])
    if any(row["is_there"] for row in seen.rows.get("schema_there", [])):
        await _ask(seen, connection, QUESTIONS["schema_found"])
    found = {"version": 0, "wanted": SCHEMA_VERSION, "is_development": False, "works": False}
    for row in seen.rows.get("schema_found", []):
        found |= {"version": row["version"], "is_development": is_development(row["version"], row["release"])}
        found |= {"works": works_with(row["version"])}
    return found


async def clusters_of(target: Target) -> list[Mapping[str, Any]]:
    """The cluster behind each host of the DSN that answers (``host``, ``system_id``), where it has several."""
    hosts = [Target(dsn, target.application_name) for dsn in hosts_of(target.dsn)]
    if len(hosts) == 1:
        return []
    found = await asyncio.gather(*map(_cluster_of, hosts))
    return [
        {"host": host.shown, "system_id": system_id} for host, system_id in zip(hosts, found, strict=True) if system_id
    ]


async def _cluster_of(target: Target) -> str | None:
    """The identifier of a cluster, which its standbys have, too; None: it does not answer."""
    try:
        async with (
            asyncio.timeout(_PROBE_S),
            _connected(target, {"default_transaction_read_only": "on"}) as connection,  # a standby will do, too
            _transaction(connection),
        ):
            row = await connection.fetchrow(QUESTIONS[IDENTITY].sql)
    except (PulseError, *FAILURES):
        return None
    return None if row is None else str(row["system_id"])


async def pooler_between(connection: Connection[Record], pid: int, target: Target) -> Mapping[str, Any]:
    """
    Whether there is a pooler (``is_between``), and whether it keeps sessions apart (``keeps_session``).

    A pooler invents a process number for each client. To see whether a session keeps its server process, a mark is set
    in it, and looked for while another client keeps the first process busy. Several rounds, since actors that start
    together probe at the same time, and one that takes the first process in between spoils a round.
    """
    is_between = connection.get_server_pid() != pid
    if not is_between:
        return {"is_between": False, "keeps_session": True}
    seen = set[tuple[object, ...]]()  # the process and the mark in it, at each look
    try:
        async with asyncio.timeout(_PROBE_S) as limit, _connected(target) as other:
            for _ in range(_PROBES):
                async with _transaction(connection):
                    begun = await other.fetch(QUESTIONS["begin_probe"].sql, str(other.get_server_pid()))
                ended = await other.fetch(QUESTIONS["end_probe"].sql)
                seen.update(map(tuple, (*begun, *ended)))
                limit.reschedule(asyncio.get_running_loop().time() + _PROBE_S)  # a distant database is not refused
    except (PulseError, *FAILURES):
        seen.clear()  # it let only one of two sessions run
    return {"is_between": True, "keeps_session": len(seen) == 1}


@contextlib.asynccontextmanager
async def _transaction(connection: Connection[Record]) -> AsyncGenerator[None]:
    async with asyncio.timeout(STATEMENT_S + _SLACK_S):
        transaction = connection.transaction(readonly=True)
        await transaction.start()
        try:
            await connection.fetchrow(QUESTIONS["limits"].sql, _ms(STATEMENT_S), _ms(LOCK_S))
            yield
        finally:
            if not connection.is_closed():  # else that error would hide why it was closed
                await transaction.rollback()


def _ms(seconds: float) -> str:
    return str(round(seconds * 1000))


@contextlib.asynccontextmanager
async def _connected(
    target: Target, settings: Mapping[str, str] = MappingProxyType({})
) -> AsyncGenerator[Connection[Record]]:
    connection = await connect(target, settings, limits={}, statements=0)
    try:
        yield connection
    finally:
        connection.terminate()


class FindingStore:
    """
    The statements of `pulse doctor` that a running server repeats while somebody asks for its state; each is bounded.

    Args:
        pool: One connection with short time limits.
        schema: Name of the schema.

    Attributes:
        schema: The same, as SQL has it.
    """

    def __init__(self, pool: Pool, schema: str = DEFAULT) -> None:
        self._pool = pool
        self.schema = quoted(schema)

    async def ask(self, question: str) -> list[Mapping[str, Any]] | None:
        """The rows of one of ``QUESTIONS``; None: the database is away, took too long, or has nothing to tell."""
        before_s = time.time()
        try:
            async with self._pool.connection(deadline_s=FINDING_S) as connection:
                if question in _OF_ONE_SERVER and await is_distributed(connection):
                    return None
                rows: list[Mapping[str, Any]] = [dict(row) for row in await connection.fetch(QUESTIONS[question].sql)]
        except UnavailableError:
            return None
        return [_with_skew(row, before_s, time.time()) for row in rows] if question == IDENTITY else rows
