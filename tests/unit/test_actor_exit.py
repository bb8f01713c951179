"""Which ends of an actor are the database's: they are not counted."""

from __future__ import annotations

import asyncpg
import pytest

from pulse.errors import StatementError, UnavailableError
from pulse.store.failures import UnreadableAnswerError
from pulse_actors.runtime.actor import _is_of_database

OF_DATABASE = (
    UnavailableError(),
    StatementError("no", sqlstate="22021", statement="claim_jobs", may_be_done=True),
    asyncpg.PostgresError("no"),
    asyncpg.InterfaceError("no"),
    asyncpg.InternalClientError("no"),
    UnreadableAnswerError("no"),
)


@pytest.mark.parametrize("error", OF_DATABASE, ids=lambda error: type(error).__name__)
def test_errors_of_the_database(error: Exception) -> None:
    """Each kind that a connection raises is; a group is where all of it is."""
    assert _is_of_database(error)
    assert _is_of_database(ExceptionGroup("", [error, ExceptionGroup("", [error])]))
    assert not _is_of_database(ExceptionGroup("", [error, KeyError()]))


def test_others() -> None:
    """A bug is not."""
    assert not _is_of_database(KeyError())
