"""Which jobs a command is about: the options that choose them, and the requests that find them, page by page."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, cast

import click

from pulse.cli.lookup import schedule_of
from pulse.cli.options import DURATION, NAME, SCHEDULE, STATUS, STATUSES, TOPIC, TextParam
from pulse.cli.output.progress import ProgressLine
from pulse.cli.server import current_server
from pulse.client.client import Client
from pulse.common.text import duration, shell_word

_STATUS_HELP: Final = f"Only jobs of this status ({', '.join(STATUSES)}); may be repeated."
_TEXT: Final = TextParam("text", 200)
_LONG_CHARACTERS: Final = 1024 * 1024  # of a page that is short because its jobs are long
FILTERS: Final = ("status", "topic", "name", "schedule", "error", "worker", "older_s", "newer_s", "prefix")
_DURATIONS: Final = frozenset({"older_s", "newer_s"})
CommandT = TypeVar("CommandT", bound=Callable[..., Any])


class _IdPrefixParam(TextParam):
    """The first hexadecimal digits of an id."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The digits, as they were written."""
        digits = value.replace("-", "")
        if not 1 <= len(digits) <= 32 or not set(digits) <= set("0123456789abcdefABCDEF"):  # noqa: PLR2004 -- of a UUID
            raise click.BadParameter(f"{value!r:.60}: 1 to 32 hexadecimal digits are allowed.", ctx, param)
        return value


PREFIX: Final = _IdPrefixParam("prefix", 36)
_OPTIONS: Final[tuple[Callable[[Any], Any], ...]] = (
    click.option("--status", type=STATUS, multiple=True, help=_STATUS_HELP),
    click.option("--topic", type=TOPIC, metavar="TOPIC", help="Only jobs of this topic."),
    click.option("--name", type=NAME, metavar="NAME", help="Only jobs of this handler."),
    click.option("--schedule", type=SCHEDULE, metavar="ID", help="Only jobs that this schedule fired."),
    click.option("--error", type=_TEXT, metavar="TEXT", help="Only jobs whose last error has this in it, in any case."),
    click.option("--worker", type=_TEXT, metavar="TEXT", help="Only jobs held by a worker with this in its name."),
    click.option(
        "--older", "older_s", type=DURATION, metavar="AGE", help="Only from longer ago than that, as 90, 5m, 2h30m."
    ),
    click.option("--newer", "newer_s", type=DURATION, metavar="AGE", help="Only from no longer ago than that."),
    click.option("--prefix", type=PREFIX, metavar="HEX", help="Only jobs whose ids begin so."),
)


def job_filters(*, leave_out: frozenset[str] = frozenset()) -> Callable[[CommandT], CommandT]:
    """The options that choose jobs, but those whose meaning a command has taken."""

    def decorate(command: CommandT) -> CommandT:
        for name, option in reversed([*zip(FILTERS, _OPTIONS, strict=True)]):
            if name not in leave_out:
                command = option(command)
        return command

    return decorate


def filters_of(given: Mapping[str, object]) -> dict[str, object]:
    """The request's keys of what was given."""
    found = {name: given.get(name) for name in FILTERS}
    current_server().route(found["topic"])  # which leads to the schedule, too
    if isinstance(word := found["schedule"], str):
        found["schedule"] = schedule_of(word)
    return {
        name: list(cast("tuple[object, ...]", value)) if isinstance(value, tuple) else value
        for name, value in found.items()
        if value
    }


def in_words(filters: Mapping[str, object]) -> str:
    """*filters* as the options that give them, for the audit and for people."""
    from uuid import UUID

    words: list[str] = []
    for name, value in filters.items():
        option = "--" + name.removesuffix("_s")
        for one in cast("list[object]", value) if isinstance(value, list) else [value]:
            text = str(UUID(bytes=one)) if isinstance(one, bytes) else f"{one}"
            text = f"{one:.15g}s" if name in _DURATIONS else text
            words += [option, shell_word(text)]
    return " ".join(words)


def found_of(client: Client, body: Mapping[str, object]) -> dict[str, object]:
    """
    The answer to jobs.list with a page that is full, or the last one: where the server's time was over, it is asked on.

    Until then the terminal shows how far it has come.
    """
    limit, jobs = int(str(body["limit"])), list[object]()
    asked = dict(body)
    with ProgressLine() as line:
        while True:
            answer = client.request("jobs.list", {**asked, "limit": limit - len(jobs)}, repeatable=True)
            page = cast("list[object]", answer["jobs"])
            jobs += page
            reached = answer.get("reached")
            if answer.get("next") is None or reached is None or len(jobs) >= limit or len(str(page)) > _LONG_CHARACTERS:
                return {"jobs": jobs, "next": answer.get("next")}
            asked["after"] = answer["next"]
            line.show(chosen(len(jobs), reached if isinstance(reached, float) else None))


def chosen(count: int, reached_s: float | None) -> str:
    """How far a search has come, in words."""
    far = "" if reached_s is None else f", looked back {duration(time.time() - reached_s)}"
    return f"{count:,} found{far}"
