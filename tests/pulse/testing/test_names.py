"""What of ``pulse.testing`` needs no server: its names, those of apps and of databases, and how long it waits."""

from __future__ import annotations

from typing import Final

import pytest

import pulse
from pulse import testing
from pulse.errors import ConfigError, HandlerError
from pulse.testing import server
from pulse.testing.server import _name_of, _wait, running_pulse

app: Final = pulse.App()


def test_every_public_name_is_there() -> None:
    assert {name for name in testing.__all__ if callable(getattr(testing, name))} == set(testing.__all__)
    with pytest.raises(AttributeError, match=r"'pulse\.testing' has no attribute 'nothing'"):
        testing.nothing  # noqa: B018


def test_an_app_has_the_name_of_its_module() -> None:
    assert _name_of(app) == "tests.pulse.testing.test_names:app"
    with pytest.raises(HandlerError, match="cannot import this app"):
        _name_of(pulse.App())


@pytest.mark.parametrize(
    "dsn", ["postgresql:///shop", "postgresql://test@test/shop?user=test", "host=test dbname=shop"]
)
def test_a_database_that_is_not_for_tests_is_refused(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is started."""
    monkeypatch.setattr(server, "temporary_server", None)
    with (
        pytest.raises(ConfigError, match=r'and [^ ]*/shop has no "test" in its name: is it for tests\?$'),
        running_pulse(app, dsn=dsn),
    ):
        pass


def test_what_never_comes_is_not_waited_for() -> None:
    looks = iter([False])
    assert not _wait(lambda: next(looks), timeout_s=-1.0)
