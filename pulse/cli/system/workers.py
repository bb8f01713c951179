"""``pulse ctl workers``: the handler processes that are connected, and the drain of one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click

from pulse.cli.lazy import CONTEXT, CommandGroup, examples
from pulse.cli.lookup import worker_of
from pulse.cli.options import TextParam
from pulse.cli.output.render import Cell, Column, Line, Screen, Table, foreign, write_document
from pulse.cli.server import current_server
from pulse.common.text import count
from pulse.ops.worker_text import STATES, load_of, state_of
from pulse.protocol.answers import Worker, WorkerList, read

_IS: Final = {STATES["stopped"]: "is stopped (SIGSTOP)", STATES["blocked"]: "hangs", "silent": "is silent"}
_COLUMNS: Final = (
    Column("name", least=8),
    Column("pid", right=True),
    Column("host", least=8, leave_out=2),
    Column("running", right=True),
    Column("topics", least=8, leave_out=3),
    Column("handlers", least=10, leave_out=4),
    Column("death seen by", leave_out=5),
)


@click.group(
    cls=CommandGroup,
    invoke_without_command=True,
    context_settings=dict(CONTEXT),
    epilog=examples("pulse ctl workers", "pulse ctl workers --json | jq '.workers[].running'"),
)
@click.option("--json", "as_json", is_flag=True, help='Print {"workers": [...]}.')
@click.pass_context
def workers(ctx: click.Context, *, as_json: bool) -> None:
    """List the handler processes that are connected: who they are, what they serve, how busy they are."""
    if ctx.invoked_subcommand is None:
        _list(as_json=as_json)


@workers.command("list", epilog=examples("pulse ctl workers list"))
@click.option("--json", "as_json", is_flag=True, help='Print {"workers": [...]}.')
@click.pass_context
def list_workers(ctx: click.Context, *, as_json: bool) -> None:
    """Do the same as without a command."""
    _list(as_json=_is_json(ctx, as_json))


def _is_json(ctx: click.Context, as_json: bool) -> bool:
    """Whether --json is given, after the command or before it."""
    return as_json or (ctx.parent is not None and bool(ctx.parent.params["as_json"]))


def _list(*, as_json: bool) -> None:
    answer = current_server().ask("workers.list", repeatable=True)
    if as_json:
        write_document(answer)
        return
    found = read(WorkerList, answer).workers
    screen = Screen()
    screen.table_or(workers_table(found), "no workers are connected")


@workers.command(epilog=examples("pulse ctl workers drain shop-1-4711-0", "pulse ctl workers drain 4712"))
@click.argument("worker", type=TextParam("worker", 300))
@click.option("--json", "as_json", is_flag=True, help='Print {"identity", "name", "pid", "host"}.')
@click.pass_context
def drain(ctx: click.Context, worker: str, *, as_json: bool) -> None:
    """
    Let a handler process finish its jobs and end; its pool starts a new one in its place.

    WORKER is its name or its pid, or the first characters of its name or identity. It gets no more jobs. Jobs that have
    not finished after the drain_s of its pool go to other workers, uncharged. To take a machine out of service, stop
    its pools instead: see pulse ctl drain.
    """
    server, meant = current_server(), worker_of(worker)
    server.ask("workers.drain", {"worker": meant.identity})
    if _is_json(ctx, as_json):
        write_document({"identity": meant.identity, "name": meant.name, "pid": meant.pid, "host": meant.host})
        return
    finishes = f"It finishes {count(meant.started, 'job')}, then it ends" if meant.started else "It ends"
    lines: list[Line] = [
        [foreign(meant.name or meant.identity, "bold"), foreign(f"{_place(meant)} gets no more jobs.")],
        [Cell(f"{finishes}, and its pool starts a new process in its place.")],
    ]
    how = state_of(meant)
    if how:
        said = f"It {_IS[how]}: nothing happens until it goes on." if how in _IS else "It drains already."
        lines.append([Cell(said, "yellow")])
    Screen().lines(lines)


def _place(worker: Worker) -> str:
    parts = [*([] if worker.pid is None else [f"pid {worker.pid}"]), *([f"on {worker.host}"] if worker.host else [])]
    return f" ({' '.join(parts)})" if parts else ""


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
