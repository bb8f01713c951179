"""
``PULSE`` in Django's settings module: where the server is, how to log in there, and which database has the jobs.

Each key but DATABASE, DASHBOARD_URL and CODEC is the environment variable of the same name without ``PULSE_``, and wins
over it; options of ``manage.py pulse_worker`` win over both.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from django.conf import settings as django_settings  # type: ignore[import-untyped]
from django.core.signals import setting_changed  # type: ignore[import-untyped]
from django.db import connections  # type: ignore[import-untyped]

from pulse.client.discovery import CONNECT_TIMEOUT, Remote, find_servers
from pulse.common.duration import seconds_of
from pulse.common.text import similar_names
from pulse.errors import ConfigError, PulseError
from pulse.security.codec import Codec, checked
from pulse.security.schema_name import schema_of

__all__ = [
    "ProjectSettings",
    "after_changes",
    "project_settings",
    "read_settings",
    "settings_and_problems",
]

_VARIABLES: Final = (
    "CONNECT",
    "CONNECT_INSECURE",
    "CONNECT_TIMEOUT_S",
    "PASSWORD",
    "SCHEMA",
    "TLS_CA",
    "TLS_CLIENT_CERT",
    "TLS_CLIENT_KEY",
    "USER",
)
_TEXTS: Final = ("DASHBOARD_URL", "DATABASE")
_KEYS: Final = (*_VARIABLES, *_TEXTS, "CODEC")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectSettings:
    """
    ``PULSE`` of a project, checked.

    Attributes:
        environment: What processes of pulse are given as environment variables; secrets included.
        database: Alias of the database that has the jobs.
        dashboard_url: Where the dashboard is, for the link in the admin; None: no link.
        codec: Encrypts args and results.
    """

    environment: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    database: str = "default"
    dashboard_url: str | None = None
    codec: Codec | None = None

    def server(self) -> str | Remote | None:
        """The server that CONNECT names; None: it is looked for, as by programs without a framework."""
        if "PULSE_CONNECT" not in self.environment:
            return None
        found = find_servers(None, {**os.environ, **self.environment})[0]
        return found if isinstance(found, Remote) else str(found)

    @property
    def schema(self) -> str:
        """The schema that has the queue."""
        return schema_of(None, {**os.environ, **self.environment})

    @property
    def connect_timeout_s(self) -> float | None:
        """How long clients wait for a server; None: as the environment says."""
        text = self.environment.get(CONNECT_TIMEOUT)
        try:
            return None if text is None else seconds_of(text, zero=True)
        except ValueError as error:
            raise ConfigError(f"CONNECT_TIMEOUT_S is {text!r:.60}: {error}") from None


def after_changes(forget: Callable[[], None]) -> None:
    """Call *forget* when a test has changed ``PULSE`` or ``DATABASES``, with ``override_settings``."""

    def changed(*, setting: str, **_: object) -> None:
        if setting in {"PULSE", "DATABASES"}:
            forget()

    signal: Any = setting_changed
    signal.connect(changed, weak=False)


@functools.cache
def project_settings() -> ProjectSettings:
    """
    ``PULSE`` of the project that runs.

    Raises:
        ConfigError: Something in it is not allowed; a line for each problem.
    """
    found, problems = settings_and_problems()
    if problems:
        raise ConfigError("\n".join(problems))
    return found


def settings_and_problems() -> tuple[ProjectSettings, list[str]]:
    """``read_settings`` of the project that runs."""
    aliases: Any = connections
    return read_settings(getattr(django_settings, "PULSE", {}), list(aliases))


def read_settings(given: Any, databases: Sequence[str]) -> tuple[ProjectSettings, list[str]]:  # noqa: ANN401 - whatever a person wrote
    """
    Check a value of ``PULSE``.

    Args:
        given: The value.
        databases: The aliases in ``DATABASES``.

    Returns:
        The settings, and a line for each problem; with problems the settings are of no use.
    """
    if not isinstance(given, dict):
        return ProjectSettings(), [f"PULSE is {given!r:.80}: a dictionary is allowed"]
    values = cast("dict[object, Any]", given)
    problems = [_unknown(key) for key in values if key not in _KEYS]
    environment = {f"PULSE_{key}": text for key in _VARIABLES if (text := _as_text(key, values, problems)) is not None}
    texts = {key.lower(): text for key in _TEXTS if (text := _as_text(key, values, problems)) is not None}
    found = ProjectSettings(environment=environment, codec=values.get("CODEC"), **texts)
    if found.database not in databases:
        known = ", ".join(databases)
        problems.append(f"PULSE['DATABASE'] is {found.database!r:.80}: an alias in DATABASES is allowed ({known})")
    for examine in (found.server, lambda: found.connect_timeout_s, lambda: found.schema, lambda: checked(found.codec)):
        try:
            examine()
        except PulseError as error:
            problems.append(f"PULSE: {error.message}")
    return found, problems


def _unknown(key: object) -> str:
    near = similar_names(str(key), _KEYS, most=1, least=0)
    return f"PULSE[{f'{key}'!r:.80}] is no setting; the nearest that is: {near[0]}"


def _as_text(key: str, values: Mapping[object, Any], problems: list[str]) -> str | None:
    """The value as an environment variable has it; None: it is not set, or it is one of the problems."""
    match values.get(key):
        case None:
            return None
        case bool() | int() | float() as number if key.startswith("CONNECT_"):
            return f"{number:g}"
        case str() | Path() as text if str(text):
            return str(text)
        case wrong:
            shown = "***" if key == "PASSWORD" else f"{wrong!r:.80}"
            problems.append(f"PULSE[{key!r}] is {shown}: text is allowed")
            return None


after_changes(project_settings.cache_clear)
