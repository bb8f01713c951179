"""What can happen to a child, and what can be done about one: the words between ``lifecycle`` and ``runner``."""

from __future__ import annotations

import signal

import msgspec


class Event(msgspec.Struct, frozen=True):
    """Something that happened to a child."""


class StartAsked(Event, frozen=True):
    """It is this child's turn to start."""


class SpawnOk(Event, frozen=True):
    """A process was spawned."""

    pid: int


class SpawnFailed(Event, frozen=True):
    """No process could be spawned; ``passes``: for want of descriptors, processes or memory, which ends."""

    reason: str
    passes: bool = False


class HelloReceived(Event, frozen=True):
    """It said hello on the bus."""


class Briefed(Event, frozen=True):
    """Its settings were sent."""


class ReadyReceived(Event, frozen=True):
    """It can do its work."""


class PongReceived(Event, frozen=True):
    """It answered a ping; its unfinished turn is *turn_age_s* old."""

    turn_age_s: float


class RefusalReceived(Event, frozen=True):
    """It said why it is about to give up."""

    message: str


class BusBroken(Event, frozen=True):
    """It sent what is not the protocol."""

    reason: str


class Exited(Event, frozen=True):
    """Its process ended: by an exit code, or by a signal; *hopeless* says why starting it again cannot help."""

    code: int | None = None
    signal: int | None = None
    hopeless: str | None = None

    def __str__(self) -> str:
        if self.signal is None:
            return f"exit code {self.code}"
        known = self.signal in {number.value for number in signal.Signals}
        return signal.Signals(self.signal).name if known else f"signal {self.signal}"


class StopAsked(Event, frozen=True):
    """It is to stop for good, in its own time."""


class StopNow(Event, frozen=True):
    """It is to stop for good, at once; or at *not_before_s*, when it is needed until then."""

    not_before_s: float = 0.0


class RestartAsked(Event, frozen=True):
    """An operator wants it stopped and started again."""


class Deadline(Event, frozen=True):
    """``deadline_s`` has come."""


class Slept(Event, frozen=True):
    """The supervisor itself did not run for *slept_s*: nobody else is to blame for the silence."""

    slept_s: float


class Effect(msgspec.Struct, frozen=True):
    """Something to be done about a child."""


class Spawn(Effect, frozen=True):
    """Start a process."""


class SendStart(Effect, frozen=True):
    """Send the settings as soon as there are any, then report Briefed."""

    boot: bool


class SendStop(Effect, frozen=True):
    """Ask on the bus to stop within *grace_s*."""

    grace_s: float


class Signal(Effect, frozen=True):
    """Send a signal to the process."""

    signal: signal.Signals


class StopAll(Effect, frozen=True):
    """This child cannot be helped: stop every child and exit with *exit_code*, saying *message*."""

    exit_code: int
    message: str
