"""``pulse ctl queues``: the queues of the config file, which topics each has, and how it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import click

from pulse.cli.lazy import examples
from pulse.cli.output.render import Cell, Column, Line, Screen, Table, foreign, write_document
from pulse.cli.server import current_server
from pulse.config import load_routes
from pulse.errors import PulseError
from pulse.protocol.answers import read
from pulse.protocol.stats import Stats
from pulse.routes import Queue

_ANSWER_S: Final = 2.0  # of each: a person waits for all of them
_COLUMNS: Final = (
    Column("queue", least=8),
    Column("topics", least=8),
    Column("waiting", right=True),
    Column("running", right=True),
    Column("server", least=12, leave_out=2),
    Column("no answer", least=12),
)


@click.command(epilog=examples("pulse ctl queues", "pulse ctl --queue mail status"))
@click.option("--json", "as_json", is_flag=True, help='Print {"queues": [...]}.')
def queues(*, as_json: bool) -> None:
    """
    List the queues of the config file: the topics of each, its server, and its jobs.

    Ends with exit code 1 if one of them does not answer.
    """
    routes = load_routes()
    rows = [{**_told(queue), "topics": routes.patterns_of(queue.name)} for queue in routes.queues.values()]
    if as_json:
        write_document({"queues": rows})
    else:
        Screen().table(Table(_COLUMNS, [_row(row, routes.patterns_of(str(row["queue"]))) for row in rows]))
    if any(row["error"] for row in rows):
        raise click.exceptions.Exit(1)


def _told(queue: Queue) -> dict[str, object]:
    """How *queue* does: its jobs, or why its server does not answer."""
    known: dict[str, object] = {"queue": queue.name, "server": queue.server, "schema": queue.schema}
    body = {"topics": 0, "history_s": 0}  # all topics together
    try:
        with current_server().client(_ANSWER_S, queue) as client:
            jobs = read(Stats, client.request("stats", body, repeatable=True)).others
    except PulseError as error:
        return {**known, "waiting": None, "running": None, "error": error.message}
    return {**known, "waiting": jobs.ready + jobs.scheduled + jobs.retrying, "running": jobs.running, "error": None}


def _row(row: Mapping[str, object], patterns: Sequence[str]) -> Line:
    counts = [Cell("" if row[key] is None else f"{row[key]:,}") for key in ("waiting", "running")]
    names = [foreign(str(row["queue"])), foreign(", ".join(patterns))]
    return [*names, *counts, foreign(str(row["server"])), foreign(str(row["error"] or ""), "red")]
