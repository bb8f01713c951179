"""A slot is a child and its present process; ``status`` shows all slots."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from pulse_supervisor.bus.link import BusLink
from pulse_supervisor.children import lifecycle
from pulse_supervisor.children.events import Effect, Event
from pulse_supervisor.children.lifecycle import ChildPhase, ChildState
from pulse_supervisor.children.process import ChildProcess
from pulse_supervisor.children.spec import ChildKind, ChildSpec

if TYPE_CHECKING:
    from pulse_supervisor.postgres.child import PostgresChild


class ChildSlot(msgspec.Struct):
    """
    A child, its state, and its present process.

    Attributes:
        child: Its description.
        database: The embedded PostgreSQL, if it is the postmaster; None: it is another child.
        state: Its state in the lifecycle.
        process: Its process while one is alive.
        link: The bus to that process.
    """

    child: ChildSpec
    database: PostgresChild | None = None
    state: ChildState = msgspec.field(default_factory=ChildState)
    process: ChildProcess | None = None
    link: BusLink | None = None

    @property
    def is_gone(self) -> bool:
        """Whether it is stopped, or has failed."""
        return self.state.phase in {ChildPhase.STOPPED, ChildPhase.FAILED}

    def step(self, event: Event, now_s: float) -> Sequence[Effect]:
        """Let the lifecycle handle *event*; returns the effects."""
        self.state, effects = lifecycle.step(self.child, self.state, event, now_s)
        return effects

    def fill(self, process: ChildProcess) -> BusLink | None:
        """A process was spawned; returns its bus, if it has one."""
        self.process = process
        if process.bus is not None:
            self.link = BusLink(self.child.name, process.pid, process.bus)
        return self.link

    def clear(self) -> None:
        """The process has ended."""
        self.process, self.link = None, None


class SupervisorIdentity(msgspec.Struct, frozen=True):
    """Which supervisor this is, and since when, monotonic."""

    version: str
    started_s: float


def describe(identity: SupervisorIdentity, slots: Iterable[ChildSlot], now_s: float) -> dict[str, object]:
    """The supervisor's own part of ``status``: ``supervisor``, ``actors``, ``pools`` and ``services``."""
    rows = [(slot.child.kind, _row(slot, now_s)) for slot in slots]
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


def _row(slot: ChildSlot, now_s: float) -> dict[str, object]:
    state = slot.state
    return {
        "name": slot.child.name,
        "pid": state.pid,
        "state": state.shown,
        "restarts": state.restarts,
        "uptime_s": round(now_s - state.spawned_s, 3) if state.pid is not None else None,
    }
