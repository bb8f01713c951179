"""What is wrong, with what to do: the findings of ``pulse ctl status``, and those about topics and workers."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import urlencode

from pulse.common.text import count, duration
from pulse.ops.problems import Problem, live_problems, paused_by, problems
from pulse.protocol import answers
from pulse.protocol.stats import TopicStats
from pulse.ui.view.formatting import foreign

_MOST: int = 10  # sentences about topics, or workers; their pages have all


def wrongs(status: answers.StatusAnswer, silent: Mapping[str, str], topics: Sequence[TopicStats]) -> list[Problem]:
    """
    What is wrong, the worst first.

    Args:
        status: The answers of supervisor and dispatcher.
        silent: Which process did not answer, and why.
        topics: The dispatcher's counts of each.
    """
    is_paused = status.gate is not None and status.gate.paused
    stuck = [] if is_paused else list(_topics(topics, status.gate, has_workers=bool(status.workers)))
    return [
        *map(Problem, problems(status, silent)),
        *_some(list(live_problems(status)), "more: see Workers", "/workers"),
        *_some(stuck, "more topics: see Topics", "/topics"),
    ]


def _some(found: list[Problem], others: str, page: str) -> list[Problem]:
    """The first of them, and how many more there are, on which page."""
    more = len(found) - _MOST
    return found if more <= 0 else [*found[:_MOST], Problem(f"and {more} {others}", page=page)]


def _topics(topics: Sequence[TopicStats], gate: answers.Gate | None, *, has_workers: bool) -> Iterator[Problem]:
    pauses = {} if gate is None else gate.topics
    for topic in topics:
        if not topic.ready:
            continue
        name, quoted = foreign(topic.topic, 60), foreign(shlex.quote(topic.topic), 200)
        page = f"/topics/view?{urlencode({'topic': topic.topic})}"
        waits = f"{count(topic.ready, 'job')} {'waits' if topic.ready == 1 else 'wait'}{_since(topic)}"
        if topic.paused:
            pause = pauses.get(topic.topic)
            by = "" if pause is None else paused_by(pause)
            resume = (f"pulse ctl dispatch resume --topic {quoted}",)
            yield Problem(f"topic “{name}” is paused{by}: {waits}", "A topic is paused", (), advice=resume, page=page)
        elif topic.workers == 0 and has_workers:
            start = (f"pulse worker MODULE:APP --topic {quoted}",)
            yield Problem(
                f"no worker serves topic “{name}”: {waits}", "A topic has no worker", (), advice=start, page=page
            )


def _since(topic: TopicStats) -> str:
    return "" if topic.oldest_s is None else f", the first for {duration(topic.oldest_s)}"
