"""
When a schedule occurs, reckoned without pulse; pure, in microseconds as the database has them.

Only rules are used of which that is a matter of one line: every so many seconds from a start on, a cron expression of
six fields that names every n-th second of each minute, and a single time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import inf
from typing import Any
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Rule:
    """
    The rule of a schedule.

    Attributes:
        kind: ``every`` step_s from starts_s on, ``cron`` at each multiple of step_s within a minute, ``at`` starts_s.
        step_s: See there; of cron a whole number that divides 60.
        starts_s: Unix seconds.
        ends_s: No occurrence after it.
        jitter_s: Each fires later by less than that.
        catch_up: What becomes of those that were missed.
        overlap: What becomes of one whose predecessor is not finished.
    """

    kind: str
    step_s: float
    starts_s: float
    ends_s: float | None = None
    jitter_s: float = 0.0
    catch_up: str = "latest"
    overlap: str = "allow"

    def facts(self) -> dict[str, Any]:
        """It, for the ledger."""
        return asdict(self)

    def has(self, occurrence_us: int) -> bool:
        """Whether that is an occurrence of it."""
        if occurrence_us < _us(self.starts_s) or (self.ends_s is not None and occurrence_us > _us(self.ends_s)):
            return False
        match self.kind:
            case "at":
                return occurrence_us == _us(self.starts_s)
            case "cron":
                return occurrence_us % _us(self.step_s) == 0
            case _:
                return (occurrence_us - _us(self.starts_s)) % _us(self.step_s) == 0

    def between(self, from_s: float, to_s: float) -> Iterator[int]:
        """Its occurrences after *from_s*, up to *to_s*, in order."""
        step_us = _us(self.step_s)
        origin_us = 0 if self.kind == "cron" else _us(self.starts_s)
        first_us = max(_us(from_s) + 1, _us(self.starts_s))
        one_us = origin_us + -((origin_us - first_us) // step_us) * step_us
        while one_us <= _us(to_s) and self.has(one_us):
            yield one_us
            one_us += step_us

    def after(self, occurrence_us: int) -> int | None:
        """The occurrence after one of its own."""
        found_us = occurrence_us + _us(self.step_s)
        return found_us if self.has(found_us) else None

    def due_s(self, schedule: UUID, occurrence_us: int | None) -> float:
        """When one is to fire: later by its jitter, which is a share that its schedule and its time have drawn."""
        if occurrence_us is None:
            return inf
        digest = hashlib.md5(f"{schedule} {occurrence_us}".encode(), usedforsecurity=False).hexdigest()
        return occurrence_us / 1e6 + self.jitter_s * int(digest[:8], 16) / 2**32


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
