"""``PULSE`` of a Django project: what it may hold, and what becomes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings  # type: ignore[import-untyped]

import tests.pulse.sql.connections  # noqa: F401 - it sets Django up, which the imports below need

# isort: split
from pulse.client.discovery import Remote
from pulse.contrib.django.settings import project_settings, read_settings
from pulse.contrib.django.submitting import client
from pulse.encryption import FernetCodec
from pulse.errors import ConfigError
from tests.support.confidential import confidential

PASSWORD = confidential("in-settings-py", "the password in PULSE")


def problems(given: Any, *databases: str) -> list[str]:
    return read_settings(given, databases or ("default",))[1]


def test_what_is_set_becomes_the_environment_of_a_worker() -> None:
    found, wrong = read_settings(
        {
            "CONNECT": "tls://jobs.example.com:8471", "USER": "shop", "PASSWORD": PASSWORD, "CONNECT_TIMEOUT_S": 1.5,
            "TLS_CA": Path("/etc/ca.pem"), "CONNECT_INSECURE": False, "DATABASE": "jobs",
        },
        ["default", "jobs"],
    )  # fmt: skip
    assert wrong == []
    assert found.environment == {
        "PULSE_CONNECT": "tls://jobs.example.com:8471", "PULSE_USER": "shop", "PULSE_PASSWORD": PASSWORD,
        "PULSE_CONNECT_TIMEOUT_S": "1.5", "PULSE_TLS_CA": "/etc/ca.pem", "PULSE_CONNECT_INSECURE": "0",
    }  # fmt: skip
    assert (found.database, found.dashboard_url, found.connect_timeout_s) == ("jobs", None, 1.5)
    server = found.server()
    assert isinstance(server, Remote)
    assert (server.host, server.login.user, server.login.password) == ("jobs.example.com", "shop", PASSWORD)
    assert PASSWORD not in repr(found)


def test_the_settings_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSE_CONNECT", "tls://elsewhere:1")
    assert read_settings({"CONNECT": "unix:///run/shop/pulse.sock"}, ["default"])[0].server() == "/run/shop/pulse.sock"
    assert read_settings({}, ["default"])[0].server() is None  # it is looked for, in the environment first


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "PULSE is []: a dictionary is allowed"),
        ({"CONECT": "x"}, "PULSE['CONECT'] is no setting; the nearest that is: CONNECT"),
        ({7: "x"}, "PULSE['7'] is no setting; the nearest that is: "),
        ({"USER": 7}, "PULSE['USER'] is 7: text is allowed"),
        ({"DASHBOARD_URL": ""}, "PULSE['DASHBOARD_URL'] is '': text is allowed"),
        ({"PASSWORD": [PASSWORD]}, "PULSE['PASSWORD'] is ***: text is allowed"),
        ({"DATABASE": "jobs"}, "PULSE['DATABASE'] is 'jobs': an alias in DATABASES is allowed (default, other)"),
        ({"CONNECT": "ftp://there"}, "PULSE: 'ftp://there' is no address of a server: "),
        ({"CONNECT_TIMEOUT_S": "soon"}, "PULSE: CONNECT_TIMEOUT_S is 'soon': "),
        ({"CODEC": 7}, "PULSE: codec is int; "),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) and PASSWORD not in str(value) else "",
)
def test_a_problem_is_one_line(given: Any, said: str) -> None:
    (line,) = problems(given, "default", "other")
    assert line.startswith(said)


def test_nothing_is_read_with_a_problem() -> None:
    with override_settings(PULSE={"USER": 1, "PASWORD": "x"}), pytest.raises(ConfigError) as raised:
        project_settings()
    assert len(raised.value.message.splitlines()) == 2


def test_a_test_may_change_the_settings() -> None:
    codec = FernetCodec(FernetCodec.new_key())
    with override_settings(PULSE={"DASHBOARD_URL": "/jobs/", "CODEC": codec}):
        assert (project_settings().dashboard_url, project_settings().codec) == ("/jobs/", codec)
        inside = client()
        assert inside._codec is codec
    assert project_settings().dashboard_url is None
    assert client() is not inside
    assert client() is client()
