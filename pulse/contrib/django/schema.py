"""
Installs the schema of pulse in the database of the jobs, unless it is there.

As `pulse migrate` does it, by the same statements; but in a transaction of Django, which goes on with its settings.
"""

from __future__ import annotations

import re
from typing import Any, Final

from pulse.contrib.django.settings import project_settings
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
            cursor.execute(schema_sql())
        _run("schema_settings_again", cursor, *before)


def leave(_apps: object, _editor: object) -> None:
    """Undo nothing: jobs are in it."""


def _run(name: str, cursor: Any, *values: object) -> tuple[Any, ...]:  # noqa: ANN401 - Django has no types
    """The row of a statement whose arguments come in order, once each: Django has another mark for them."""
    cursor.execute(_ARGUMENT.sub("%s", STATEMENTS[name].sql), values or None)
    row: tuple[Any, ...] = cursor.fetchone()
    return row
