"""Which ends of a child call for a new start, in OTP's words; `system.restart_policy` says how often and how soon."""

from __future__ import annotations

import enum


class Restart(enum.Enum):
    """Which ends of a child call for a new start."""

    PERMANENT = "permanent"  # every end that nobody asked for
    TRANSIENT = "transient"  # an abnormal end: a signal, or an exit code other than 0
    TEMPORARY = "temporary"  # none

    def applies(self, *, normal: bool) -> bool:
        """Whether a child that ended by itself is started again; *normal*: with exit code 0."""
        return self is Restart.PERMANENT or (self is Restart.TRANSIENT and not normal)
