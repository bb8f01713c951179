"""``pulse ctl dispatch``: pause and resume the handing out of jobs."""

from __future__ import annotations

import time
from collections.abc import Iterator

import click

from pulse.cli.connection import current_server
from pulse.cli.lazy import CONTEXT, examples
from pulse.cli.params import REASON, TOPIC
from pulse.cli.render import Cell, Line, Screen, foreign, write_document
from pulse.cli.views import Gate, Pause, read
from pulse.cli.words import ago, printable

__all__ = ["dispatch", "gate_lines"]


@click.group(context_settings=dict(CONTEXT))
def dispatch() -> None:
    """Pause and resume the handing out of jobs; running jobs, submits and schedules go on."""


@dispatch.command(
    epilog=examples(
        'pulse ctl dispatch pause --reason "database maintenance"', "pulse ctl dispatch pause --topic images"
    )
)
@click.option("--topic", type=TOPIC, metavar="TOPIC", show_default="all of them", help="Only this topic.")
@click.option("--reason", type=REASON, metavar="TEXT", help="Why; shown wherever the pause is shown.")
@click.option("--json", "as_json", is_flag=True, help="Print the gate as JSON.")
def pause(topic: str | None, reason: str | None, *, as_json: bool) -> None:
    """Start no more jobs, on any host, from now until `resume`."""
    body: dict[str, object] = {"topic": topic or ""}
    _ask("dispatch.pause", body if reason is None else {**body, "reason": reason}, as_json=as_json)


@dispatch.command(epilog=examples("pulse ctl dispatch resume", "pulse ctl dispatch resume --topic images"))
@click.option("--topic", type=TOPIC, metavar="TOPIC", show_default="the pause of the whole", help="Only this topic.")
@click.option("--json", "as_json", is_flag=True, help="Print the gate as JSON.")
def resume(topic: str | None, *, as_json: bool) -> None:
    """End a pause. Topics that were paused for themselves stay so until each is resumed."""
    _ask("dispatch.resume", {"topic": topic or ""}, as_json=as_json)


@dispatch.command(epilog=examples("pulse ctl dispatch status"))
@click.option("--json", "as_json", is_flag=True, help='Print {"paused", "reason", "topics"}.')
def status(*, as_json: bool) -> None:
    """Show what is paused, since when and why."""
    _ask("dispatch.status", {}, as_json=as_json)


def gate_lines(gate: Gate, now_s: float) -> Iterator[Line]:
    """The gate in words, a line for the whole and one for each paused topic."""
    if gate.paused:
        yield _pause_line("all topics paused", gate.reason, gate.paused_at, now_s)
    elif not gate.topics:
        yield [Cell("open", "green")]
    else:
        yield [Cell("open", "green"), Cell(", except:")]
    for topic, pause_ in sorted(gate.topics.items()):
        yield _topic_line(topic, pause_, now_s)


def _topic_line(topic: str, pause_: Pause, now_s: float) -> Line:
    return _pause_line(f"topic {printable(topic)} paused", pause_.reason, pause_.paused_at, now_s)


def _pause_line(what: str, reason: str | None, since_s: float | None, now_s: float) -> Line:
    line = [Cell(what, "bold yellow"), Cell(_since(since_s, now_s))]
    return [*line, Cell(": "), foreign(reason)] if reason else line


def _since(moment_s: float | None, now_s: float) -> str:
    if moment_s is None:
        return ""
    distance = ago(moment_s, now_s)
    return f" since {distance.removesuffix(' ago')}" if distance.endswith(" ago") else " just now"


def _ask(kind: str, body: dict[str, object], *, as_json: bool) -> None:
    answer = current_server().ask(kind, body, repeatable=True)
    if as_json:
        write_document(answer)
    else:
        Screen().lines(gate_lines(read(Gate, answer), time.time()))
