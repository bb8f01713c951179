"""Detects, at start, poolers that do not give pulse sessions of its own: pulse cannot work through them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from pulse.errors import ConfigError, UnavailableError
from pulse.store.admin.doctor import QUESTIONS, pooler_between
from pulse.store.connections.pool import HOT_SETTINGS, SERVER_SETTINGS, STATEMENT_DEADLINE_S, Target, connect

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from asyncpg import Connection, Record

_WANTED: Final = {**SERVER_SETTINGS, **HOT_SETTINGS}
_DIRECTLY: Final = "let PULSE_DSN name PostgreSQL itself, or a pool in session mode; SQL pulse.submit works through any"
_TAKEN_OUT: Final = "take them out of ignore_startup_parameters, and pulse sets them itself"


class PoolerError(ConfigError):
    """A pooler in between does not give pulse sessions of its own."""


async def refuse_pooler(target: Target) -> None:
    """
    Look whether a pooler is between pulse and the database.

    Raises:
        PoolerError: A pooler gives each transaction another session, or drops the settings of a session.
        ConfigError: As ``connect``.
        UnavailableError: As ``connect``; or the connection was lost, or gets no answer: a full pool lets clients wait.
    """
    # Without settings, until it is known that nobody else gets the session that has them.
    bare = await connect(target, {}, limits={}, statements=0)
    try:
        row = await _session(bare, [], target)
        between = await pooler_between(bare, row["pid"], target)
    finally:
        bare.terminate()
    if not between["is_between"]:
        return
    if not between["keeps_session"]:
        raise _refusal(target, "gives each transaction another session", _DIRECTLY)
    found = await _settings(target)
    dropped = sorted(name for name, value in _WANTED.items() if found[name] != value)
    if dropped:
        raise _refusal(target, f"drops the settings of a session ({', '.join(dropped)})", _TAKEN_OUT)


async def _settings(target: Target) -> Mapping[str, str]:
    """The settings that a session of pulse has."""
    connection = await connect(target, HOT_SETTINGS, statements=0, owns_session=True)
    try:
        row = await _session(connection, [*_WANTED], target)
    finally:
        connection.terminate()
    found: Mapping[str, str] = json.loads(row["settings"])
    return found


async def _session(connection: Connection[Record], settings: Sequence[str], target: Target) -> Record:
    """What the session says of itself, and these settings of it."""
    try:
        (row,) = await connection.fetch(QUESTIONS["session"].sql, settings, timeout=STATEMENT_DEADLINE_S)
    except TimeoutError:
        raise UnavailableError(f"the database {target.shown} does not answer a query; is a pool full?") from None
    return row


def _refusal(target: Target, what: str, advice: str) -> PoolerError:
    return PoolerError(f"a pooler such as PgBouncer answers for the database {target.shown}; it {what}: {advice}")
