"""``pulse ctl ping``, ``actors`` and ``drain``: whether the server answers, and what the supervisor does on request."""

from __future__ import annotations

import time
from typing import Final

import click

from pulse.cli.lazy import CONTEXT, CommandGroup, examples
from pulse.cli.options import ACTORS, TextParam, completing
from pulse.cli.output.progress import ProgressLine
from pulse.cli.output.render import Screen, foreign, write_document
from pulse.cli.server import ServerHandle, current_server
from pulse.common.text import count, printable
from pulse.protocol.answers import StatusAnswer, WorkerList, read

_POLL_S: Final = 0.2


@click.command(epilog=examples("pulse ctl ping", "pulse ctl --timeout 2 ping"))
def ping() -> None:
    """
    Ask whether supervisor and dispatcher answer: exit code 0 if both do, else 3. Over TCP: the dispatcher alone.

    For health checks. It says nothing of the database: a server waits for that, and to start it again would not help.
    """
    server, began_s = current_server(), time.monotonic()
    if server.elsewhere() is None:
        server.ask_supervisor("ping")
    server.ask("ping", repeatable=True)
    Screen().lines([[foreign(f"it answers, after {(time.monotonic() - began_s) * 1000:.1f} ms")]])


@click.group(cls=CommandGroup, context_settings=dict(CONTEXT))
def actors() -> None:
    """Restart an actor: dispatcher, scheduler, watchdog or pause; also pool and metrics, where they run."""


@actors.command(epilog=examples("pulse ctl actors restart dispatcher"))
@click.argument("name", type=TextParam("name", 64), shell_complete=completing(ACTORS))
@click.option("--json", "as_json", is_flag=True, help='Print {"name", "pid"}.')
def restart(name: str, *, as_json: bool) -> None:
    """End the actor NAME and start it again. Workers stay connected or come back; running jobs go on."""
    answer = current_server().ask_supervisor("actors.restart", {"name": name})
    if as_json:
        write_document(answer)
    else:
        Screen().lines([[foreign(name, "bold"), foreign(f" restarted, pid {printable(str(answer.get('pid')))}")]])


@click.command(epilog=examples("pulse ctl drain --wait", "pulse ctl drain --all"))
@click.option("--all", "everyone", is_flag=True, help="Also the workers that this supervisor did not start; they exit.")
@click.option("--wait", is_flag=True, help="Wait until they have finished, and show how far they are.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def drain(*, everyone: bool, wait: bool, as_json: bool) -> None:
    """Let this supervisor's worker pools finish the jobs that they hold, and take no more."""
    server = current_server()
    answer = server.ask_supervisor("drain", {"all": everyone})
    who = "all workers" if everyone else "the pools of this supervisor"
    if wait:
        _wait_drained(server, everyone=everyone)
    if as_json:
        write_document(answer)
    elif wait:
        Screen().lines([[foreign(f"{who} have finished")]])
    else:
        Screen().lines([[foreign(f"{who} finish what they hold and take no more jobs")]])


def _wait_drained(server: ServerHandle, *, everyone: bool) -> None:
    """Wait, with a line on a terminal that says how much is left; Ctrl-C ends the waiting, not the drain."""
    with ProgressLine() as line:
        while left := _left(server, everyone=everyone):
            line.show(left)
            time.sleep(_POLL_S)


def _left(server: ServerHandle, *, everyone: bool) -> str:
    """What is not finished yet, in words; '' when everything is."""
    pools = [pool for pool in read(StatusAnswer, server.ask_supervisor("status")).pools or () if pool.pid is not None]
    workers = read(WorkerList, server.ask("workers.list", repeatable=True)).workers
    busy = [worker for worker in workers if everyone or (pools and worker.draining)]
    if not pools and not busy:
        return ""
    held = sum(worker.held for worker in busy)
    return f"{count(held, 'job')} at {count(len(busy), 'worker')} not finished yet"
