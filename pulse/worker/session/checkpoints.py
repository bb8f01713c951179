"""
Checkpoints (``ctx.checkpoint``) until the server has them. Pure.

Only the newest of each attempt counts. The result of an attempt waits for its checkpoint: otherwise a failure that
arrives first would let the next attempt begin without it.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from pulse.worker.execution.attempt import Attempt

__all__ = ["Checkpoints"]

_OVERHEAD_BYTES: Final = 96  # bytes of one on the wire beside its text


class Checkpoints:
    """
    Checkpoints that are new, and those that are being sent.

    Attributes:
        new: Attempts with a checkpoint that was not sent yet.
    """

    def __init__(self) -> None:
        self.new: Final[deque[Attempt]] = deque()
        self._under_way: dict[int, list[tuple[Attempt, str]]] = {}

    def save(self, attempt: Attempt, text: str) -> None:
        """A handler saved a checkpoint. May be called from any thread."""
        attempt.checkpoint = text
        self.new.append(attempt)

    def take(self, number: int, max_bytes: int) -> list[tuple[bytes, int, str]]:
        """The checkpoints for frame *number*, as many as fit; empty when there are no more."""
        taken: dict[Attempt, str] = {}
        room = max_bytes - _OVERHEAD_BYTES
        while self.new:
            attempt = self.new[0]
            text = attempt.checkpoint
            if text is not None and text is not attempt.checkpoint_saved and attempt not in taken:
                size = len(text.encode()) + _OVERHEAD_BYTES
                if size > room and taken:
                    break
                room -= size
                taken[attempt] = text
            self.new.popleft()
        if taken:
            self._under_way[number] = list(taken.items())
        return [(*attempt.pair, text) for attempt, text in taken.items()]

    def answered(self, number: int) -> list[Attempt]:
        """The server has frame *number*; returns the attempts that have nothing unsaved any more."""
        settled: list[Attempt] = []
        for attempt, text in self._under_way.pop(number, ()):
            attempt.checkpoint_saved = text
            if attempt.is_saved:
                settled.append(attempt)
        return settled

    def refused(self, number: int, *, passing: bool) -> list[Attempt]:
        """
        The server did not take frame *number*.

        Args:
            number: Of the frame.
            passing: The cause is temporary: it is sent again. Otherwise it is dropped, since a job that can never
                report is worse than one without its checkpoint.

        Returns:
            Attempts that have nothing unsaved any more.
        """
        if not passing:
            return self.answered(number)
        self._again(number)
        return []

    def disconnected(self) -> None:
        """Unanswered checkpoints are sent again."""
        for number in list(self._under_way):
            self._again(number)

    def _again(self, number: int) -> None:
        self.new.extendleft(attempt for attempt, _ in reversed(self._under_way.pop(number, [])))
