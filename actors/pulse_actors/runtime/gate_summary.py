"""Short forms of the gate, for bus frames and for the log. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

import msgspec

from pulse.protocol.bus import MAX_BUS_FRAME_BYTES

__all__ = ["fitting", "told"]

TOPICS_BYTES: Final = MAX_BUS_FRAME_BYTES // 2  # of topics with their reasons, in one frame
NAMED: Final = 20  # topics in a line of the log

Gate = Mapping[str, object]


def fitting(gate: Gate) -> dict[str, object]:
    """*gate* with as many of its paused topics as fit; ``topics_omitted`` counts the others."""
    topics, kept, left = _topics(gate), dict[str, object](), TOPICS_BYTES
    for topic in sorted(topics):
        left -= len(msgspec.msgpack.encode((topic, topics[topic])))
        if left < 0:
            return {**gate, "topics": kept, "topics_omitted": len(topics) - len(kept)}
        kept[topic] = topics[topic]
    return dict(gate)


def told(gate: Gate, before: Gate) -> dict[str, object]:
    """*gate* for the log: how many topics are paused, and the names of some that changed since *before*."""
    topics, former = _topics(gate), _topics(before)
    changed = sorted(topic for topic in {*topics, *former} if topics.get(topic) != former.get(topic))
    return {**gate, "topics": len(topics), "changed": changed[:NAMED]}


def _topics(gate: Gate) -> Mapping[str, object]:
    return cast("Mapping[str, object]", gate.get("topics") or {})
