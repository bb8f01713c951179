"""`manage.py pulse_worker` becomes `pulse worker`, with these words and this environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from django.core.management import CommandError, call_command  # type: ignore[import-untyped]
from django.test import override_settings  # type: ignore[import-untyped]

import tests.pulse.sql.connections  # noqa: F401 - it sets Django up, which the imports below need

# isort: split
from pulse.contrib.django.management.commands.pulse_worker import Command
from tests.support.confidential import confidential

PASSWORD = confidential("of-the-project", "the password in PULSE")


@pytest.fixture
def became(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What this process would have become."""
    seen: list[Any] = []

    def note(program: str, words: Sequence[str], environment: Mapping[str, str]) -> None:
        seen[:] = [program, *words[1:]], environment

    monkeypatch.setattr(os, "execve", note)
    return seen


def words(became: list[Any], *given: str, **options: object) -> list[str]:
    call_command(Command(), *given, **options)
    command: list[str] = became[0]
    assert command[:4] == [sys.executable, "-m", "pulse.worker", "pulse.contrib.django.worker:app"]
    return command[4:]


def test_options_are_passed_on(became: list[Any]) -> None:
    assert words(became) == []
    given = ["--processes", "2", "--topic=a", "--topic", "b", "--reload", "--drain-s=5m", "--log-level", "debug"]
    assert words(became, *given) == [
        "--processes", "2", "--topic", "a", "--topic", "b", "--drain-s", "5m", "--log-level", "debug", "--reload"
    ]  # fmt: skip
    assert words(became, processes=3) == ["--processes", "3"]
    with pytest.raises(CommandError, match="unrecognized arguments: --parent-pid"):  # of the supervisor's own
        words(became, "--parent-pid", "1")


def test_settings_go_by_the_environment(became: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A command line can be read by everybody; and modules are found where they were found here."""
    monkeypatch.setattr(sys, "path", ["/srv/shop", *sys.path])
    monkeypatch.setenv("PYTHONPATH", "/lib/more")
    monkeypatch.setenv("PULSE_USER", "another")
    with override_settings(PULSE={"CONNECT": "tls://jobs:8471", "USER": "shop", "PASSWORD": PASSWORD}):
        assert words(became) == []
    environment = became[1]
    assert {key: environment[key] for key in ("PULSE_CONNECT", "PULSE_USER", "PULSE_PASSWORD")} == {
        "PULSE_CONNECT": "tls://jobs:8471", "PULSE_USER": "shop", "PULSE_PASSWORD": PASSWORD
    }  # fmt: skip
    assert environment["PYTHONPATH"] == "/srv/shop:/lib/more"
    assert environment["PATH"] == os.environ["PATH"]
