"""What a fault is: something that can be done to a system, and undone."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import ClassVar, Final, TypeVar

from tests.chaos.site import Site
from tests.support.waiting import until

T = TypeVar("T")
FIND_S: Final = 5.0  # for a victim


class Fault(ABC):
    """
    One row of the catalogue of faults.

    Attributes:
        row: Number in the catalogue.
        held_s: How long it lasts before it is healed, at least and at most; 0: it is over at once.
        bar_s: How long the system may take to be whole again and to complete a job, on a busy machine.
        alone: No other fault may be at work at the same time.
        stalls: No job gets through while it lasts.
        works: It needs jobs to get through in order to strike.
        kills: It ends processes that run jobs.
        gave_up: Why it could not strike; '' if it did. Set when it is healed.
    """

    row: ClassVar[int]
    name: ClassVar[str]
    held_s: ClassVar[tuple[float, float]] = (0.0, 0.0)
    bar_s: ClassVar[float] = 15.0
    alone: ClassVar[bool] = False
    stalls: ClassVar[bool] = False
    works: ClassVar[bool] = False
    kills: ClassVar[bool] = False
    gave_up: str = ""

    def __init__(self, site: Site, rng: random.Random) -> None:
        self.site = site
        self.rng = rng

    @classmethod
    def missing(cls, site: Site) -> str | None:
        del site
        return None

    @abstractmethod
    def inject(self) -> None:
        """Do it."""

    def heal(self) -> None:  # noqa: B027 - there is nothing to undo of what is over at once
        """Undo it, also after an ``inject`` that failed; a second time does nothing."""

    def hit(self, victims: Callable[[], Iterable[int]], number: signal.Signals, nobody: str) -> int:
        """Signal one of *victims*; its pid. 0: there was none, and the fault gave up for that reason."""
        pids = found(lambda: sorted(victims())) or []
        victim = self.rng.choice(pids) if pids else 0
        if not victim or not send(victim, number):
            self.gave_up = nobody
        return victim


def found(look: Callable[[], T | None]) -> T | None:
    """What *look* finds, as soon as it finds something; None after a while: the system is not whole."""
    with contextlib.suppress(AssertionError):
        return until(look, "", FIND_S)
    return None


def actors(site: Site) -> dict[str, int]:
    """The actors that run, by name; none while the supervisor does not answer."""
    with contextlib.suppress(OSError, AssertionError):
        return site.whole.pids()
    return {}


def send(pid: int, number: signal.Signals) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False
