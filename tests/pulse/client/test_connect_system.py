"""How long a client waits for a server that is not there: as long as its user wants, or as a restart takes."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pulse.client import discovery
from pulse.errors import ConfigError, NobodyAnswersError
from tests.support.confidential import confidential
from tests.support.servers.client_flavors import FLAVORS, failing, using
from tests.support.servers.fake_dispatcher import FakeDispatcher, RuntimeDir

pytestmark = pytest.mark.timed


@pytest.fixture
def directory() -> Iterator[Path]:
    with RuntimeDir() as made:
        yield made.path


@pytest.fixture(params=FLAVORS)
def flavor(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("told", ["option", "environment"])
def test_a_server_that_comes_later(flavor: str, directory: Path, monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    """It is waited for, where that is wanted, for longer than for an answer."""
    server = FakeDispatcher(directory, {"ping": {}})
    options: dict[str, Any] = {"connect_timeout_s": 20.0} if told == "option" else {}
    if told == "environment":
        monkeypatch.setenv("PULSE_CONNECT_TIMEOUT_S", "20s")
    starting = threading.Timer(1.1, server.__enter__)
    starting.start()
    using(flavor, server.path, lambda client: client.ping(), timeout_s=1.0, **options)
    starting.join()
    server.__exit__(None, None, None)


def test_a_server_that_is_gone(flavor: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its restart is waited for, for a while; from then on each request fails at once."""
    monkeypatch.setattr(discovery, "RESTART_S", 0.2)
    server = FakeDispatcher(directory, {"ping": {}})
    server.__enter__()

    def stop(_: object) -> None:
        server.__exit__(None, None, None)

    def now_s(_: object) -> float:
        return time.monotonic()

    ask = failing(flavor, NobodyAnswersError, "pulse-supervisor starts a server", lambda client: client.ping())
    found: list[Any] = using(flavor, server.path, lambda client: client.ping(), stop, now_s, ask, now_s, ask, now_s)
    _, _, began_s, _, first_s, _, second_s = found
    assert 0.2 <= first_s - began_s < 8
    assert second_s - first_s < 0.2


@pytest.mark.parametrize("was_there", [False, True])
def test_failing_at_once(flavor: str, directory: Path, was_there: bool) -> None:
    """Also where a server was there, and its socket still is."""
    server = FakeDispatcher(directory, {"ping": {}})

    def kill(_: object) -> None:
        server.stop()
        with socket.socket(socket.AF_UNIX) as left_behind:
            left_behind.bind(str(server.path))

    def ping(client: Any) -> Any:
        return client.ping()

    ask = failing(flavor, NobodyAnswersError, r"^nobody answers; looked", ping)
    if was_there:
        with server:
            using(flavor, server.path, ping, kill, ask, when_down="fail", timeout_s=3600)
    else:
        with pytest.raises(NobodyAnswersError, match=r"^nobody answers; looked"):
            using(flavor, server.path, ping, when_down="fail", timeout_s=3600)


def test_waiting(flavor: str, directory: Path) -> None:
    """As long as for an answer."""
    server = FakeDispatcher(directory, {"ping": {}})
    starting = threading.Timer(0.1, server.__enter__)
    starting.start()
    using(flavor, server.path, lambda client: client.ping(), when_down="wait", timeout_s=20.0)
    starting.join()
    server.__exit__(None, None, None)
    with pytest.raises(NobodyAnswersError):
        using(flavor, server.path, when_down="wait", timeout_s=0.1)


def test_another_word_for_when_the_server_is_down(flavor: str, directory: Path) -> None:
    password = confidential("swordfish-8", "a DSN with a slip in it")
    with pytest.raises(
        ConfigError, match=r"^when_down is 'postgresq:\*\*\*@there/x': 'fail', 'wait' or a DSN"
    ) as caught:
        using(flavor, directory / "pulse.sock", when_down=f"postgresq://me:{password}@there/x")
    assert password not in str(caught.value)


def test_the_environment_is_checked(flavor: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSE_CONNECT_TIMEOUT_S", "soon")
    with pytest.raises(ConfigError, match=r"^PULSE_CONNECT_TIMEOUT_S is 'soon': a length of time"):
        using(flavor, directory / "pulse.sock")
