"""
The state of the whole system: asks supervisor and dispatcher at the same time, and merges their answers.

Each of them knows a part, and each may be silent: callers show the known part, and which of them did not answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pulse.errors import NobodyAnswersError, PulseError

Body = Mapping[str, object]

SUPERVISOR_S: Final = 1.4  # it asks its actors for up to 0.8 s before it answers
DISPATCHER_S: Final = 1.0
_KEYS: Final = ("supervisor", "actors", "pools", "database", "gate", "workers", "jobs", "jobs_exact")
_AT_ONE_TIME: Final = ("database", "jobs", "jobs_exact")  # what belongs together comes from one of the two


@dataclass(frozen=True, slots=True)
class StatusAnswers:
    """
    The answers of both to ``status``.

    Attributes:
        supervisor: Its answer, or why there is none.
        dispatcher: The same.
    """

    supervisor: Body | PulseError
    dispatcher: Body | PulseError

    @property
    def silent(self) -> dict[str, str]:
        """Which of them did not answer, and why."""
        answers = {"supervisor": self.supervisor, "dispatcher": self.dispatcher}
        return {who: answer.message for who, answer in answers.items() if isinstance(answer, PulseError)}

    @property
    def merged(self) -> dict[str, object]:
        """Both answers in one document."""
        answers = (self.supervisor, self.dispatcher)
        return merge(*(None if isinstance(answer, PulseError) else answer for answer in answers))


def merge(supervisor: Body | None, dispatcher: Body | None) -> dict[str, object]:
    """
    Merge two documents: the supervisor's own part, and the dispatcher's, which is more direct.

    Args:
        supervisor: Its answer; None: it did not answer.
        dispatcher: The same.

    Returns:
        Every documented key, and all others found; null where neither knew.
    """
    first, second = supervisor or {}, dispatcher or {}
    merged: dict[str, object] = {**second, **first}
    for key in _KEYS:
        value = first.get(key)
        merged[key] = value if value is not None else second.get(key)
    if second.get("database") is not None:  # directly from the dispatcher
        merged.update({key: second.get(key) for key in _AT_ONE_TIME})
    if second.get("gate") is not None:
        merged["gate"] = second["gate"]
    merged["workers"] = second.get("workers")
    return merged


class TimedCall:
    """
    A request in a daemon thread, for which the process does not wait at its end.

    Args:
        ask: Sends the request, and returns the answer.
        timeout_s: Longest wait, seconds.
    """

    def __init__(self, ask: Callable[[], Body], timeout_s: float) -> None:
        self._ask = ask
        self._deadline_s = time.monotonic() + timeout_s
        self._answer: Body | PulseError | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def answer(self) -> Body | PulseError:
        """The answer, or why there is none."""
        self._thread.join(max(0.0, self._deadline_s - time.monotonic()))
        if self._failure is not None:
            raise self._failure
        return NobodyAnswersError("no answer in time") if self._answer is None else self._answer

    def _run(self) -> None:
        try:
            self._answer = self._ask()
        except PulseError as error:
            self._answer = error
        except BaseException as error:  # noqa: BLE001 -- raised again in the thread that waits
            self._failure = error
