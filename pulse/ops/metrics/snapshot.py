"""What there is to export at one moment, as the dispatcher and the supervisor tell it."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar, cast

from pulse.client.client import Client
from pulse.client.discovery import LocalSocket, find_servers, supervisors_beside, why_not
from pulse.errors import ProtocolError, PulseError
from pulse.ops.doctor.running import findings
from pulse.ops.status import merge
from pulse.protocol.answers import StatusAnswer, read
from pulse.protocol.stats import Stats

STATS_S: Final = 1.5  # a dispatcher that takes longer is no use to anybody
STATUS_S: Final = 1.8  # the supervisor answers within a second, whatever is down
FRESH_S: Final = 0.5  # scrapes that come together are one question
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """
    One moment.

    Attributes:
        stats: Of the dispatcher; None: it does not answer.
        status: Of the supervisor; None: it does not.
    """

    stats: Stats | None
    status: Mapping[str, object] | None

    @property
    def findings(self) -> dict[str, str]:
        """What is wrong: check of the doctor -> severity."""
        silent = {"dispatcher": "no answer"} if self.stats is None else {}
        silent |= {"supervisor": "no answer"} if self.status is None else {}
        try:
            status = read(StatusAnswer, merge(self.status, None))
        except ProtocolError as error:  # a supervisor of another version
            status, silent = StatusAnswer(), {**silent, "supervisor": error.message}
        told = {} if self.stats is None else self.stats.findings
        return {one.check: one.state.value for one in findings(status, silent)} | told

    @property
    def is_database_there(self) -> bool:
        """Whether the dispatcher or the supervisor has an answer from it."""
        told = None if self.status is None else self.status.get("database")
        if isinstance(told, Mapping):
            return cast("Mapping[str, object]", told).get("ok") is True
        stats = self.stats
        return stats is not None and stats.database.away_s == 0

    def rows(self, part: str) -> list[Mapping[str, object]]:
        """What the supervisor says of its ``actors``, ``pools`` or ``services``."""
        rows = None if self.status is None else self.status.get(part)
        return cast("list[Mapping[str, object]]", rows) if isinstance(rows, list) else []


class MetricsSource:
    """
    Asks both of them side by side, and never for long.

    Args:
        socket: The dispatcher's; None: it is looked for, each time.
        topics: How many topics have series of their own.
    """

    def __init__(self, socket: str | Path | None, topics: int) -> None:
        self._socket = socket
        self._topics = topics
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(4, "ask")
        self._taken_s = float("-inf")
        self._last = MetricsSnapshot(None, None)

    def take(self) -> MetricsSnapshot:
        """The answers of this moment."""
        with self._lock:
            if time.monotonic() - self._taken_s > FRESH_S:
                stats, status = self._threads.submit(self._stats), self._threads.submit(self._status)
                until_s = time.monotonic() + STATUS_S + 0.2
                self._last = MetricsSnapshot(_by(stats, until_s), _by(status, until_s))
                self._taken_s = time.monotonic()
            return self._last

    def _stats(self) -> Stats | None:
        try:
            with Client(self._socket, timeout_s=STATS_S) as client:
                return client.stats(topics=self._topics, history_s=0.0)
        except PulseError:
            return None

    def _status(self) -> Mapping[str, object] | None:
        for target in self._supervisors():
            if why_not(target) is None:
                try:
                    with Client(target.path, timeout_s=STATUS_S) as client:
                        return client.request("status")
                except PulseError:
                    continue
        return None

    def _supervisors(self) -> list[LocalSocket]:
        try:
            return supervisors_beside(find_servers(self._socket))
        except PulseError:  # of a server on another machine
            return []


def _by(asked: Future[T | None], until_s: float) -> T | None:
    """What was answered by then."""
    try:
        return asked.result(max(0.0, until_s - time.monotonic()))
    except (TimeoutError, OSError):  # its thread goes on until its own deadline
        return None
