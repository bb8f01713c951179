"""UUIDs version 7."""

from __future__ import annotations

import time
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse.common import ids


def test_what_they_hold() -> None:
    """Version, variant, and the time of their making, to a fraction of a millisecond."""
    before_ns = time.time_ns()
    made = [uuid.UUID(bytes=one) for one in ids.uuid7s(500)]
    after_ns = time.time_ns()
    for one in made:
        assert (one.version, one.variant) == (7, uuid.RFC_4122)
        milliseconds, fraction = one.int >> 80, one.int >> 64 & 0xFFF
        assert before_ns - 1000 <= milliseconds * 1_000_000 + fraction * 1_000_000 // 4096 <= after_ns
    assert made == sorted(made, key=lambda one: one.int >> 64)


@given(st.integers(0, 2**62))
def test_any_time_fits(now_ns: int) -> None:
    """The sub-millisecond part stays in its 12 bits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: now_ns)
        made = ids.uuid7()
    assert made.int >> 80 == now_ns // 1_000_000
    assert (made.version, made.variant) == (7, uuid.RFC_4122)


def test_they_are_random() -> None:
    """62 bits of each, of one call or of many: every bit is set in some and clear in others."""
    made = [
        int.from_bytes(one, "big") & 2**62 - 1 for one in [*ids.uuid7s(300), *(ids.uuid7().bytes for _ in range(300))]
    ]
    assert len(set(made)) == len(made)
    for bit in range(62):
        assert {value >> bit & 1 for value in made} == {0, 1}


def test_none() -> None:
    """Of no ids there are none."""
    assert ids.uuid7s(0) == []
