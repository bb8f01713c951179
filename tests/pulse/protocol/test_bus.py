"""Hints between processes of the supervisor, and parts of answers: each event has its own data."""

from __future__ import annotations

import pytest

from pulse.errors import ProtocolError
from pulse.protocol.answers import part
from pulse.protocol.bus import CanceledJobs, HintEvent, ReadyJobs, hint


def test_a_hint_has_the_data_of_its_event() -> None:
    assert hint("dispatcher", HintEvent.CANCELED, CanceledJobs(["a"])).data == {"jobs": ["a"]}
    with pytest.raises(TypeError, match="CanceledJobs is allowed, not ReadyJobs"):
        hint("dispatcher", HintEvent.CANCELED, ReadyJobs())


def test_an_answer_without_what_was_asked_for() -> None:
    assert part({"job": {"id": 1}}, "job") == {"id": 1}
    for answer in ({}, {"job": None}, {"job": [1]}):
        with pytest.raises(ProtocolError, match="the answer has no object 'job'"):
            part(answer, "job")
