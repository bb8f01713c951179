"""``pulse ctl logs``: what the supervisor and its children log, asked of the supervisor."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, cast

import click

from pulse.cli.lazy import did_you_mean, examples
from pulse.cli.options import ACTORS, TextParam, completing
from pulse.cli.output.render import Line, Screen, foreign
from pulse.cli.server import ServerHandle, current_server
from pulse.common.text import one_line, printable, shell_word
from pulse.errors import NobodyAnswersError
from pulse.protocol.answers import LogPage, read
from pulse.system.log_forward import LEVELS

_STYLES: Final = {"debug": "dim", "info": "green", "warning": "yellow", "error": "bold red", "critical": "bold red"}
_ACTORS: Final = ("supervisor", *ACTORS)
_WAIT_S: Final = 5.0  # of one question for lines that are yet to come
_RETRY_S: Final = 0.5
_PLAIN: Final = frozenset({"event", "level", "timestamp", "actor", "exception"})


@click.command(
    epilog=examples(
        "pulse ctl logs --level warning",
        "pulse ctl logs --follow --actor dispatcher",
        "pulse ctl logs --json | jq .event",
    )
)
@click.option("--follow", "-f", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option(
    "--lines", "-n", type=click.IntRange(0, 10_000), default=100, metavar="N", help="How many of the newest are shown."
)
@click.option("--level", type=click.Choice(LEVELS), help="Lowest level that is shown.")
@click.option(
    "--actor",
    type=TextParam("name", 64),
    shell_complete=completing(_ACTORS),
    metavar="NAME",
    help="Only lines of dispatcher, scheduler, watchdog, pause, pool, metrics or supervisor.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the lines as they are: JSON Lines.")
def logs(*, follow: bool, lines: int, level: str | None, actor: str | None, as_json: bool) -> None:
    """
    Show what the supervisor, its actors and its pools have logged last.

    It is the supervisor that answers, so this works while the dispatcher or the database is down.
    """
    if actor is not None and actor not in _ACTORS and (question := did_you_mean(actor, _ACTORS)):
        click.echo(f"pulse: no actor is known as {shell_word(actor)}.{question}", err=True)
    tail = Tail(current_server(), {"level": level, "actor": actor})
    screen = None if as_json else Screen()
    for page in itertools.chain(tail.newest(lines), tail.following() if follow else ()):
        _show(page, screen)


def _show(page: LogPage, screen: Screen | None) -> None:
    if page.lost:
        click.echo(f"pulse: {page.lost:,} lines were logged that are not kept any more", err=True)
    if screen is None:
        sys.stdout.writelines(f"{line}\n" for line in page.lines)
    else:
        for line in page.lines:
            screen.lines(log_lines(line))
    sys.stdout.flush()


class Tail:
    """
    The log, from its newest lines on.

    Args:
        server: The server to ask.
        chosen: Level and actor.
    """

    def __init__(self, server: ServerHandle, chosen: Mapping[str, object]) -> None:
        self._server = server
        self._chosen = chosen
        self._after = 0

    def newest(self, lines: int) -> Iterator[LogPage]:
        """The newest lines, a page after the other."""
        page = self._ask({"lines": lines}, self._server.timeout_s)
        yield page
        left = lines - len(page.lines)
        while page.more and left > 0:
            page = self._ask({"lines": left, "after": self._after}, self._server.timeout_s)
            left -= len(page.lines)
            yield page

    def following(self) -> Iterator[LogPage]:
        """What comes, for ever; a supervisor that is away is waited for."""
        is_away = False
        while True:
            try:
                page = self._ask(
                    {"lines": 1000, "after": self._after, "wait_s": _WAIT_S}, _WAIT_S + self._server.timeout_s
                )
            except NobodyAnswersError as error:
                if not is_away:
                    click.echo(f"pulse: {error.message}; waiting for it", err=True)
                is_away = True
                time.sleep(_RETRY_S)
                continue
            is_away = False
            yield page

    def _ask(self, body: Mapping[str, object], timeout_s: float) -> LogPage:
        page = read(LogPage, self._server.ask_supervisor("logs", {**self._chosen, **body}, timeout_s=timeout_s))
        self._after = max(self._after, page.next)
        return page


def log_lines(text: str) -> Iterator[Line]:
    """A line of the log for people: when, how bad, who, what, and the rest as key=value; a traceback below it."""
    try:
        told = json.loads(text)
    except ValueError:
        yield [foreign(text)]
        return
    fields = cast("dict[str, object]", told)
    stamp = str(fields.get("timestamp", ""))
    moment = f"{stamp[5:10]} {stamp[11:23]}"  # the log may go back for days
    level = str(fields.get("level", ""))
    yield [
        foreign(f"{moment:<18} ", "dim"),
        foreign(f"{level:<8} ", _STYLES.get(level, "")),
        foreign(f"{fields.get('actor') or '':<10} ", "cyan"),
        foreign(one_line(str(fields.get("event", ""))), "bold"),
        *(foreign(f" {one_line(key)}={_value(value)}") for key, value in fields.items() if key not in _PLAIN),
    ]
    if fields.get("exception"):
        yield from ([foreign(f"    {line}", "dim")] for line in printed(str(fields["exception"])))


def printed(text: str) -> Sequence[str]:
    """The lines of a traceback, harmless."""
    return printable(text, keep_lines=True).rstrip().split("\n")


def _value(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return one_line(text) if text and not any(char in text for char in ' ="') else json.dumps(one_line(text))
