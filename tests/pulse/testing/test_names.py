"""Names: those that ``pulse.testing`` has, and the one under which the worker of a test finds its app."""

from __future__ import annotations

from typing import Final

import pytest

import pulse
from pulse import testing
from pulse.errors import HandlerError
from pulse.testing.server import _name_of

app: Final = pulse.App()


def test_every_public_name_is_there() -> None:
    assert {name for name in testing.__all__ if callable(getattr(testing, name))} == set(testing.__all__)
    with pytest.raises(AttributeError, match=r"'pulse\.testing' has no attribute 'nothing'"):
        testing.nothing  # noqa: B018


def test_an_app_has_the_name_of_its_module() -> None:
    assert _name_of(app) == "tests.pulse.testing.test_names:app"
    with pytest.raises(HandlerError, match="cannot import this app"):
        _name_of(pulse.App())
