"""The contents of one heartbeat of a handler process. Pure."""

from __future__ import annotations

from typing import Final

from pulse.worker.execution.attempt import Attempt

__all__ = ["HeartbeatBody"]

_BEAT_PROGRESS_CHARACTERS: Final = 256 * 1024  # of one heartbeat; 1 MiB at worst, far below a frame


class HeartbeatBody:
    """
    One heartbeat: all held jobs, with the progress that the server does not have yet, as far as it fits.

    Attributes:
        jobs: The list for the frame; no progress means: unchanged.
        made_s: When it was made, monotonic: the leases are extended from then.
        complete: Whether all progress fitted.
    """

    __slots__ = ("_room", "_told", "complete", "jobs", "made_s")

    def __init__(self, now_s: float) -> None:
        self.jobs: list[tuple[bytes, int, str | None]] = []
        self.made_s: Final = now_s
        self.complete = True
        self._room = _BEAT_PROGRESS_CHARACTERS
        self._told: list[tuple[Attempt, str]] = []

    def add(self, attempt: Attempt) -> None:
        """List an attempt."""
        text = attempt.progress
        if text is None or text is attempt.progress_sent:
            self.jobs.append((*attempt.pair, None))
        elif len(text) > self._room:
            self.complete = False
            self.jobs.append((*attempt.pair, None))
        else:
            self._room -= len(text)
            self._told.append((attempt, text))
            self.jobs.append((*attempt.pair, text))

    def answered(self) -> None:
        """The server has it."""
        for attempt, text in self._told:
            attempt.progress_sent = text
