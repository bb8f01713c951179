"""
Installs the schema of pulse in the database of the jobs, unless it is there.

As `pulse migrate` does it, by the same statements; but in a transaction of Django, which goes on with its settings.
"""

from __future__ import annotations

import re
from typing import Any, Final

from pulse.contrib.django.settings import project_settings
from pulse.errors import SchemaError
from pulse.security.schema_name import quoted
from pulse.store.connections.rendering import rendered
from pulse.store.statements import STATEMENTS, schema_sql

__all__ = ["install", "leave"]

_LOCK_TIMEOUT: Final = "30s"  # how long to wait for another migration
_ARGUMENT: Final = re.compile(r"\$\d+")


def install(_apps: object, editor: Any) -> None:  # noqa: ANN401 - Django has no types
    """Install it, in the transaction of the migration."""
    connection = editor.connection
    if connection.alias != project_settings().database or connection.vendor != "postgresql":
        return
    with connection.cursor() as cursor:
        before = _run("schema_settings", cursor)
        _run("schema_limits", cursor, _LOCK_TIMEOUT)
        _run("schema_lock", cursor)
        (is_there,) = _run("schema_is_there", cursor)
        if not is_there:
            (other,) = _run("schema_foreign", cursor) or (None,)
            if other is not None:
                name = quoted(project_settings().schema)
                raise SchemaError(f"the schema {name} is not empty (it has {other}), and not pulse's")
            cursor.execute(rendered(schema_sql(), project_settings().schema))
        _run("schema_settings_again", cursor, *before)


def leave(_apps: object, _editor: object) -> None:
    """Undo nothing: jobs are in it."""


def _run(name: str, cursor: Any, *values: object) -> tuple[Any, ...]:  # noqa: ANN401 - Django has no types
    """The row of a statement whose arguments come in order, once each: Django has another mark for them."""
    statement = rendered(_ARGUMENT.sub("%s", STATEMENTS[name].sql), project_settings().schema)
    cursor.execute(statement, values or None)
    row: tuple[Any, ...] = cursor.fetchone()
    return row
