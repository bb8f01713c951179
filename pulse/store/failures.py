"""
Decides what an error of the database means.

========== =================================================== ===========================================
meaning    cause                                               action, and exception raised
========== =================================================== ===========================================
away       stopping, starting, out of connections, read-only   back off and repeat: UnavailableError
contested  a lock, or the statement's own time limit           StatementTimeoutError: repeat without these rows
value      an argument cannot be stored                        StatementError, ``is_value``: refuse that value alone
statement  all else, also SQLSTATEs of future versions         StatementError: find the row, or back off
unreadable the answer cannot be decoded: a bad byte on a disk  StatementError, ``may_be_done``: it was carried out
========== =================================================== ===========================================

A server that is away fails every statement. If it answers all others, and always fails the same one with such an error,
it is not away: that statement meets a row, a trigger or a page of the disk that causes the error.
"""

from __future__ import annotations

import enum
import time
from typing import Final

import asyncpg
import msgspec
from msgspec.structs import replace

from pulse.errors import StatementError, StatementTimeoutError, UnavailableError
from pulse.store.statements import name_of

# All that a connection raises; InternalClientError where it is cut just before it is used.
OF_DRIVER: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
FAILURES: Final = (*OF_DRIVER, OSError)
IN_VAIN: Final = 8  # rows from different places, refused one by one while none succeeds: then rows are not the cause

AWAY_CLASSES: Final = frozenset({"08"})
# Shut down, starting, dropped; too many connections; read-only; the session was idle for too long.
AWAY_SQLSTATES: Final = frozenset({"57P01", "57P02", "57P03", "57P04", "57P05", "53300", "25006", "25P03"})
CONTESTED_SQLSTATES: Final = frozenset({"55P03", "57014"})
# Data exception, constraint, check option of a view; too complex, too many columns or arguments.
VALUE_CLASSES: Final = frozenset({"22", "23", "44"})
VALUE_SQLSTATES: Final = frozenset({"54001", "54011", "54023"})
# After these the state of the session and its prepared statements is unknown: it is replaced.
UNSAFE_CLASSES: Final = frozenset({"08", "0A", "25", "26", "34", "3F", "42", "53", "57", "58", "XX"})
UNIQUE_VIOLATION: Final = "23505"
FOREIGN_KEY_VIOLATION: Final = "23503"
CONSTRAINTS: Final = "23"  # a class; results break no constraint of pulse: another program added it, and may drop it
NO_DATA: Final = "02000"
STUBBORN: Final = 5  # failures in a row of one statement as "away" while new connections succeed
AT_ONCE_S: Final = 1.0  # less than any time limit of a statement on a hot connection, which a lock would use up
OLD_S: Final = 60.0  # since a statement failed last: it is not tried any more
# Messages for the tables' CHECKs; the names of constraints begin with the table's.
_CHECKS: Final = {
    "args": "args must be a JSON object",
    "name": "name must have 1 to 200 characters",
    "topic": "topic must have 1 to 200 characters",
    "next_run_at": "its time must lie in the years 1 to 9999",
    "expires_at": "its expiry must lie in the years 1 to 9999",
    "run_at": "its time must lie in the years 1 to 9999",
    "starts_at": "starts_at must lie in the years 1 to 9999",
    "ends_at": "ends_at must lie in the years 1 to 9999",
}
_OF_A_ROW: Final = (asyncpg.CheckViolationError, asyncpg.NotNullViolationError)


class UnreadableAnswerError(asyncpg.CharacterNotInRepertoireError):
    """
    The answer of a statement cannot be read; the statement was carried out.

    The server checks text when it is stored, not when it is read. Code that handles the server's own errors about a
    corrupt value handles this one, too.
    """


class Meaning(enum.Enum):
    """The meanings in the table above."""

    AWAY = enum.auto()
    CONTESTED = enum.auto()
    VALUE = enum.auto()
    STATEMENT = enum.auto()


def meaning_of(error: BaseException) -> Meaning | None:
    """What *error* means by itself; None: it does not come from a connection."""
    if not isinstance(error, asyncpg.PostgresError):
        return Meaning.AWAY if isinstance(error, FAILURES) else None
    if isinstance(error, UnreadableAnswerError):  # its SQLSTATE means a value that was given
        return Meaning.STATEMENT
    state = error.sqlstate or ""
    if state in AWAY_SQLSTATES or state[:2] in AWAY_CLASSES:
        return Meaning.AWAY
    if state in CONTESTED_SQLSTATES:
        return Meaning.CONTESTED
    if state in VALUE_SQLSTATES or state[:2] in VALUE_CLASSES:
        return Meaning.VALUE
    return Meaning.STATEMENT


def is_safe_after(error: asyncpg.PostgresError) -> bool:
    """Whether the session can be used again: after other errors its state is unknown."""
    return (error.sqlstate or "")[:2] not in UNSAFE_CLASSES and not isinstance(error, UnreadableAnswerError)


def refusal_of(error: UnavailableError, took_s: float | None = None) -> StatementError | None:
    """
    *error* as the server's refusal of the statement; None: the server did not answer, or a lock blocked it.

    For callers that repeat a refused statement in parts: one part fails as "away" while the others succeed.

    Args:
        error: As the statement raised it.
        took_s: How long the statement took, where that is known. A lock uses up the time limit, and a server that stops
            ends statements under way: an error that comes at once was caused by a row or a trigger.
    """
    if isinstance(error, StatementError):
        return error
    cause = error.__cause__
    if not _is_said_of_statement(cause):
        return None
    if isinstance(error, StatementTimeoutError) if took_s is None else took_s >= AT_ONCE_S:
        return None
    sqlstate: str = getattr(cause, "sqlstate", None) or "?????"
    return StatementError(error.message, sqlstate=sqlstate, statement=getattr(cause, "statement", ""))


def _is_said_of_statement(error: BaseException | None) -> bool:
    """Whether the server raised it for a statement: not while connecting, and not the driver (no severity)."""
    return getattr(error, "severity", None) is not None and hasattr(error, "statement")


def refuse_swallowed(given: int, stored: int) -> None:
    """
    Compare how many jobs were *given*, and how many are *stored*.

    Raises:
        StatementError: Some are missing: a trigger or a rule drops rows without an error.
    """
    if stored < given:
        message = (
            f"the database drops {given - stored} of {given} jobs without an error: a trigger or a rule that is not "
            "pulse's does so; pulse doctor names it"
        )
        raise StatementError(message, sqlstate=NO_DATA, statement="submit_jobs")


def ran_too_long(error: BaseException) -> bool:
    """Whether *error* says that a statement ran too long, and not that it waited for a lock."""
    return isinstance(error, StatementTimeoutError) and isinstance(error.__cause__, asyncpg.QueryCanceledError)


class Failure(msgspec.Struct, frozen=True):
    """
    A statement that the database refuses.

    Attributes:
        statement: Its name.
        sqlstate: SQLSTATE of the last refusal.
        error: Its message, in one line.
        times: Refusals in a row.
        first_s: Monotonic clock, as ``last_s``.
    """

    statement: str
    sqlstate: str
    error: str
    times: int
    first_s: float
    last_s: float


class Failing:
    """The statements of a process that are refused, each until it succeeds."""

    def __init__(self) -> None:
        self._of: dict[str, Failure] = {}

    def refused(self, statement: str, sqlstate: str, error: str) -> Failure:
        """A statement was refused again."""
        now_s = time.monotonic()
        known = self._of.get(statement) or Failure(statement, sqlstate, error, times=0, first_s=now_s, last_s=now_s)
        found = replace(known, sqlstate=sqlstate, error=error, times=known.times + 1, last_s=now_s)
        self._of[statement] = found
        return found

    def succeeded(self, sql: str) -> None:
        """The statement was carried out."""
        if self._of:
            self._of.pop(name_of(sql), None)

    def now(self) -> list[Failure]:
        """The statements that are refused now, the newest last; without refusals of single values."""
        now_s = time.monotonic()
        self._of = {name: one for name, one in self._of.items() if now_s - one.last_s < OLD_S}
        return sorted(self._of.values(), key=lambda one: one.last_s)


def explain(error: Exception) -> str:
    """*error*, of the database or about it, in one line."""
    constraint = str(getattr(error, "constraint_name", None) or "").partition("_")[2]
    if constraint in _CHECKS:
        return _CHECKS[constraint]
    message = str(error.args[0]) if error.args else str(error)
    # The detail of a constraint violation shows the row: args of other users, and redacted values.
    detail = None if isinstance(error, _OF_A_ROW) else getattr(error, "detail", None)
    return " ".join(f"{message} ({detail})".split() if detail else message.split())


def error_of(error: Exception, failing: Failing, shown: str, deadline_s: float) -> UnavailableError | None:
    """
    The PulseError to raise for *error*; None: raise it unchanged.

    Args:
        error: As the connection raised it; it names its statement, if it belongs to one.
        failing: Records it.
        shown: The DSN without its password.
        deadline_s: How long the statement had.
    """
    meaning = meaning_of(error)
    if meaning is None:
        return None
    reason = str(error) or f"no answer within {deadline_s:g} s"
    if isinstance(error, asyncpg.InsufficientPrivilegeError):
        reason = f"{error.args[0]}; pulse doctor says which rights are missing"
    if meaning is Meaning.CONTESTED:
        return StatementTimeoutError(f"a statement waited too long: {reason}")
    if not isinstance(error, asyncpg.PostgresError) or (meaning is Meaning.AWAY and not _is_said_of_statement(error)):
        return UnavailableError(f"the database {shown} is away: {reason}")
    statement: str = getattr(error, "statement", "a transaction")  # the COMMIT was refused, not one of its statements
    sqlstate = error.sqlstate or "?????"
    if meaning is Meaning.VALUE:
        return StatementError(explain(error), sqlstate=sqlstate, statement=statement, is_value=True)
    failure = failing.refused(statement, sqlstate, explain(error))
    if meaning is Meaning.AWAY and failure.times < STUBBORN:
        return UnavailableError(f"the database {shown} is away: {reason}")
    is_done = isinstance(error, UnreadableAnswerError)
    told = (
        f"what {shown} answers to {statement} cannot be read"
        if is_done
        else f"the database {shown} refuses {statement}"
    )
    return StatementError(
        f"{told}: {reason} (SQLSTATE {sqlstate})", sqlstate=sqlstate, statement=statement, may_be_done=is_done
    )
