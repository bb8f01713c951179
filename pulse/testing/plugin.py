"""
The fixtures of pytest: ``pulse_app``, ``pulse_inline`` and ``pulse_server``.

pytest imports this module wherever pulse is installed. Nothing else of pulse is imported until a fixture is used.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pulse.app.app import App
    from pulse.testing.inline import Inline

__all__ = ["pulse_app", "pulse_inline"]

_INI = "pulse_app"
_KITS = ("pulse_inline",)


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
