"""What becomes of a schedule that no request can hold."""

from __future__ import annotations

import pytest

from pulse.errors import BadRequestError
from pulse_actors.dispatcher.requests.schedules import _request_of


def test_args_that_are_not_shown_are_not_lost() -> None:
    """Who changes the schedule would write it without them."""
    with pytest.raises(BadRequestError, match="only SQL can change it"):
        _request_of({"args": None})
