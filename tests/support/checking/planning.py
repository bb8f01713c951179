"""Which statements of the store a server does not plan, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import asyncpg

from pulse.store.connections.rendering import rendered
from pulse.store.statements import STATEMENTS

if TYPE_CHECKING:
    from asyncpg import Connection, Record

_ARGUMENTS = "SELECT cardinality(parameter_types) FROM pg_prepared_statements WHERE name = 'one'"


def has_plan(sql: str) -> bool:
    """Whether it can be prepared and explained; a LOCK can only be carried out."""
    return not sql.startswith("LOCK")


async def refused(connection: Connection[Record], schema: str) -> Mapping[str, str]:
    """
    The statements that cannot be planned: name, message.

    Args:
        connection: One that keeps no prepared statements.
        schema: Where the queue is.
    """
    why = dict[str, str]()
    for name, statement in STATEMENTS.items():
        try:
            async with connection.transaction():
                if not has_plan(statement.sql):
                    await connection.execute(rendered(statement.sql, schema))
                    continue
                await connection.execute(f"PREPARE one AS {rendered(statement.sql, schema)}")
                nulls = ", ".join(["NULL"] * await connection.fetchval(_ARGUMENTS))
                await connection.execute("EXPLAIN EXECUTE one" + (f"({nulls})" if nulls else ""))
        except asyncpg.PostgresError as error:
            why[name] = str(error.args[0])
        await connection.execute("DEALLOCATE ALL")
    return why
