"""A connection whose errors say which statement they are of, and that notes which statements succeed again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import asyncpg

from pulse.store.statements import name_of

if TYPE_CHECKING:
    from asyncpg import Record

    from pulse.store.failures import Failing

    _Connection = asyncpg.Connection[Record]
else:
    _Connection = asyncpg.Connection


class Session(_Connection):
    """
    As asyncpg's, whose four ways to carry out a statement end in one.

    Attributes:
        failing: Hears of what succeeds.
    """

    failing: Failing | None = None

    async def _execute(self, query: str, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - as asyncpg has it
        try:
            found = await super()._execute(query, *args, **options)
        except asyncpg.PostgresError as error:
            error.statement = name_of(query)
            raise
        if self.failing is not None:
            self.failing.succeeded(query)
        return found
