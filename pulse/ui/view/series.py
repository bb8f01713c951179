"""The answer to ``stats`` as far as pages show it; a server that does not know the request tells nothing."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

__all__ = ["SeriesView", "StatsView", "TopicView", "read_stats"]


class TopicView(Struct, frozen=True):
    """How much waits and runs in a topic, and how fast it goes."""

    topic: str = ""
    ready: int | None = None
    scheduled: int | None = None
    running: int | None = None
    oldest_s: float | None = None
    paused: bool = False
    workers: int | None = None
    rates: dict[str, float | None] = {}


class SeriesView(Struct, frozen=True):
    """The last hour in steps: what happened within each; None: nobody measured then."""

    step_s: float = 10.0
    times: list[float] = []
    submitted: list[float | None] = []
    completed: list[float | None] = []
    failed: list[float | None] = []
    depth: list[float | None] = []
    wait_p50_s: list[float | None] = []
    wait_p99_s: list[float | None] = []
    run_p50_s: list[float | None] = []
    run_p99_s: list[float | None] = []

    def rate(self, counts: list[float | None]) -> list[float | None]:
        """Counts of steps as so many a second."""
        return [None if count is None else count / self.step_s for count in counts]


class StatsView(Struct, frozen=True):
    """What the dispatcher counts."""

    topics: list[TopicView] = []
    exact: bool = True
    series: SeriesView | None = None


def read_stats(body: Mapping[str, object] | None) -> StatsView | None:
    """*body* where it is understood."""
    if body is None:
        return None
    try:
        return msgspec.convert(body, StatsView, strict=False)
    except msgspec.ValidationError:
        return None
