"""Which boots of a host are over, and which may be a living twin's."""

from __future__ import annotations

import pytest

from pulse_actors.dispatcher.liveness.startup import ended_boots
from pulse_actors.shared.identity import Host

HOST = Host("h", "now", 1)


@pytest.mark.parametrize(("boot", "seen_ago_s", "over"), [
    ("before", 121.0, True),  # last seen well before this kernel started
    ("before", 119.0, False),  # it may be a twin that was just seen
    ("before", 5.0, False),
    ("now", 1e6, False),  # this very boot, whose supervisor was away for long
])  # fmt: skip
def test_a_boot_is_over_when_it_was_last_seen_before_this_kernel_started(
    boot: str, seen_ago_s: float, over: bool
) -> None:
    """With a margin in which a living machine of the same name would have been seen."""
    assert (boot in ended_boots({boot: seen_ago_s}, HOST, uptime_s=100.0, margin_s=20.0)) is over
