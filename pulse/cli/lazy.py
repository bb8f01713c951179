"""Groups whose commands are modules that are imported when they are called for, not to print a list of names."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import click

CONTEXT: Final[Mapping[str, Any]] = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,  # an example with its options fits on a line
    "show_default": True,
}


def examples(*lines: str) -> str:
    """The epilog of a help text: command lines that work as they stand."""
    title = "Example:" if len(lines) == 1 else "Examples:"
    return "\n".join(["\b", title, *(f"  {line}" for line in lines)])


class Lazy(NamedTuple):
    """
    Where a command is, and what the list of commands says of it.

    Attributes:
        module: The module that has it.
        attribute: Its name there.
        help: A sentence.
    """

    module: str
    attribute: str
    help: str


class LazyGroup(click.Group):
    """
    A group of commands that are imported on use; without a command it shows its help.

    Args:
        name: Its name.
        lazy: Its commands, in the order in which they are listed.
        help: Its help text.
        epilog: Text below the commands.
        params: Its options.
        callback: Called with the options before the command.
    """

    def __init__(
        self,
        name: str,
        lazy: Mapping[str, Lazy],
        *,
        help: str,
        epilog: str,
        params: Sequence[click.Parameter] = (),
        callback: Callable[..., None] | None = None,
    ) -> None:
        super().__init__(
            name,
            help=help,
            epilog=epilog,
            params=list(params),
            callback=callback,
            context_settings=dict(CONTEXT),
            no_args_is_help=False,
        )
        self.lazy: Final = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 -- click's signature
        """The names, in the order of the table."""
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 -- the same
        """The command, imported now; None when there is none of that name."""
        entry = self.lazy.get(cmd_name)
        if entry is None:
            return None
        command: object = getattr(importlib.import_module(entry.module), entry.attribute)
        assert isinstance(command, click.Command)  # noqa: S101 - narrows the type
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 -- the same
        """The list of commands, from the table alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self.lazy.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Show the help when there is nothing to parse: that is bad usage, but asking for help is meant."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)
