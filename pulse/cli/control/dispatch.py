"""``pulse ctl dispatch``: pause and resume the handing out of jobs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Final

import click

from pulse.cli.lazy import CONTEXT, CommandGroup, examples
from pulse.cli.lookup import warn_of_topic
from pulse.cli.options import DURATION, REASON, TIME, TOPIC
from pulse.cli.output.render import Cell, Line, Screen, foreign, write_document
from pulse.cli.server import current_server
from pulse.common.text import ago, count, duration, iso, printable, shell_word
from pulse.errors import PulseError
from pulse.protocol.answers import Gate, PauseInfo, read

_ASIDE_S: Final = 2.0


@click.group(cls=CommandGroup, context_settings=dict(CONTEXT))
def dispatch() -> None:
    """Pause and resume the handing out of jobs; running jobs, submits and schedules go on."""


@dispatch.command(
    epilog=examples(
        'pulse ctl dispatch pause --reason "database maintenance"', "pulse ctl dispatch pause --topic images --for 10m"
    )
)
@click.option("--topic", type=TOPIC, metavar="TOPIC", show_default="all of them", help="Only this topic.")
@click.option("--reason", type=REASON, metavar="TEXT", help="Why; shown wherever the pause is shown.")
@click.option("--for", "for_s", type=DURATION, metavar="DURATION", help="End by itself after that, as 90, 5m or 2h30m.")
@click.option("--until", type=TIME, metavar="ISO-TIME", help="End by itself then; without a zone it is UTC.")
@click.option("--json", "as_json", is_flag=True, help="Print the gate as JSON.")
def pause(topic: str | None, reason: str | None, for_s: float | None, until: float | None, *, as_json: bool) -> None:
    """Start no more jobs, on any host, from now until `resume`, or until its time is over."""
    if for_s is not None and until is not None:
        raise click.UsageError("--for and --until cannot be given together; one of them is allowed.")
    body: dict[str, object] = {"topic": topic or "", "reason": reason, "for_s": for_s, "until": until}
    _ask("dispatch.pause", {key: value for key, value in body.items() if value is not None}, as_json=as_json)
    if topic is not None and not as_json:
        warn_of_topic(topic)


@dispatch.command(epilog=examples("pulse ctl dispatch resume", "pulse ctl dispatch resume --topic images"))
@click.option("--topic", type=TOPIC, metavar="TOPIC", show_default="the pause of the whole", help="Only this topic.")
@click.option("--json", "as_json", is_flag=True, help="Print the gate as JSON.")
def resume(topic: str | None, *, as_json: bool) -> None:
    """End a pause. Topics that were paused for themselves stay so until each is resumed."""
    current_server().route(topic)
    if topic is not None and not as_json:
        _warn_of_open(topic)
    _ask("dispatch.resume", {"topic": topic or ""}, as_json=as_json)


@dispatch.command(epilog=examples("pulse ctl dispatch status"))
@click.option("--json", "as_json", is_flag=True, help='Print {"paused", "reason", "topics"}.')
def status(*, as_json: bool) -> None:
    """Show what is paused: since when, until when, why, and by which operator."""
    _ask("dispatch.status", {}, as_json=as_json)


def _aside(kind: str, body: dict[str, object]) -> dict[str, object]:
    """The answer to a side request, within a short time; None: there is none."""
    return current_server().ask(kind, body, repeatable=True, timeout_s=_ASIDE_S)


def _warn_of_open(topic: str) -> None:
    """The same where the topic is not paused."""
    with contextlib.suppress(PulseError):
        gate = read(Gate, _aside("dispatch.status", {}))
        if topic not in gate.topics:
            click.echo(f"pulse: topic {shell_word(topic)} was not paused", err=True)


def gate_lines(gate: Gate, now_s: float, *, most: int | None = None) -> Iterator[Line]:
    """The gate in words: a line for the whole, one for each paused topic or the first *most*, and how many more."""
    if gate.as_of is not None:
        yield [Cell(f"as it was at {iso(int(gate.as_of))}:", "yellow")]
    if gate.paused:
        whole = PauseInfo(gate.reason, gate.paused_at, gate.paused_by, paused_until=gate.paused_until)
        yield _pause_line("all topics paused", whole, now_s)
    elif not gate.topics:
        yield [Cell("open", "green")]
    else:
        yield [Cell("open", "green"), Cell(", except:")]
    paused = sorted(gate.topics.items())
    for topic, pause_ in paused[:most]:
        yield _topic_line(topic, pause_, now_s)
    left = gate.topics_omitted + len(paused) - len(paused[:most])
    if left:
        yield [Cell(f"and {count(left, 'more topic')}: pulse ctl dispatch status", "dim")]


def _topic_line(topic: str, pause_: PauseInfo, now_s: float) -> Line:
    return _pause_line(f"topic {printable(topic)} paused", pause_, now_s)


def _pause_line(what: str, pause_: PauseInfo, now_s: float) -> Line:
    line = [Cell(what, "bold yellow"), Cell(_when(pause_.paused_at, now_s))]
    if pause_.paused_by:
        line += [Cell(" by "), foreign(pause_.paused_by)]
    if pause_.paused_until is not None:
        line.append(Cell(f", for {duration(pause_.paused_until - now_s)} more"))
    return [*line, Cell(": "), foreign(pause_.reason)] if pause_.reason else line


def _when(moment_s: float | None, now_s: float) -> str:
    if moment_s is None:
        return ""
    distance = ago(moment_s, now_s)
    return f" {distance}" if distance.endswith(" ago") else " just now"


def _ask(kind: str, body: dict[str, object], *, as_json: bool) -> None:
    answer = current_server().ask(kind, body, repeatable=True)
    if as_json:
        write_document(answer)
    else:
        Screen().lines(gate_lines(read(Gate, answer), time.time()))
