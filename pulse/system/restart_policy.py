"""After which ends a process is restarted, how often, and how soon, in OTP's terms; pure: no clock, no process."""

from __future__ import annotations

import enum

import msgspec


class Restart(enum.Enum):
    """Which ends of a child call for a new start."""

    PERMANENT = "permanent"  # every end that was not requested
    TRANSIENT = "transient"  # an abnormal end: a signal, or an exit code other than 0
    TEMPORARY = "temporary"  # none

    def applies(self, *, normal: bool) -> bool:
        """Whether a child that ended by itself is started again; *normal*: with exit code 0."""
        return self is Restart.PERMANENT or (self is Restart.TRANSIENT and not normal)


class Intensity(msgspec.Struct, frozen=True):
    """How many restarts are allowed; more are a loop, and the supervisor or pool gives up."""

    max_restarts: int = 5  # more than this many ...
    window_s: float = 60.0  # ... within this many seconds


class Delay(msgspec.Struct, frozen=True):
    """
    How long a restart waits, by how many came before it in the window.

    The first is immediate: most deaths are single, and every second without the process is a second without its work.
    Those that follow wait a little, doubling, so that a loop burns no core and its cause (a server that restarts, a
    full disk) has time to pass; bounded, because a process that is worth restarting is worth having back soon.
    """

    first_s: float = 0.1
    longest_s: float = 0.5  # the most that a killed actor may be missed

    def after(self, earlier: int) -> float:
        """Seconds to wait before a restart that *earlier* others preceded in the window."""
        if earlier <= 0:
            return 0.0
        return min(self.longest_s, self.first_s * 2.0 ** min(earlier - 1, 30))


class RestartLog(msgspec.Struct, frozen=True):
    """The restarts of one process that still count, oldest first, by the monotonic clock."""

    at_s: tuple[float, ...] = ()

    def record(self, now_s: float, intensity: Intensity) -> RestartLog:
        """This log with a restart at *now_s*, without those that have left the window."""
        return RestartLog((*(at_s for at_s in self.at_s if now_s - at_s < intensity.window_s), now_s))

    def exceeds(self, intensity: Intensity) -> bool:
        """Whether the last recorded restart is one too many."""
        return len(self.at_s) > intensity.max_restarts

    @property
    def earlier(self) -> int:
        """How many restarts preceded the last recorded one in the window."""
        return max(0, len(self.at_s) - 1)
