"""
What ``manage.py check`` says of pulse; with ``--database default`` of its schema there, too.

- pulse.E001: something in ``PULSE`` is not allowed.
- pulse.E002: the database of the jobs is not PostgreSQL.
- pulse.E003: the schema there cannot be used: its version is not that of this pulse, or the role has no right to it.
- pulse.W001: the link to the dashboard is not shown.
- pulse.W002: there is no schema yet; ``manage.py migrate`` runs these checks, too, so it is no error.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any, Final

from django.conf import settings as django_settings  # type: ignore[import-untyped]
from django.core import checks  # type: ignore[import-untyped]
from django.db import DatabaseError  # type: ignore[import-untyped]

from pulse.app.transactions.drivers import state_of
from pulse.contrib.django.connections import connection_of
from pulse.contrib.django.settings import settings_and_problems

__all__ = ["check_database", "check_link", "check_schema", "check_settings", "register_checks"]

_HERE: Final = "pulse.contrib.django"
_ADMIN: Final = "django.contrib.admin"
_NO_SCHEMA: Final = {"3F000", "42P01"}


def register_checks() -> None:
    """Let Django run the checks."""
    registry: Any = checks
    for check in (check_settings, check_database, check_link):
        registry.register(check)
    registry.register(check_schema, checks.Tags.database)


def check_settings(**_: object) -> list[checks.CheckMessage]:
    """Each problem in ``PULSE``."""
    _settings, problems = settings_and_problems()
    return [checks.Error(problem, id="pulse.E001") for problem in problems]


def check_database(**_: object) -> list[checks.CheckMessage]:
    """Whether jobs can be in the database of the jobs at all."""
    found, problems = settings_and_problems()
    if problems or (connection := connection_of(found.database)).vendor == "postgresql":
        return []
    said = f"database {found.database!r} is {connection.display_name}: jobs are in PostgreSQL"
    return [checks.Error(said, hint="PULSE['DATABASE'] names the alias of another one.", id="pulse.E002")]


def check_link(**_: object) -> list[checks.CheckMessage]:
    """Whether the admin finds the template with the link before its own."""
    found, problems = settings_and_problems()
    order = [one for one in django_settings.INSTALLED_APPS if one in {_ADMIN, _HERE}]
    if problems or found.dashboard_url is None or order != [_ADMIN, _HERE]:
        return []
    said = f"the link to the dashboard is not shown: {_ADMIN!r} comes before {_HERE!r} in INSTALLED_APPS"
    return [checks.Warning(said, id="pulse.W001")]


def check_schema(databases: Sequence[str] | None = None, **_: object) -> list[checks.CheckMessage]:
    """Whether the schema is there, and of this version; only of the databases that the person named."""
    found, problems = settings_and_problems()
    alias = found.database
    if problems or alias not in (databases or ()) or (connection := connection_of(alias)).vendor != "postgresql":
        return []
    from pulse.store.connections.rendering import rendered
    from pulse.store.statements import STATEMENTS  # not above: it reads files

    try:
        with connection.cursor() as cursor:
            cursor.execute(rendered(STATEMENTS["schema_version"].sql, found.schema))
            row = cursor.fetchone()
    except DatabaseError as error:
        said = f"database {alias!r}: {str(error).partition(chr(10))[0]}"
        if state_of(error)[0] in _NO_SCHEMA:
            return [checks.Warning(said, hint="`manage.py migrate` or `pulse migrate` installs it.", id="pulse.W002")]
        return [checks.Error(said, hint="`pulse migrate --roles` makes roles that may use it.", id="pulse.E003")]
    return [checks.Error(f"database {alias!r}: {said}", id="pulse.E003") for said in _outdated(row)]


def _outdated(row: tuple[int, str | None] | None) -> list[str]:
    """What is wrong with the version of the schema; nothing where only the SDK is installed: it cannot tell."""
    if importlib.util.find_spec("asyncpg") is None:
        return []
    from pulse.store.admin.schema import SCHEMA_VERSION, is_development, works_with

    version, release = (0, None) if row is None else row
    if is_development(version, release):
        return [f"a development version of pulse made the schema there; this pulse needs version {SCHEMA_VERSION}"]
    if works_with(version):
        return []
    return [f"the schema there has version {version}, this pulse needs {SCHEMA_VERSION}: run `pulse migrate`"]
