"""Groups whose commands are modules that are imported when they are called for, not to print a list of names."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import click

from pulse.common.text import similar_names

DOCUMENT_WRITTEN: Final = "pulse.document"  # in the meta of contexts: stdout has its one JSON document
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


class CommandGroup(click.Group):
    """A group of commands that names similar ones where there is none of the name that was typed."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that *args* begins with; click before 8.4 names no similar ones."""
        name = args[0]
        if not ctx.resilient_parsing and not name.startswith("-") and self.get_command(ctx, name) is None:
            raise click.UsageError(f"No such command {name!r:.60}.{did_you_mean(name, self.near(ctx))}", ctx)
        return super().resolve_command(ctx, args)

    def near(self, ctx: click.Context) -> Sequence[str]:
        """What may have been meant."""
        return self.list_commands(ctx)


def did_you_mean(word: str, words: Sequence[str]) -> str:
    """The question whether one of *words* was meant; '' where none is similar."""
    alike = similar_names(word, words)
    return f" Did you mean {' or '.join(repr(one) for one in alike)}?" if alike else ""


class LazyGroup(CommandGroup):
    """
    A group of commands that are imported on use; without a command it shows its help.

    Args:
        name: Its name.
        lazy: Its commands, in the order in which they are listed.
        help: Its help text.
        epilog: Text below the commands.
        params: Its options.
        callback: Called with the options before the command.
        elsewhere: Commands of a group in it, as they are typed: people forget the group.
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
        elsewhere: Sequence[str] = (),
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
        self._elsewhere: Final = elsewhere

    def near(self, ctx: click.Context) -> Sequence[str]:
        """Its own commands, and those that are elsewhere."""
        return [*self.list_commands(ctx), *self._elsewhere]

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
