"""Events of a child, and effects on it: the interface between ``lifecycle`` and ``runner``."""

from __future__ import annotations

import signal

import msgspec


class Event(msgspec.Struct, frozen=True):
    """Something that happened to a child."""


class StartAsked(Event, frozen=True):
    """It is time to start this child."""


class SpawnOk(Event, frozen=True):
    """A process was spawned."""

    pid: int


class SpawnFailed(Event, frozen=True):
    """No process could be spawned; ``passes``: the lack of descriptors, processes or memory is temporary."""

    reason: str
    passes: bool = False


class HelloReceived(Event, frozen=True):
    """It said hello on the bus."""


class Briefed(Event, frozen=True):
    """Its settings were sent."""


class ReadyReceived(Event, frozen=True):
    """It is ready to work."""


class PongReceived(Event, frozen=True):
    """It answered a ping; its unfinished turn is *turn_age_s* old. *upgrades*: the schema, before it is ready."""

    turn_age_s: float
    upgrades: bool = False


class RefusalReceived(Event, frozen=True):
    """It reported why it is about to exit."""

    message: str


class BusBroken(Event, frozen=True):
    """It broke the protocol."""

    reason: str


class Exited(Event, frozen=True):
    """Its process ended, by an exit code or a signal; *hopeless*: why another start cannot help."""

    code: int | None = None
    signal: int | None = None
    hopeless: str | None = None

    def __str__(self) -> str:
        if self.signal is None:
            return f"exit code {self.code}"
        known = self.signal in {number.value for number in signal.Signals}
        return signal.Signals(self.signal).name if known else f"signal {self.signal}"


class StopAsked(Event, frozen=True):
    """It must stop for good, in its own time."""


class StopNow(Event, frozen=True):
    """It must stop for good, at once; or at *not_before_s*, if it is needed until then."""

    not_before_s: float = 0.0


class RestartAsked(Event, frozen=True):
    """An operator wants it stopped and started again."""


class Deadline(Event, frozen=True):
    """``deadline_s`` has come."""


class Slept(Event, frozen=True):
    """The supervisor itself did not run for *slept_s*: children are not to blame for the silence."""

    slept_s: float


class Effect(msgspec.Struct, frozen=True):
    """Something to be done about a child."""


class Spawn(Effect, frozen=True):
    """Start a process."""


class SendStart(Effect, frozen=True):
    """Send the settings as soon as there are any, then report Briefed."""

    boot: bool


class ExtendStart(Effect, frozen=True):
    """Have the service manager wait for the start for *by_s* from now."""

    by_s: float


class SendStop(Effect, frozen=True):
    """Ask on the bus to stop within *grace_s*."""

    grace_s: float


class SendSignal(Effect, frozen=True):
    """Send a signal to the process."""

    signal: signal.Signals


class StopAll(Effect, frozen=True):
    """This child cannot be kept alive: stop every child and exit with *exit_code* and *message*."""

    exit_code: int
    message: str
