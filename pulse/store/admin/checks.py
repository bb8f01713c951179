"""
The checker: tests the invariants in the database, one statement after the other.

Each invariant is a statement of ``checks.sql`` or ``audit_checks.sql``; this module only decides which of them can run.
The audit, a record of every change that ``audit.sql`` installs, is off by default: it doubles the cost of each change.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import asyncpg
import msgspec
from msgspec.structs import replace

from pulse.errors import ConflictError, NotFoundError, PulseError, SchemaError, UnavailableError
from pulse.store.admin.schema import SCHEMA_VERSION, installed_version, works_with
from pulse.store.connections.citus import KEPT_BY_CITUS, is_distributed
from pulse.store.connections.pool import Target, connect
from pulse.store.connections.session import schema_in
from pulse.store.failures import Meaning, meaning_of
from pulse.store.statements import Statement, parse, texts
from pulse.system import processes

if TYPE_CHECKING:
    from asyncpg import Connection, Record

__all__ = [
    "AUDIT",
    "AUDIT_SQL",
    "TABLES",
    "Check",
    "CheckResult",
    "Examination",
    "Example",
    "install_audit",
    "remove_audit",
]

State: TypeAlias = Literal["ok", "violated", "skipped", "unfinished"]

IDLE_S: Final = 5.0  # of a session in a transaction; pulse's take milliseconds, and the server ends them after 10 s
BURIAL_S: Final = 3.0  # a dead worker's jobs are given back within milliseconds; a busy machine may take a second
_POLL_S: Final = 0.1
_SLACK_S: Final = 5.0  # the server's own limit comes first where the server still answers
_HALF_OF_BOOT: Final = 16
(AUDIT_SQL,) = texts("admin", "audit.sql")
_STATEMENTS: Final = parse(*texts("admin", "checks.sql", "audit_checks.sql"))
_DEAD: Final = "dead-processes"
_GUARDS: Final = "guards"
READING: Final = {"default_transaction_read_only": "on", "jit": "off", "work_mem": "64MB"}


class Check(msgspec.Struct, frozen=True):
    """
    One invariant.

    Attributes:
        name: What it is called in the output.
        what: What must hold, a sentence; it begins with the invariant's number where it has one.
        statement: The statement that finds violations; None: the database alone cannot tell.
        needs_watchdog: Whether it holds only while a watchdog runs.
    """

    name: str
    what: str
    statement: Statement | None
    needs_watchdog: bool = False


class Example(msgspec.Struct, frozen=True):
    """One violation: the row, and what is wrong with it."""

    id: str
    detail: str


class CheckResult(msgspec.Struct, frozen=True):
    """
    The result of one check.

    Attributes:
        state: Whether it holds; ``skipped``: it could not be tested now; ``unfinished``: it took too long.
        violations: How many there are.
        examples: Some of them.
        reason: Why it was skipped or is unfinished.
        took_s: Seconds.
    """

    check: Check
    state: State
    violations: int = 0
    examples: tuple[Example, ...] = ()
    reason: str | None = None
    took_s: float = 0.0

    @property
    def is_bad(self) -> bool:
        """Whether an operator has to look at it."""
        return self.state in {"violated", "unfinished"}


def _checks(prefix: str, needs_watchdog: Sequence[str] = ()) -> list[Check]:
    found = [one for one in _STATEMENTS.values() if one.name.startswith(prefix) and "violations" in one.sql]
    names = {one.name: one.name.removeprefix(prefix).replace("_", "-") for one in found}
    return [Check(names[one.name], _what(one), one, needs_watchdog=names[one.name] in needs_watchdog) for one in found]


def _what(statement: Statement) -> str:
    return " ".join(statement.header.partition("What:")[2].partition("Args:")[0].split())


TABLES: Final = (
    *_checks("check_", ("lapsed", "late-schedules")),
    Check(_DEAD, "no job is held by a process of this host that is dead", None, needs_watchdog=True),
)
AUDIT: Final = tuple(_checks("audit_"))


class Examination:
    """
    A run of checks, each in a transaction of its own: together they would pin a snapshot, and slow the queue down.

    Args:
        target: The database.
        audit: Also run the checks that need the audit.
        grace_s: How long a lapsed lease or a due schedule may wait for its actor; a watchdog that has not swept for so
            long counts as absent.
        timeout_s: Longest time for one check.
        examples: Most violations of a check that are listed.
    """

    def __init__(self, target: Target, *, audit: bool, grace_s: float, timeout_s: float, examples: int) -> None:
        self._target = target
        self._audit = audit
        self._grace_s = grace_s
        self._timeout_s = timeout_s
        self._examples = examples
        self.checks: Final = (*TABLES, *AUDIT) if audit else TABLES

    async def findings(self) -> AsyncGenerator[CheckResult]:
        """
        The result of each check, in order, as soon as it is there.

        Raises:
            SchemaError: pulse's schema is not there, or of another version.
            NotFoundError: No audit is installed.
            UnavailableError: The database is away.
        """
        settings = {**READING, "statement_timeout": str(round(self._timeout_s * 1000))}
        async with connected(self._target, settings) as connection:
            await _refuse_strangers(connection)
            if self._audit and not await connection.fetchval(_STATEMENTS["audit_exists"].sql):
                raise NotFoundError("no audit is installed; `pulse check --install-audit` does it")
            for check in self.checks:
                yield await self.examine(connection, check)

    async def examine(self, connection: Connection[Record], check: Check) -> CheckResult:
        """Run one check."""
        started_s = time.monotonic()
        finding = await self._examine(connection, check)
        return replace(finding, took_s=round(time.monotonic() - started_s, 3))

    async def _examine(self, connection: Connection[Record], check: Check) -> CheckResult:
        try:
            if check.needs_watchdog and (reason := await self._absence(connection)):
                return CheckResult(check, "skipped", reason=reason)
            if check.name == _GUARDS and await is_distributed(connection):
                return CheckResult(check, "skipped", reason=KEPT_BY_CITUS)
            if check.statement is None:
                return _finding(check, await _held_by_dead(connection), self._examples)
            rows = await self._fetch(connection, check.statement)
        except asyncpg.PostgresError as error:
            if meaning_of(error) is not Meaning.CONTESTED:
                raise
            return CheckResult(check, "unfinished", reason=f"not done in time: {error}")
        examples = tuple(Example(row["id"], row["detail"]) for row in rows)
        return CheckResult(check, "violated" if rows else "ok", rows[0]["violations"] if rows else 0, examples=examples)

    async def _fetch(self, connection: Connection[Record], statement: Statement) -> list[Record]:
        more = () if "$2" not in statement.sql else (IDLE_S if statement.name == "check_sessions" else self._grace_s,)
        async with asyncio.timeout(self._timeout_s + _SLACK_S):
            return await connection.fetch(statement.sql, self._examples, *more)

    async def _absence(self, connection: Connection[Record]) -> str | None:
        """Why checks that need a watchdog are skipped; None: one is running."""
        age_s = await connection.fetchval(_STATEMENTS["sweep_age"].sql)
        if age_s is not None and age_s <= self._grace_s:
            return None
        return f"no watchdog has swept for {age_s:.0f} s" if age_s is not None else "no watchdog has ever swept"


async def install_audit(target: Target) -> None:
    """
    Record every change from now on.

    Raises:
        ConflictError: An audit is installed already.
    """
    async with connected(target, {}) as connection:
        await _refuse_strangers(connection)
        try:
            async with connection.transaction():
                await connection.execute(AUDIT_SQL)
        except asyncpg.DuplicateSchemaError:
            raise ConflictError("an audit is installed already") from None


async def remove_audit(target: Target) -> bool:
    """Remove the audit and its records; False: there was none."""
    async with connected(target, {}) as connection:
        try:
            await connection.execute(_STATEMENTS["audit_drop"].sql)
        except asyncpg.InvalidSchemaNameError:
            return False
        return True


@contextlib.asynccontextmanager
async def connected(
    target: Target, settings: dict[str, str], *, owns_session: bool = False
) -> AsyncGenerator[Connection[Record]]:
    connection = await connect(target, settings, owns_session=owns_session)
    try:
        yield connection
    except PulseError:
        raise
    except Exception as error:
        if meaning_of(error) in {Meaning.AWAY, Meaning.CONTESTED}:
            raise UnavailableError(f"the database {target.shown} is away: {str(error) or 'no answer'}") from error
        if isinstance(error, asyncpg.PostgresError):
            raise PulseError(f"the database refused: {error}") from error
        raise
    finally:
        connection.terminate()


async def _refuse_strangers(connection: Connection[Record]) -> None:
    version = await installed_version(connection)
    if not works_with(version):
        found = f"version {version}" if version else "not installed"
        name = schema_in(connection)
        raise SchemaError(f"the schema {name} is {found}; this program checks version {SCHEMA_VERSION}: pulse migrate")


async def _held_by_dead(connection: Connection[Record]) -> list[Example]:
    """Jobs that dead processes of this host still hold, longer than the server needs to take them back."""
    deadline_s = time.monotonic() + BURIAL_S
    left = await _dead_holdings(connection)
    while left and time.monotonic() < deadline_s:
        await asyncio.sleep(_POLL_S)
        left &= await _dead_holdings(connection)
    return sorted(left, key=lambda one: one.id)


async def _dead_holdings(connection: Connection[Record]) -> set[Example]:
    workers = [row["worker"] for row in await connection.fetch(_STATEMENTS["holders"].sql)]
    dead = [worker for worker in workers if _is_dead(worker)]
    rows = await connection.fetch(_STATEMENTS["held_by"].sql, dead) if dead else []
    return {Example(row["id"], f"attempt {row['attempts']}, held by {row['worker']}") for row in rows}


def _is_dead(worker: str) -> bool:
    """Whether *worker* names a process of this kernel and pid namespace (others cannot be seen) that has ended."""
    try:
        _, boot, pidns, process, _ = worker.split("/", 4)
        pid, start_time = map(int, process.split("."))
    except ValueError:
        return False
    if (boot, pidns) != (processes.boot_id()[:_HALF_OF_BOOT], str(processes.pid_namespace())) or pid <= 0:
        return False
    return processes.start_time(pid) != start_time or processes.state(pid) in {"Z", "X", ""}


def _finding(check: Check, found: Sequence[Example], limit: int) -> CheckResult:
    return CheckResult(check, "violated" if found else "ok", len(found), examples=tuple(found[:limit]))
