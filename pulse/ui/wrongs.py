"""What is not as it should be, a sentence each: what ``pulse ctl status`` says, and what topics and workers tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pulse.cli import views
from pulse.cli.status_page import problems
from pulse.ui.series import Stats, TopicStats
from pulse.ui.shown import foreign
from pulse.words import count, duration

__all__ = ["wrongs"]

_MOST: int = 10  # sentences about topics; the page of topics has all


def wrongs(status: views.Status, silent: Mapping[str, str], stats: Stats | None) -> list[str]:
    """
    The sentences, the worst first.

    Args:
        status: What supervisor and dispatcher told.
        silent: Who did not answer, and why.
        stats: Of the topics; None: nobody told.

    """
    is_paused = status.gate is not None and status.gate.paused
    topics = [] if stats is None or is_paused else list(_topics(stats, has_workers=bool(status.workers)))
    left = [f"and {len(topics) - _MOST} more topics: see Topics"] if len(topics) > _MOST else []
    return [*problems(status, silent), *_workers(status.workers or []), *topics[:_MOST], *left]


def _topics(stats: Stats, *, has_workers: bool) -> Iterator[str]:
    for topic in stats.topics:
        if not topic.ready:
            continue
        waits = f"{count(topic.ready, 'job')} {'waits' if topic.ready == 1 else 'wait'}{_since(topic)}"
        if topic.paused:
            yield f"topic “{foreign(topic.topic, 60)}” is paused: {waits}"
        elif topic.workers == 0 and has_workers:
            yield f"no worker serves topic “{foreign(topic.topic, 60)}”: {waits}"


def _workers(workers: list[views.Worker]) -> Iterator[str]:
    for worker in workers:
        if worker.silent:
            yield f"worker {foreign(worker.name, 60)} (pid {worker.pid}) has let a lease pass without a word"


def _since(topic: TopicStats) -> str:
    return "" if topic.oldest_s is None else f", the first for {duration(topic.oldest_s)}"
