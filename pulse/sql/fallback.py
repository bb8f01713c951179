"""
Submits of a client that go by SQL while no server answers.

A submit is tried on the socket first. If nobody answers there, the same jobs, with the same ids, go to the database: if
the server had taken them after all, nothing is inserted twice.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol, TypeVar
from uuid import UUID

import anyio
import anyio.to_thread

from pulse.errors import NobodyAnswersError
from pulse.security.schema_name import DEFAULT
from pulse.sql.database import CONNECT_S, FallbackDatabase
from pulse.sql.document import document_of, has_keys, ids_of

__all__ = ["AsyncFallback", "Fallback"]

ANSWER_S: Final = 2.0  # the server answers in milliseconds; one that needs longer is frozen, or its host is cut off
HURRY_S: Final = 0.1  # after one that was silent for so long, it is tried in passing only
HURRIED_S: Final = 5.0


class SubmitRequest(Protocol):
    """A request to submit jobs that have their ids."""

    @property
    def body(self) -> Mapping[str, object]: ...


SubmitT = TypeVar("SubmitT", bound=SubmitRequest)


class _SilentServer:
    """How long a submit waits for the server: hardly, after it was silent. By the monotonic clock."""

    def __init__(self) -> None:
        self._until_s = 0.0

    def patience_s(self) -> float:
        return HURRY_S if time.monotonic() < self._until_s else ANSWER_S

    def note(self, began_s: float, patience_s: float) -> None:
        """An answer was waited for in vain; one that is refused at once costs no time."""
        now_s = time.monotonic()
        if now_s - began_s >= patience_s:
            self._until_s = now_s + HURRIED_S

    def end(self) -> None:
        self._until_s = 0.0


class Fallback:
    """
    The way by SQL of a blocking client. Threads may share it.

    Args:
        dsn: The database.
        limit_s: Longest wait for it, seconds.
        schema: Name of the schema in it.

    """

    def __init__(self, dsn: str, limit_s: float, schema: str = DEFAULT) -> None:
        self._database = FallbackDatabase(dsn, limit_s, schema)
        self._server = _SilentServer()

    def submit(self, request: SubmitT, ask: Callable[[SubmitT, float], list[UUID]]) -> list[UUID]:
        """
        Submit by *ask*, which is given the seconds that it may take; by SQL if nobody answers there.

        Raises:
            NobodyAnswersError: The database does not answer either.

        """
        began_s, patience_s = time.monotonic(), self._server.patience_s()
        try:
            ids = ask(request, patience_s)
        except NobodyAnswersError as error:
            self._server.note(began_s, patience_s)
            return _by_sql(self._database, request, error)
        self._server.end()
        self._database.close()
        return ids

    def close(self) -> None:
        """Close the connection to the database, if there is one."""
        self._database.close()


class AsyncFallback:
    """``Fallback`` of an async client: SQL runs in a thread, and the loop goes on."""

    def __init__(self, dsn: str, limit_s: float, schema: str = DEFAULT) -> None:
        self._database = FallbackDatabase(dsn, limit_s, schema)
        self._server = _SilentServer()
        self._limit_s = limit_s + CONNECT_S
        self._threads = anyio.CapacityLimiter(1)  # the database takes one at a time; not of those that others use, too

    async def submit(self, request: SubmitT, ask: Callable[[SubmitT, float], Awaitable[list[UUID]]]) -> list[UUID]:
        """As ``Fallback.submit``."""
        began_s, patience_s = time.monotonic(), self._server.patience_s()
        try:
            ids = await ask(request, patience_s)
        except NobodyAnswersError as error:
            self._server.note(began_s, patience_s)
            with anyio.move_on_after(self._limit_s):  # for those before it, too: they may all wait for a connection
                return await anyio.to_thread.run_sync(
                    _by_sql, self._database, request, error, abandon_on_cancel=True, limiter=self._threads
                )
            said = f"the database has not answered within {self._limit_s:g} s"
            raise NobodyAnswersError(f"{error.message}; {said}") from None
        self._server.end()
        self._database.close()
        return ids

    async def aclose(self) -> None:
        """Close the connection to the database, if there is one."""
        self._database.close()


def _by_sql(database: FallbackDatabase, request: SubmitRequest, silence: NobodyAnswersError) -> list[UUID]:
    try:
        answered = database.submit(document_of(request.body), asks=has_keys(request.body))
    except NobodyAnswersError as error:
        raise NobodyAnswersError(f"{silence.message}; nor does the database: {error.message}") from error
    return ids_of(request.body, answered)
