"""
The fixtures of pytest: ``pulse_app``, ``pulse_dsn``, ``pulse_inline`` and ``pulse_server``.

pytest imports this module wherever pulse is installed. Nothing else of pulse is imported until a fixture is used.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pulse.app.app import App
    from pulse.testing.inline import Inline
    from pulse.testing.server import PulseServer

__all__ = ["pulse_app", "pulse_dsn", "pulse_inline", "pulse_server"]

_INI = "pulse_app"
_KITS = ("pulse_inline", "pulse_server")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the ini option."""
    parser.addini(_INI, "the app that pulse_inline and pulse_server serve, MODULE:APP", default="")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Show the jobs of a test that failed."""
    report = yield
    if report.when == "call" and report.failed:
        used = getattr(item, "funcargs", {})
        report.sections.extend((f"jobs in {name}", used[name].told()) for name in _KITS if name in used)
    return report


@pytest.fixture(scope="session")
def pulse_app(pytestconfig: pytest.Config) -> App | str:
    """The app whose handlers run: of the ini option ``pulse_app``. Override it to return an app, or ``MODULE:APP``."""
    from pulse.errors import ConfigError

    name = str(pytestconfig.getini(_INI))
    if not name:
        raise ConfigError('which app? Set pulse_app = "shop.jobs:app" for pytest, or write a fixture named pulse_app')
    return name


@pytest.fixture
def pulse_inline(pulse_app: App | str) -> Inline:
    """Runs handlers in memory, without a server."""
    from pulse.testing.inline import Inline
    from pulse.worker.load_app import load_app

    return Inline(load_app(pulse_app) if isinstance(pulse_app, str) else pulse_app)


@pytest.fixture(scope="session")
def pulse_dsn() -> str | None:
    """
    The database that ``pulse_server`` uses; None: a PostgreSQL of its own.

    Override it where handlers need that database, too. All jobs in it are removed: it is for the tests of one process
    alone, and its name contains "test".
    """
    return None


@pytest.fixture(scope="session")
def pulse_server_process(pulse_app: App | str, pulse_dsn: str | None) -> Generator[PulseServer]:
    """The server of all tests of this process; ``pulse_server`` is its state for one test."""
    from pulse.testing.server import running_pulse

    with running_pulse(pulse_app, dsn=pulse_dsn) as server:
        yield server


@pytest.fixture
def pulse_server(pulse_server_process: PulseServer, monkeypatch: pytest.MonkeyPatch) -> Generator[PulseServer]:
    """A server with a worker of the app, started once and empty for each test; clients find it by themselves."""
    monkeypatch.setenv("PULSE_RUNTIME_DIR", str(pulse_server_process.runtime_dir))
    monkeypatch.delenv("PULSE_CONNECT", raising=False)
    yield pulse_server_process
    pulse_server_process.reset()
