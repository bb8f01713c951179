"""Detects, at start, poolers that do not give pulse sessions of its own: pulse cannot work through them."""

from __future__ import annotations

import json
from typing import Final

from pulse.errors import ConfigError, UnavailableError
from pulse.store.admin.doctor import QUESTIONS, pooler_between
from pulse.store.connections.pool import SERVER_SETTINGS, Target, connect

_UNSUPPORTED: Final = "unsupported startup parameter"  # PgBouncer's error for settings of a session
_ADVICE: Final = "let PULSE_DSN name PostgreSQL itself: pulse keeps few connections; SQL pulse.submit works through any"


class PoolerError(ConfigError):
    """A pooler in between does not give pulse sessions of its own."""


async def refuse_pooler(target: Target) -> None:
    """
    Look whether a pooler is between pulse and the database.

    Raises:
        PoolerError: A pooler refuses or drops the settings of a session, or gives each transaction another session.
        ConfigError: As ``connect``.
        UnavailableError: As ``connect``; or the connection was lost.
    """
    try:
        connection = await connect(target, {}, statements=0)
    except UnavailableError as error:
        if _UNSUPPORTED in error.message:
            raise _refusal(target, f"refuses the settings of a session ({error.__cause__})") from error
        raise
    try:
        async with connection.transaction(readonly=True):
            (row,) = await connection.fetch(QUESTIONS["session"].sql, [*SERVER_SETTINGS])
        between = await pooler_between(connection, row["pid"], target)
        if not between["is_between"]:
            return
        found = json.loads(row["settings"])
        dropped = sorted(name for name, value in SERVER_SETTINGS.items() if found[name] != value)
        if dropped:
            raise _refusal(target, f"drops the settings of a session ({', '.join(dropped)})")
        if not between["keeps_session"]:
            raise _refusal(target, "gives each transaction another session")
    finally:
        connection.terminate()


def _refusal(target: Target, what: str) -> PoolerError:
    return PoolerError(f"a pooler such as PgBouncer answers for the database {target.shown}; it {what}: {_ADVICE}")
