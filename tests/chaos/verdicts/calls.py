"""
What operators asked for, as the ledger has it; pure.

A *call* is one change that somebody asked for, until it was acknowledged. Before it was first asked for, all was as
before; since it is acknowledged, all is as it says; in between either may be. A call whose answer was lost is asked for
again, but only when no earlier try can be on its way any more (`QUIET_S`), and nobody wants another change of the same
target meanwhile. So the calls for a target follow each other, and behind each acknowledgement its state is certain.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final
from uuid import UUID

from tests.chaos.load.ledger import Line

ASKED: Final = "asked"
DONE: Final = "done"
QUIET_S: Final = 20.0  # behind a try that got no answer: longer than any fault holds what it had begun
GATE: Final = "gate of "  # and the topic; '' is all of them
POLICY: Final = "policy of "
MARGIN_S: Final = 0.1  # between the clocks of the ledger and of the database, both of this machine


@dataclass(frozen=True, slots=True)
class Call:
    """
    A change that was asked for.

    Attributes:
        target: Which schedule, or the gate or the policy of which topic.
        what: The change: ``create``, ``change``, ``pause``, ``resume``, ``trigger`` of schedules, ``set``, ``close``,
            ``open`` of topics.
        asked_s: When it was first asked for, Unix seconds.
        done_s: When it was acknowledged; never: infinite.
        tries: How often it was asked for.
        facts: What else was said.
    """

    target: str
    what: str
    asked_s: float
    done_s: float = inf
    tries: int = 1
    facts: Mapping[str, Any] = field(default_factory=dict)


def calls(lines: Sequence[Line], to_unix_s: float) -> dict[str, list[Call]]:
    """
    The calls for each target, in their order.

    Args:
        lines: The ledger.
        to_unix_s: What to add to its times.
    """
    asked = [line for line in lines if line.act == ASKED]
    done_s = {line.job: line.at_s + to_unix_s for line in lines if line.act == DONE}
    tries: dict[UUID, list[Line]] = defaultdict(list)
    for line in asked:
        tries[line.job].append(line)
    found: dict[str, list[Call]] = defaultdict(list)
    for call, some in tries.items():
        facts = some[0].facts
        found[facts["target"]].append(
            Call(
                facts["target"],
                facts["what"],
                some[0].at_s + to_unix_s,
                done_s.get(call, inf),
                len(some),
                facts,
            )
        )
    return found


def counted(some: Sequence[Call]) -> dict[str, int]:
    """How many there were, for people."""
    lost = sum(call.tries > 1 or call.done_s == inf for call in some)
    return {"operator calls": len(some), "  without an answer": lost}
