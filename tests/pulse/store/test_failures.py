"""What an error of the driver becomes: as the table in ``pulse.store.failures`` says."""

from __future__ import annotations

from typing import Final

import asyncpg
import pytest

from pulse.errors import StatementError, StatementTimeoutError, UnavailableError
from pulse.store.failures import (
    AT_ONCE_S,
    STUBBORN,
    Failing,
    UnreadableAnswerError,
    error_of,
    refusal_of,
    refuse_swallowed,
)

SAID: Final = {"severity": "FATAL", "statement": "claim_jobs"}  # the server said so of a statement


def said(error: asyncpg.PostgresError) -> asyncpg.PostgresError:
    for name, value in SAID.items():
        setattr(error, name, value)
    return error


def told(error: Exception, failing: Failing | None = None) -> UnavailableError | None:
    return error_of(error, failing or Failing(), "of a test", 1.0)


@pytest.mark.parametrize(("error", "kind", "text"), [
    (OSError("cut"), UnavailableError, "is away: cut"), (TimeoutError(), UnavailableError, "no answer within 1 s"),
    (asyncpg.InterfaceError("closed"), UnavailableError, "is away: closed"),
    (asyncpg.ConnectionDoesNotExistError("lost"), UnavailableError, "is away: lost"),
    (asyncpg.LockNotAvailableError("locked"), StatementTimeoutError, "waited too long: locked"),
    (asyncpg.QueryCanceledError("late"), StatementTimeoutError, "waited too long: late"),
])  # fmt: skip
def test_a_statement_without_an_answer(error: Exception, kind: type[UnavailableError], text: str) -> None:
    found = told(error)
    assert found is not None
    assert type(found) is kind
    assert text in found.message


def test_others_stay_as_they_are() -> None:
    assert told(KeyError()) is None


@pytest.mark.parametrize(("error", "is_value", "may_be_done", "text"), [
    (asyncpg.CharacterNotInRepertoireError("bad byte"), True, False, "bad byte"),
    (asyncpg.UndefinedTableError("no table"), False, False, "refuses claim_jobs: no table"),
    (asyncpg.InsufficientPrivilegeError("no right"), False, False, "no right; pulse doctor says"),
    (UnreadableAnswerError("bad page"), False, True, "claim_jobs cannot be read: bad page"),
])  # fmt: skip
def test_a_statement_that_is_refused(
    error: asyncpg.PostgresError, is_value: bool, may_be_done: bool, text: str
) -> None:
    """Only a value that cannot be stored is no fault of the statement, which is not counted then."""
    failing = Failing()
    found = told(said(error), failing)
    assert isinstance(found, StatementError)
    assert (found.is_value, found.may_be_done, found.sqlstate) == (is_value, may_be_done, error.sqlstate)
    assert text in found.message
    assert len(failing.now()) == (not is_value)


def test_who_always_refuses_one_statement_is_not_away() -> None:
    failing = Failing()
    found = [told(said(asyncpg.AdminShutdownError("stop")), failing) for _ in range(STUBBORN)]
    assert [type(one) for one in found] == [*[UnavailableError] * (STUBBORN - 1), StatementError]


@pytest.mark.parametrize(("error", "cause", "took_s", "is_refusal"), [
    (UnavailableError("away"), OSError(), None, False),
    (UnavailableError("away"), said(asyncpg.AdminShutdownError("stop")), None, True),
    (UnavailableError("away"), said(asyncpg.AdminShutdownError("stop")), AT_ONCE_S / 2, True),
    (UnavailableError("away"), said(asyncpg.AdminShutdownError("stop")), AT_ONCE_S, False),
    (StatementTimeoutError("late"), said(asyncpg.QueryCanceledError("late")), None, False),
    (StatementTimeoutError("late"), said(asyncpg.QueryCanceledError("late")), AT_ONCE_S / 2, True),
])  # fmt: skip
def test_what_a_row_may_have_caused(
    error: UnavailableError, cause: Exception, took_s: float | None, is_refusal: bool
) -> None:
    """An answer of the server that came at once; how long it took may be unknown."""
    error.__cause__ = cause
    found = refusal_of(error, took_s)
    assert (found is not None) == is_refusal
    assert found is None or (found.statement, found.sqlstate) == ("claim_jobs", getattr(cause, "sqlstate", None))


def test_a_refusal_stays_what_it_is() -> None:
    refusal = StatementError("no", sqlstate="42P01", statement="claim_jobs")
    assert refusal_of(refusal) is refusal


def test_jobs_that_a_trigger_swallows() -> None:
    refuse_swallowed(2, 2)
    with pytest.raises(StatementError, match="drops 1 of 2 jobs"):
        refuse_swallowed(2, 1)
