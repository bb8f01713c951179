"""Schedules that cannot be: what no request can hold, and what no request may ask for."""

from __future__ import annotations

from typing import Any, cast

import pytest

from pulse.errors import BadRequestError
from pulse.protocol import ScheduleCreate, ScheduleDeclared, SchedulesDeclare
from pulse_actors.dispatcher.requests.schedules import _new, _request_of, declare_schedules


def test_args_that_are_not_shown_are_not_lost() -> None:
    """Who changes the schedule would write it without them."""
    with pytest.raises(BadRequestError, match="only SQL can change it"):
        _request_of({"args": None})


@pytest.mark.parametrize(("words", "message"), [
    ({"catch_up": "none"}, "catch_up is 'none'; allowed are skip, latest, all"),
    ({"overlap": "none"}, "overlap is 'none'; allowed are allow, skip, queue, cancel"),
    ({"on_conflict": "skip"}, "unique_until or on_conflict is given; they are allowed with unique only"),
])  # fmt: skip
def test_words_that_no_schedule_has(words: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        _new(bytes(16), ScheduleCreate(name="n", every=1.0, **words), 0)


@pytest.mark.anyio
async def test_a_key_names_one_schedule() -> None:
    twice = [ScheduleDeclared(key="k", name=name, every=1.0) for name in ("a", "b")]
    with pytest.raises(BadRequestError, match="key 'k' is there twice; each key is allowed once"):
        await declare_schedules(cast("Any", None), SchedulesDeclare(by="app", schedules=twice))
