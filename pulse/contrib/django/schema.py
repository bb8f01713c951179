"""Installs the schema of pulse in the database of the jobs, unless it is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pulse
from pulse.contrib.django.settings import project_settings

__all__ = ["install", "leave"]

# As `pulse migrate` does it: one at a time, and no function in public is called by accident.
_NOW: Final = "SELECT current_setting('lock_timeout'), current_setting('search_path')"
_SET: Final = "SELECT set_config('lock_timeout', %s, true), set_config('search_path', %s, true)"
_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended('pulse schema', 0))"
_IS_THERE: Final = "SELECT to_regclass('pulse.schema_version') IS NOT NULL"


def install(_apps: object, editor: Any) -> None:  # noqa: ANN401 - Django has no types
    """Install it, in the transaction of the migration."""
    connection = editor.connection
    if connection.alias != project_settings().database or connection.vendor != "postgresql":
        return
    with connection.cursor() as cursor:
        cursor.execute(_NOW)
        before = cursor.fetchone()
        cursor.execute(_SET, ["30s", "pg_catalog, pg_temp"])
        cursor.execute(_LOCK)
        cursor.execute(_IS_THERE)
        if not cursor.fetchone()[0]:
            cursor.execute(_schema_sql())
        cursor.execute(_SET, before)


def leave(_apps: object, _editor: object) -> None:
    """Undo nothing: jobs are in it."""


def _schema_sql() -> str:
    """Inside ``pulse`` in an installation, beside it in a checkout."""
    package = Path(pulse.__file__).parent
    places = (package / "schema.sql", package.parent / "schema.sql")
    return next(one for one in places if one.is_file()).read_text("utf-8")
