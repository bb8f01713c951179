"""
What an error of the database means: the one place that decides.

========== =================================================== ===========================================
meaning    what it is                                          what is done, and as what it is raised
========== =================================================== ===========================================
away       going, coming, full of connections, read-only       back off, keep, repeat: UnavailableError
contested  somebody's lock, or the statement's own time limit  StatementTimeoutError: the others without these rows
value      what was given cannot be stored                     StatementError, ``is_value``: refuse that alone
statement  all else, also what no PostgreSQL of today says     StatementError: find the row, or back off
unreadable a value in its answer is none: a bad byte on a disk StatementError, ``may_be_done``: as above, and it is done
========== =================================================== ===========================================

A server that is away says so of every statement. One that answers all others, and always says "away" of the same one,
is not away: that statement meets a row, a trigger or a page of the disk that does so.
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

# All that a connection raises; InternalClientError, too, where it is cut just before it is used.
OF_DRIVER: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
FAILURES: Final = (*OF_DRIVER, OSError)
IN_VAIN: Final = 8  # rows from all over, that were refused, each by itself, and none was written: it is not about rows

AWAY_CLASSES: Final = frozenset({"08"})
# Shut down, starting, dropped; too many connections; read-only; the session was idle for too long.
AWAY_SQLSTATES: Final = frozenset({"57P01", "57P02", "57P03", "57P04", "57P05", "53300", "25006", "25P03"})
CONTESTED_SQLSTATES: Final = frozenset({"55P03", "57014"})
# Data exception, constraint, check option of a view; too complex, too many columns or arguments.
VALUE_CLASSES: Final = frozenset({"22", "23", "44"})
VALUE_SQLSTATES: Final = frozenset({"54001", "54011", "54023"})
# Behind these nobody knows what state the session is in, or its prepared statements: it is made anew.
UNSAFE_CLASSES: Final = frozenset({"08", "0A", "25", "26", "34", "3F", "42", "53", "57", "58", "XX"})
UNIQUE_VIOLATION: Final = "23505"
CONSTRAINTS: Final = "23"  # a class; a handler's result breaks none of pulse's: it is somebody's, and may be dropped
NO_DATA: Final = "02000"
STUBBORN: Final = 5  # times in a row that one statement hears "away", of a server that lets us in each time
AT_ONCE_S: Final = 1.0  # less than any time limit of a statement on a hot connection, which a lock would use up
OLD_S: Final = 60.0  # since a statement failed last, without success behind it: nobody tries it any more
# What the tables' CHECKs mean; the names of the constraints begin with the table's.
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

    As if the server had said so, which looks at text when it comes in, not when it goes out: whoever deals with what a
    server says of a corrupt value deals with this one.
    """


class Meaning(enum.Enum):
    """See above."""

    AWAY = enum.auto()
    CONTESTED = enum.auto()
    VALUE = enum.auto()
    STATEMENT = enum.auto()


def meaning_of(error: BaseException) -> Meaning | None:
    """What *error* means, by itself; None: it is none of a connection."""
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
    """Whether the session can be used again: of all else nobody knows what state it is in."""
    return (error.sqlstate or "")[:2] not in UNSAFE_CLASSES and not isinstance(error, UnreadableAnswerError)


def refusal_of(error: UnavailableError, took_s: float | None = None) -> StatementError | None:
    """
    *error* as what the server said of the statement; None: it said nothing, or that a lock blocked it.

    For who carries out parts of a statement that was refused: one part says "away" where the others succeed.

    Args:
        error: As the statement raised it.
        took_s: How long the statement took, where that is known. A lock uses up its time limit, and a server that goes
            away ends what is under way: what was said at once, whatever it is, was said by what the statement met.
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
    """Whether the server says so, of a statement: not while it is connected to, and not the driver (no severity)."""
    return getattr(error, "severity", None) is not None and hasattr(error, "statement")


def refuse_swallowed(given: int, stored: int) -> None:
    """
    Hold against each other how many jobs were *given*, and how many are *stored*.

    Raises:
        StatementError: Some are not: a trigger or a rule may drop a row without a word, and that is not "ok".
    """
    if stored < given:
        message = (
            f"the database drops {given - stored} of {given} jobs without an error: a trigger or a rule that is not "
            "pulse's does so; pulse doctor names it"
        )
        raise StatementError(message, sqlstate=NO_DATA, statement="submit_jobs")


def ran_too_long(error: BaseException) -> bool:
    """Whether *error* says that a statement took too long, and not that it waited for somebody's lock."""
    return isinstance(error, StatementTimeoutError) and isinstance(error.__cause__, asyncpg.QueryCanceledError)


class Failure(msgspec.Struct, frozen=True):
    """
    A statement that the database refuses.

    Attributes:
        statement: Its name.
        sqlstate: What the last refusal was.
        error: In one line.
        times: In a row.
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
        """One more time."""
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
        """What is refused now, the newest last; without refusals of single values."""
        now_s = time.monotonic()
        self._of = {name: one for name, one in self._of.items() if now_s - one.last_s < OLD_S}
        return sorted(self._of.values(), key=lambda one: one.last_s)


def explain(error: Exception) -> str:
    """*error*, of the database or about it, in one line."""
    constraint = str(getattr(error, "constraint_name", None) or "").partition("_")[2]
    if constraint in _CHECKS:
        return _CHECKS[constraint]
    message = str(error.args[0]) if error.args else str(error)
    # Of a row that a constraint refuses, the detail is the row: others' args, and what is redacted.
    detail = None if isinstance(error, _OF_A_ROW) else getattr(error, "detail", None)
    return " ".join(f"{message} ({detail})".split() if detail else message.split())


def error_of(error: Exception, failing: Failing, shown: str, deadline_s: float) -> UnavailableError | None:
    """
    As what *error* is raised; None: as it is.

    Args:
        error: As the connection raised it; it knows its statement, where it is of one.
        failing: Takes note of it.
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
    statement: str = getattr(error, "statement", "a transaction")  # whose end was refused, not one of its statements
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
