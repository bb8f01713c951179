"""``pulse ctl workers``: the handler processes that are connected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click

from pulse.cli.lazy import examples
from pulse.cli.output.render import Cell, Column, Line, Screen, Table, foreign, write_document
from pulse.cli.server import current_server
from pulse.ops.worker_text import load_of, state_of
from pulse.protocol.answers import Worker, WorkerList, read

_COLUMNS: Final = (
    Column("name", least=8),
    Column("pid", right=True),
    Column("host", least=8, leave_out=2),
    Column("running", right=True),
    Column("topics", least=8, leave_out=3),
    Column("handlers", least=10, leave_out=4),
    Column("death seen by", leave_out=5),
)


@click.command(epilog=examples("pulse ctl workers", "pulse ctl workers --json | jq '.workers[].running'"))
@click.option("--json", "as_json", is_flag=True, help='Print {"workers": [...]}.')
def workers(*, as_json: bool) -> None:
    """List the handler processes that are connected: who they are, what they serve, how busy they are."""
    answer = current_server().ask("workers.list", repeatable=True)
    if as_json:
        write_document(answer)
        return
    found = read(WorkerList, answer).workers
    screen = Screen()
    if found:
        screen.table(workers_table(found))
    else:
        screen.lines([[Cell("no workers are connected", "dim")]])


def workers_table(found: Sequence[Worker]) -> Table:
    """The table of the connected workers."""
    return Table(_COLUMNS, [_row(worker) for worker in found])


def _row(worker: Worker) -> Line:
    how = state_of(worker)
    held = f"{load_of(worker)} {how}".rstrip()
    return [
        foreign(worker.name or worker.identity),
        Cell("" if worker.pid is None else str(worker.pid)),
        foreign(worker.host or ""),
        Cell(held, "bold red" if how and how != "draining" else "bold blue" if worker.held else ""),
        foreign(", ".join(worker.topics)),
        foreign(", ".join(worker.names)),
        foreign(worker.recovery),
    ]
