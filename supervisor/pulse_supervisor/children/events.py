"""What can happen to a child, and what can be done about one: the words between ``lifecycle`` and ``runner``."""

from __future__ import annotations

import signal
from dataclasses import dataclass


class Event:
    """Something that happened to a child."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class StartAsked(Event):
    """It is this child's turn to start."""


@dataclass(frozen=True, slots=True)
class SpawnOk(Event):
    """A process was spawned."""

    pid: int


@dataclass(frozen=True, slots=True)
class SpawnFailed(Event):
    """No process could be spawned; ``passes``: for want of descriptors, processes or memory, which comes to an end."""

    reason: str
    passes: bool = False


@dataclass(frozen=True, slots=True)
class HelloReceived(Event):
    """It said hello on the bus."""


@dataclass(frozen=True, slots=True)
class Briefed(Event):
    """Its settings were sent."""


@dataclass(frozen=True, slots=True)
class ReadyReceived(Event):
    """It can do its work."""


@dataclass(frozen=True, slots=True)
class PongReceived(Event):
    """It answered a ping; its unfinished turn is *turn_age_s* old."""

    turn_age_s: float


@dataclass(frozen=True, slots=True)
class RefusalReceived(Event):
    """It said why it is about to give up."""

    message: str


@dataclass(frozen=True, slots=True)
class BusBroken(Event):
    """It sent what is not the protocol."""

    reason: str


@dataclass(frozen=True, slots=True)
class Exited(Event):
    """Its process ended: by an exit code, or by a signal; *hopeless* says why starting it again cannot help."""

    code: int | None = None
    signal: int | None = None
    hopeless: str | None = None

    def __str__(self) -> str:
        if self.signal is None:
            return f"exit code {self.code}"
        known = self.signal in {number.value for number in signal.Signals}
        return signal.Signals(self.signal).name if known else f"signal {self.signal}"


@dataclass(frozen=True, slots=True)
class StopAsked(Event):
    """It is to stop for good, in its own time."""


@dataclass(frozen=True, slots=True)
class StopNow(Event):
    """It is to stop for good, at once; or at *not_before_s*, when it is needed until then."""

    not_before_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RestartAsked(Event):
    """An operator wants it stopped and started again."""


@dataclass(frozen=True, slots=True)
class Deadline(Event):
    """``deadline_s`` has come."""


@dataclass(frozen=True, slots=True)
class Slept(Event):
    """The supervisor itself did not run for *slept_s*: nobody else is to blame for the silence."""

    slept_s: float


class Effect:
    """Something to be done about a child."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Spawn(Effect):
    """Start a process."""


@dataclass(frozen=True, slots=True)
class SendStart(Effect):
    """Send the settings as soon as there are any, then report Briefed."""

    boot: bool


@dataclass(frozen=True, slots=True)
class SendStop(Effect):
    """Ask on the bus to stop within *grace_s*."""

    grace_s: float


@dataclass(frozen=True, slots=True)
class Signal(Effect):
    """Send a signal to the process."""

    signal: signal.Signals


@dataclass(frozen=True, slots=True)
class StopAll(Effect):
    """This child cannot be helped: stop every child and exit with *exit_code*, saying *message*."""

    exit_code: int
    message: str
