"""A seat is a child and the process that fills its place now; the seats together are what ``status`` shows."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field

from pulse_supervisor.bus.link import BusLink
from pulse_supervisor.children.lifecycle import ChildPhase, ChildState
from pulse_supervisor.children.process import ChildProcess
from pulse_supervisor.children.spec import ChildKind, ChildSpec


@dataclass(slots=True)
class ChildSlot:
    """
    A child, what is known of it, and its present process.

    Attributes:
        child: What it is to be.
        state: What the machine knows of it.
        process: Its process while one is alive.
        link: The bus to that process.

    """

    child: ChildSpec
    state: ChildState = field(default_factory=ChildState)
    process: ChildProcess | None = None
    link: BusLink | None = None

    @property
    def is_gone(self) -> bool:
        """Whether nothing more is to be expected of it: stopped, or beyond help."""
        return self.state.phase in {ChildPhase.STOPPED, ChildPhase.FAILED}


@dataclass(frozen=True, slots=True)
class SupervisorIdentity:
    """Which supervisor this is, and since when, by the monotonic clock."""

    version: str
    started_s: float


def describe(identity: SupervisorIdentity, seats: Iterable[ChildSlot], now_s: float) -> dict[str, object]:
    """The supervisor's own part of ``status``: ``supervisor``, ``actors``, ``pools`` and ``services``."""
    rows = [(seat.child.kind, _row(seat, now_s)) for seat in seats]
    return {
        "supervisor": {
            "pid": os.getpid(),
            "uptime_s": round(now_s - identity.started_s, 3),
            "version": identity.version,
        },
        "actors": [row for kind, row in rows if kind is ChildKind.ACTOR],
        "pools": [row for kind, row in rows if kind is ChildKind.POOL],
        "services": [row for kind, row in rows if kind is ChildKind.SERVICE],
    }


def _row(seat: ChildSlot, now_s: float) -> dict[str, object]:
    state = seat.state
    return {
        "name": seat.child.name,
        "pid": state.pid,
        "state": state.shown,
        "restarts": state.restarts,
        "uptime_s": round(now_s - state.spawned_s, 3) if state.pid is not None else None,
    }
