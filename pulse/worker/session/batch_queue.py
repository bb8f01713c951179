"""
Jobs that wait to be called together, by their handler. Pure: times come in.

Jobs of one handler with the same time limit share a call, so that the limit of the call is the limit of each. A batch
is ready when it is full, or when its first job has waited long enough; until it starts it takes in more.
"""

from __future__ import annotations

from collections import deque
from typing import Final, TypeAlias, cast

from pulse.app.handler import Handler
from pulse.worker.execution.attempt import Attempt
from pulse.worker.execution.batch import BatchCall

__all__ = ["BatchQueue"]

Key: TypeAlias = "tuple[str, float | None]"


class _NextBatch:
    """Jobs of one key, the first that came at the front."""

    def __init__(self, size: int, wait_s: float) -> None:
        self.size: Final = size
        self.wait_s: Final = wait_s
        self.waiting: deque[tuple[Attempt, float]] = deque()

    def ready_s(self) -> float:
        """When it is ready, if no more jobs come."""
        return self.waiting[0][1] + self.wait_s


class BatchQueue:
    """
    All jobs of a process that wait for others of their handler.

    Attributes:
        filling: Those of each handler and time limit, those that came first at the front; empty: none waits.
    """

    def __init__(self) -> None:
        self.filling: Final[dict[Key, _NextBatch]] = {}
        self._now_s = 0.0

    def add(self, attempt: Attempt, handler: Handler, now_s: float) -> None:
        """A job of *handler* has arrived."""
        self._now_s = now_s
        self._of(attempt, handler).waiting.append((attempt, now_s))

    def put_back(self, attempt: Attempt, handler: Handler) -> None:
        """A job of a batch that could not start: it is first again, and has waited long enough."""
        self._of(attempt, handler).waiting.appendleft((attempt, float("-inf")))

    def look(self, now_s: float) -> bool:
        """It is *now_s*, monotonic; returns whether a batch is ready."""
        self._now_s = now_s
        return self._ready() is not None

    def next_s(self) -> float | None:
        """When the next batch is ready that is not yet; None: there is none."""
        return min((one.ready_s() for one in self.filling.values() if not self._is_ready(one)), default=None)

    def take(self) -> BatchCall | None:
        """The batch that is ready first; None: none is."""
        key = self._ready()
        if key is None:
            return None
        filling = self.filling.pop(key)
        found = [filling.waiting.popleft()[0] for _ in range(min(filling.size, len(filling.waiting)))]
        if filling.waiting:
            self.filling[key] = filling  # behind the others
        return BatchCall(found)

    def forget(self, attempt: Attempt) -> None:
        """A job of it does not wait any more."""
        key = _key(attempt)
        filling = self.filling.get(key)
        if filling is not None:
            filling.waiting = deque(one for one in filling.waiting if one[0] is not attempt)
            if not filling.waiting:
                del self.filling[key]

    def clear(self) -> list[Attempt]:
        """All that wait; they do not any more."""
        waiting = [attempt for one in self.filling.values() for attempt, _ in one.waiting]
        self.filling.clear()
        return waiting

    def _of(self, attempt: Attempt, handler: Handler) -> _NextBatch:
        key = _key(attempt)
        found = self.filling.get(key)
        if found is None:
            size, wait_s = cast("int", handler.batch), cast("float", handler.batch_wait_s)
            found = self.filling[key] = _NextBatch(size, wait_s)
        return found

    def _ready(self) -> Key | None:
        return next((key for key, one in self.filling.items() if self._is_ready(one)), None)

    def _is_ready(self, filling: _NextBatch) -> bool:
        return len(filling.waiting) >= filling.size or filling.ready_s() <= self._now_s


def _key(attempt: Attempt) -> Key:
    return attempt.job.name, attempt.job.timeout_s
