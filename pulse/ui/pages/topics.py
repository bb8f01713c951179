"""Topics: how much waits in each, who has paused it, and its policy, which can be changed."""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pulse.client.control_requests import TOPIC_OPTIONS
from pulse.common.backoff import in_seconds
from pulse.common.duration import seconds_of
from pulse.errors import BadRequestError, PulseError
from pulse.protocol import answers
from pulse.protocol.stats import GroupsAnswer, TopicStats
from pulse.ui.auth.sessions import UndoStep
from pulse.ui.data.poller import SystemSnapshot
from pulse.ui.pages.common import ask, ask_now, change, field, last_counted, say_next, standing_of, trouble
from pulse.ui.rendering import page
from pulse.ui.site import FORM

MOST: Final = 500  # rows of a page that renews itself
_WHOLE: Final = frozenset({"max_attempts", "max_crashes"})
HELP: Final[Mapping[str, str]] = {
    "max_attempts": "tries that count before the dead letter",
    "max_crashes": "deaths of its worker before the dead letter",
    "backoff": "wait after a failed try: quadratic, exponential:FIRST:LONGEST, fixed:SECONDS, list:SECONDS,…",
    "timeout_s": "longest run of one attempt",
    "stall_s": "longest time without progress",
    "lease_s": "how long a worker may be silent",
    "retention_s": "completed and canceled jobs are kept so long",
    "retention_dead_s": "dead letters are kept so long",
    "ageing_s": "waiting that is worth one priority; 0: strict order",
    "limit": "name of the limit that its jobs go by; else the one with the topic's name, if there is one",
    "publish": "true: the ends of its jobs go to the outbox, and from there to a broker",
}


async def listing(request: Request) -> Response:
    """All topics that anybody knows of: with jobs, workers, a policy or a pause."""
    after = request.query_params.get("after")
    place = {} if after is None else {"after": after}
    try:
        standing, answer = await asyncio.gather(
            standing_of(request), ask(request, "topics.list", {"limit": 200, **place})
        )
        found = answers.read(answers.TopicPage, answer)
    except PulseError as error:
        return await trouble(request, error, "topics.html", rows=[], more=0, next=None, server={})
    policies = {
        str(row.get("topic") or ""): {k: v for k, v in row.items() if k != "topic" and v is not None}
        for row in found.topics
    }
    follow = None if found.next is None else f"/topics?{urlencode({'after': found.next})}"
    rows = _rows(last_counted(request, standing), policies, others=after is None)
    shown = sorted(heapq.nsmallest(MOST, rows, key=_least_wanted), key=lambda row: str(row["topic"]))
    context = {"rows": shown, "more": len(rows) - len(shown), "next": follow, "server": policies.get("", {})}
    return await page(request, "topics.html", context)


def _least_wanted(row: Mapping[str, Any]) -> tuple[bool, bool, str]:
    """What waits or is paused comes first, where there are too many."""
    return not (row["stats"] and row["stats"].ready), not row["paused"], row["topic"]


def _rows(
    standing: SystemSnapshot, policies: Mapping[str, Mapping[str, object]], *, others: bool
) -> list[dict[str, object]]:
    """A row for each topic, with its counts; *others*: those without a policy, too."""
    known = {} if standing.stats is None else {one.topic: one for one in standing.stats.topics}
    limits = {} if standing.stats is None else {one.name: one for one in standing.stats.limits}
    workers = standing.status.workers or []
    paused = {} if standing.status.gate is None else standing.status.gate.topics
    serving = Counter(topic for worker in workers for topic in set(worker.topics))
    names = {name for name in policies if name or not others}
    if others:
        names |= {*known, *paused, *serving}
    return [
        {
            "topic": name,
            "policy": policies.get(name, {}),
            "paused": paused.get(name),
            "workers": serving[name],
            "stats": (stats := known.get(name)),
            "limit": None if stats is None or stats.limit is None else limits.get(stats.limit),
            "is_wrong": name not in paused and is_wrong(known.get(name), serving[name]),
        }
        for name in sorted(names)
    ]


def is_wrong(stats: TopicStats | None, workers: int) -> bool:
    """Whether jobs of a topic wait for a worker or a handler that is not there."""
    return stats is not None and (stats.unhandled > 0 or (stats.ready > 0 and not workers))


async def show(request: Request) -> Response:
    """One topic: its pause and its policy; '' is the server."""
    topic = request.query_params.get("topic", "")
    try:
        standing, answer, groups = await asyncio.gather(
            standing_of(request), ask(request, "topics.get", {"topic": topic}), _groups(request, topic)
        )
        found = answers.read(answers.Topic, answers.part(answer, "topic"))
    except PulseError as error:
        return await trouble(request, error)
    counted = last_counted(request, standing)
    (row,) = [one for one in _rows(counted, {topic: {}}, others=False) if one["topic"] == topic]
    context = {
        "topic": found,
        "groups": groups,
        "row": row,
        "serving": [one for one in counted.status.workers or () if topic in one.topics],
        "options": [(name, found.policy.get(name, answers.Option()), HELP[name]) for name in TOPIC_OPTIONS],
    }
    return await page(request, "topic.html", context)


async def _groups(request: Request, topic: str) -> GroupsAnswer | None:
    """The groups of *topic* with jobs that wait; None: nobody knows."""
    try:
        return answers.read(GroupsAnswer, await ask(request, "topics.groups", {"topic": topic})) if topic else None
    except PulseError:
        return None


async def save(request: Request) -> Response:
    """Set what was typed, unset what was emptied; what is unchanged is left alone."""
    topic = request.scope[FORM].get("topic", [""])[0]
    here = f"/topics/view?{urlencode({'topic': topic})}"
    try:
        before = answers.read(
            answers.Topic, answers.part(await ask_now(request, "topics.get", {"topic": topic}), "topic")
        )
        own = {
            name: option.value
            for name, option in before.policy.items()
            if option.source == ("topic" if topic else "server")
        }
        wanted = {name: _value(name, field(request, name)) for name in TOPIC_OPTIONS}
    except PulseError as error:
        say_next(request, error.message, is_error=True)
        return RedirectResponse(here, 303)
    policy = {name: value for name, value in wanted.items() if value != own.get(name)}
    if not policy:
        say_next(request, "Nothing was changed: all values are the same.")
        return RedirectResponse(here, 303)
    undo = UndoStep("topics.set", {"topic": topic, "policy": {name: own.get(name) for name in policy}})
    who = f"topic “{topic}”" if topic else "the server"
    said = ", ".join(f"{name} {'unset' if value is None else value}" for name, value in policy.items())
    await change(
        request, "topics.set", {"topic": topic, "policy": policy}, f"Policy of {who}: {said}.", ("Undo", [undo])
    )
    return RedirectResponse(here, 303)


def _value(name: str, text: str | None) -> int | float | str | bool | None:
    if text is None:
        return None
    if name == "backoff":
        return in_seconds(text)
    if name == "limit":
        return text
    if name == "publish":
        return _yes_or_no(name, text)
    try:
        return int(text) if name in _WHOLE else seconds_of(text, zero=True)
    except ValueError as error:
        what = "a whole number is allowed" if name in _WHOLE else error
        raise BadRequestError(f"{name} is {text!r:.60}: {what}") from None


def _yes_or_no(name: str, text: str) -> bool:
    found = {"true": True, "false": False}.get(text.lower())
    if found is None:
        raise BadRequestError(f"{name} is {text!r:.60}: true or false is allowed")
    return found
