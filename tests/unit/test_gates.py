"""The gate where room is short."""

from __future__ import annotations

import msgspec

from pulse.protocol.bus import MAX_BUS_FRAME_BYTES
from pulse_actors.runtime.gate_summary import fitting, told

PAUSE = {"reason": "x" * 1000, "paused_at": 1.0, "paused_by": None, "paused_until": None}


def test_what_does_not_fit_is_counted() -> None:
    """The first topics by name are there, and how many more are paused; a gate that fits is told whole."""
    gate = {"paused": False, "reason": None, "topics": {f"t{number:05}": PAUSE for number in reversed(range(10_000))}}
    short = fitting(gate)
    kept = short["topics"]
    assert isinstance(kept, dict)
    assert [*kept] == [f"t{number:05}" for number in range(len(kept))]
    assert short["topics_omitted"] == 10_000 - len(kept)
    assert MAX_BUS_FRAME_BYTES / 4 < len(msgspec.msgpack.encode(short)) < MAX_BUS_FRAME_BYTES / 1.5
    small = {"paused": True, "topics": {"t": PAUSE}}
    assert fitting(small) == small


def test_a_line_of_the_log_stays_a_line() -> None:
    """It names what has changed, some of it, and counts the rest."""
    before = {"paused": False, "topics": {"open again": PAUSE, "as before": PAUSE}}
    after = {"paused": False, "topics": {"as before": PAUSE, "new": PAUSE}}
    assert told(after, before) == {"paused": False, "topics": 2, "changed": ["new", "open again"]}
    many = {"paused": False, "topics": {f"{number:04}": PAUSE for number in range(1000)}}
    line = told(many, {})
    assert (line["topics"], line["changed"]) == (1000, [f"{number:04}" for number in range(20)])
