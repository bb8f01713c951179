"""Logs jobs that no worker has a handler for: each name at once, then at most once a minute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

import structlog

from pulse.store.rows import Claim
from pulse_actors.dispatcher.workers.registry import WorkerRegistry

EVERY_S: Final = 60.0  # between two lines about one name
MOST_NAMES: Final = 1000  # that are remembered; jobs of others are logged as those of a new name

log = structlog.get_logger()


class UnhandledLog:
    """
    Remembers which names were logged, and how many jobs came back since.

    Args:
        registry: The workers, whose handlers may have similar names.
    """

    def __init__(self, registry: WorkerRegistry) -> None:
        self._registry = registry
        self._due_s: dict[tuple[str, str], float] = {}
        self._since: Counter[tuple[str, str]] = Counter()

    def note(self, claims: Iterable[Claim], now_s: float) -> None:
        """No worker that serves the topics of these has a handler for them; *now_s*: monotonic."""
        counted = Counter((claim.topic, claim.name) for claim in claims)
        for key, times in counted.items():
            self._since[key] += times
            if self._due_s.get(key, 0.0) > now_s:
                continue
            topic, name = key
            found = self._registry.unhandled(topic, name)
            log.warning(
                "job_unhandled", name=name, topic=topic, times=self._since.pop(key), similar=found[1] if found else []
            )
            self._due_s.pop(key, None)  # the newest come last
            if len(self._due_s) >= MOST_NAMES:
                oldest = next(iter(self._due_s))
                del self._due_s[oldest]
                self._since.pop(oldest, None)
            self._due_s[key] = now_s + EVERY_S
