"""
Checkpoints (``ctx.checkpoint``) until the server has them. Pure.

Only the newest of each attempt counts. The result of an attempt waits for its checkpoint: otherwise a failure that
arrives first would let the next attempt begin without it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Final, NamedTuple

from pulse.app.workflows.receipt import Kept, Receipt
from pulse.worker.execution.attempt import Attempt, Pair

__all__ = ["Checkpoints"]

_OVERHEAD_BYTES: Final = 96  # bytes of one on the wire beside its text


class _SavedText(NamedTuple):
    """A checkpoint that is being sent, and who waits for it: for this one, or an older one."""

    text: str
    receipts: list[Receipt]


class Checkpoints:
    """
    Checkpoints that are new, and those that are being sent.

    Attributes:
        new: Attempts with a checkpoint that was not sent yet, and who waits for that.
    """

    def __init__(self) -> None:
        self.new: Final[deque[tuple[Attempt, Receipt | None]]] = deque()
        self._under_way: dict[int, dict[Attempt, _SavedText]] = {}

    def save(self, attempt: Attempt, text: str, receipt: Receipt | None = None) -> None:
        """A handler saved a checkpoint. May be called from any thread."""
        attempt.checkpoint = text
        self.new.append((attempt, receipt))  # after the text: with this one finds that text, or a newer one

    def take(self, number: int, max_bytes: int) -> list[tuple[bytes, int, str]]:
        """The checkpoints for frame *number*, as many as fit; empty when there are no more."""
        taken: dict[Attempt, _SavedText] = {}
        room = max_bytes - _OVERHEAD_BYTES
        while self.new:
            attempt, receipt = self.new[0]
            text = attempt.checkpoint
            sent = taken.get(attempt)
            if sent is not None and sent.text is not text:
                break  # saved in this very moment, in a thread: for the next frame
            if sent is None and text is not None and (receipt is not None or text is not attempt.checkpoint_saved):
                size = len(text.encode()) + _OVERHEAD_BYTES
                if size > room and taken:
                    break
                room -= size
                sent = taken[attempt] = _SavedText(text, [])
            if sent is not None and receipt is not None:
                sent.receipts.append(receipt)
            self.new.popleft()
        if taken:
            self._under_way[number] = taken
        return [(*attempt.pair, sent.text) for attempt, sent in taken.items()]

    def answered(self, number: int, dropped: Collection[Pair] | None = ()) -> list[Attempt]:
        """
        The server has frame *number*, but for *dropped* ones, or (None) nothing of it.

        Returns:
            The attempts that have nothing unsaved any more.
        """
        settled: list[Attempt] = []
        for attempt, sent in self._under_way.pop(number, {}).items():
            attempt.checkpoint_saved = sent.text
            kept: Kept = "refused" if dropped is None or attempt.pair in dropped else "kept"
            for receipt in sent.receipts:
                receipt.settle("lost" if attempt.lost else kept)
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
            return self.answered(number, None)
        self._again(number)
        return []

    def disconnected(self) -> None:
        """Unanswered checkpoints are sent again."""
        for number in list(self._under_way):
            self._again(number)

    def _again(self, number: int) -> None:
        for attempt, sent in reversed(self._under_way.pop(number, {}).items()):
            self.new.extendleft((attempt, receipt) for receipt in sent.receipts)
            if not sent.receipts:
                self.new.appendleft((attempt, None))
