"""``pulse ctl actors`` and ``pulse ctl drain``: what the supervisor does on request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from pulse.cli.connection import current_server
from pulse.cli.lazy import CONTEXT, examples
from pulse.cli.params import Text
from pulse.cli.render import Screen, foreign, write_document
from pulse.cli.words import printable

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

__all__ = ["actors", "drain"]

_ACTORS: Final = ("dispatcher", "scheduler", "watchdog", "pause")  # for completion; the supervisor knows which exist


def _complete_actor(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(name) for name in _ACTORS if name.startswith(incomplete)]


@click.group(context_settings=dict(CONTEXT))
def actors() -> None:
    """Restart an actor: dispatcher, scheduler, watchdog or pause."""


@actors.command(epilog=examples("pulse ctl actors restart dispatcher"))
@click.argument("name", type=Text("name", 64), shell_complete=_complete_actor)
@click.option("--json", "as_json", is_flag=True, help='Print {"name", "pid"}.')
def restart(name: str, *, as_json: bool) -> None:
    """End the actor NAME and start it anew. Workers stay connected or come back; running jobs go on."""
    answer = current_server().ask_supervisor("actors.restart", {"name": name})
    if as_json:
        write_document(answer)
    else:
        Screen().lines([[foreign(name, "bold"), foreign(f" restarted, pid {printable(str(answer.get('pid')))}")]])


@click.command(epilog=examples("pulse ctl drain", "pulse ctl drain --all"))
@click.option("--all", "everyone", is_flag=True, help="Also the workers that this supervisor did not start; they exit.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def drain(*, everyone: bool, as_json: bool) -> None:
    """Let this supervisor's worker pools finish the jobs that they hold, and take no more."""
    answer = current_server().ask_supervisor("drain", {"all": everyone})
    if as_json:
        write_document(answer)
    else:
        who = "all workers finish" if everyone else "the pools of this supervisor finish"
        Screen().lines([[foreign(f"{who} what they hold and take no more jobs")]])
