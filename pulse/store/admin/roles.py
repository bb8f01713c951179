"""
The database roles: ``pulse migrate --roles`` makes them, and each upgrade grants their rights again.

``roles.sql`` defines them. The catalogue shows whether a schema has them: a role whose name ends with ``owner`` owns
it, and the three others with that prefix may use it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import asyncpg
import msgspec

from pulse.errors import ConfigError, SchemaError
from pulse.security.schema_name import DEFAULT, quoted
from pulse.store.connections.rendering import rendered
from pulse.store.connections.session import begin_migration, schema_in
from pulse.store.statements import STATEMENTS, texts

if TYPE_CHECKING:
    from asyncpg import Connection, Record

PREFIX: Final = "pulse_"
KINDS: Final = ("owner", "server", "submit", "read")
LOCK_TIMEOUT: Final = "5s"  # ALTER … OWNER needs a moment in which nobody uses the table
_ALLOWED: Final = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,49}")  # PostgreSQL keeps pg_ for itself
_PART: Final = re.compile(r"^-- part: ([a-z]+)$", re.MULTILINE)
_VARIABLE: Final = re.compile(r":([\"'])(owner|server|submit|read)\1")
(_SQL,) = texts("admin", "roles.sql")
_, *_TEXTS = _PART.split(_SQL)
_PARTS: Final = dict(zip(_TEXTS[::2], _TEXTS[1::2], strict=True))
_HEAD: Final = """\
-- The database roles of pulse, as `pulse migrate --roles` makes them: for a superuser, in the database whose schema
-- {schema} is there already.
BEGIN;
SET LOCAL search_path = pg_catalog, pg_temp;
"""


class ConnectedRole(msgspec.Struct, frozen=True):
    """
    The role that is connected, and its rights on the schema.

    Attributes:
        role: Its name.
        owner: The schema's owner; None: there is no schema.
        is_super: Whether it is a superuser.
        may_make_roles: Whether it has CREATEROLE.
        prefix: Prefix of the schema's roles; None: it has none.
    """

    role: str
    owner: str | None
    is_super: bool
    may_make_roles: bool
    prefix: str | None


class Made(msgspec.Struct, frozen=True):
    """What was done: names of new *roles*, and the *member* of the owner, which may upgrade."""

    roles: tuple[str, ...]
    members: tuple[str, ...]


def checked_prefix(prefix: str) -> str:
    """
    The prefix.

    Raises:
        ConfigError: It is not allowed in names of roles.
    """
    if _ALLOWED.fullmatch(prefix):
        return prefix
    raise ConfigError(
        f"the prefix of roles is {prefix[:60]!r}; 1 to 50 of a-z, 0-9 and _ are allowed, no digit first, and not pg_"
    )


def names_of(prefix: str) -> list[str]:
    """The names of the four roles."""
    return [prefix + kind for kind in KINDS]


def _filled_in(part: str, prefix: str) -> str:
    # A checked prefix needs no quoting.
    return _VARIABLE.sub(lambda found: f"{found[1]}{prefix}{found[2]}{found[1]}", _PARTS[part])


def grants_sql(prefix: str) -> str:
    """What the roles may do."""
    return _filled_in("grants", prefix)


def roles_script(prefix: str, schema: str = DEFAULT) -> str:
    """The whole script for *schema*, for people to read and for psql to run."""
    head = _HEAD.format(schema=quoted(schema))
    parts = (rendered(_filled_in(part, prefix), schema) for part in _PARTS)
    return "".join((head, *parts, "\nCOMMIT;\n"))


async def standing(connection: Connection[Record]) -> ConnectedRole:
    """Read which role is connected."""
    row = await connection.fetchrow(STATEMENTS["schema_standing"].sql)
    assert row is not None  # noqa: S101 - narrows the type: in the session of a dropped role, current_user is an error
    return ConnectedRole(*row)


async def become(connection: Connection[Record], role: str) -> None:
    """SET ROLE until the transaction ends, so that *role* owns what is created."""
    await connection.execute(STATEMENTS["become_role"].sql, role)


async def make_roles(connection: Connection[Record], prefix: str) -> Made:
    """
    Create the missing roles of *prefix*, and give them the schema and their rights; all or nothing.

    Raises:
        SchemaError: There is no schema, it has other roles, or the role that is connected may not do that.
    """
    async with connection.transaction():
        await begin_migration(connection, LOCK_TIMEOUT)
        await connection.execute(STATEMENTS["roles_lock"].sql)
        me = await standing(connection)
        found = await connection.fetch(STATEMENTS["roles_found"].sql, names_of(prefix))
        new = [name for name in names_of(prefix) if name not in {row["name"] for row in found}]
        if me.owner is None:
            raise SchemaError(f"the schema {schema_in(connection)} is not there: pulse migrate")
        _refuse(me, prefix, new, [row["name"] for row in found if row["is_mighty"]])
        try:
            await connection.execute(_filled_in("roles", prefix))
            await connection.execute(_filled_in("owner", prefix))
            if not me.is_super:
                await become(connection, f"{prefix}owner")
            await connection.execute(grants_sql(prefix))
        except asyncpg.InsufficientPrivilegeError as error:
            reason = f"{error.args[0]}{f' ({error.detail})' if error.detail else ''}"  # its text has lines of its own
            raise SchemaError(f'role "{me.role}" may not do that: {reason}; {_by_hand(prefix)}') from error
        members = await connection.fetch(STATEMENTS["role_members"].sql, f"{prefix}owner")
    return Made(tuple(new), tuple(row["name"] for row in members))


def _refuse(me: ConnectedRole, prefix: str, new: list[str], mighty: list[str]) -> None:
    if me.prefix not in {None, prefix}:
        raise SchemaError(f"the schema has roles already, and their prefix is {me.prefix!r}, not {prefix!r}")
    if mighty:
        raise SchemaError(
            f'role "{mighty[0]}" is there already, and may do more than any of pulse: '
            "choose another prefix by --roles-prefix"
        )
    if new and not (me.is_super or me.may_make_roles):
        raise SchemaError(f'role "{me.role}" may not make roles, since it lacks CREATEROLE; {_by_hand(prefix)}')


def _by_hand(prefix: str) -> str:
    named = "" if prefix == PREFIX else f" --roles-prefix {prefix}"
    return f"let a superuser run what this prints: pulse migrate --roles{named} --print"
