"""
The man page ``pulse.1``, made of the commands themselves: ``python -m pulse.cli.admin.manpage > docs/man/pulse.1``.

One page for all of them, since that is what somebody searches at night. A library makes a page for each command, of
which there are forty.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import click

_HEAD = r""".\" Made by: python -m pulse.cli.admin.manpage
.TH PULSE 1 "" "pulse" "User Commands"
.SH NAME
pulse \- a job queue on PostgreSQL
.SH SYNOPSIS
.B pulse
.I COMMAND
.RI [ OPTION ]...
.br
.B pulse\-supervisor
.RI [ OPTION ]...
.SH DESCRIPTION
"""
_TAIL = r""".SH EXIT STATUS
.TP
.B 0
done
.TP
.B 1
refused or failed, with one line on standard error
.TP
.B 2
bad usage
.TP
.B 3
nobody answers on the socket
.TP
.B 130
interrupted
.SH ENVIRONMENT
Settings are PULSE_DSN, PULSE_RUNTIME_DIR, PULSE_STATE_DIR, PULSE_CONFIG and others; docs/operations.md has them all.
NO_COLOR turns colours off.
.SH FILES
.TP
.I pulse.toml
the config file, in the current directory, unless PULSE_CONFIG names another
.TP
.I /run/pulse/pulse.sock, /run/pulse/supervisor.sock
where clients look, among other places
.SH SEE ALSO
.BR psql (1),
.BR systemd (1)
"""


def manpage(root: click.Group) -> str:
    """
    The page.

    Args:
        root: The command ``pulse``.
    """
    return _HEAD + _described(root.help) + ".SH COMMANDS\n" + "".join(_commands(root, "pulse")) + _TAIL


def _commands(group: click.Group, path: str) -> Iterator[str]:
    context = click.Context(group, info_name=path)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None  # noqa: S101 - narrows the type; it is listed
        if isinstance(command, click.Group):
            if command.invoke_without_command:  # it does something by itself
                yield _command(command, f"{path} {name}")
            yield from _commands(command, f"{path} {name}")
        else:
            yield _command(command, f"{path} {name}")


def _command(command: click.Command, path: str) -> str:
    arguments = [_argument(param) for param in command.params if isinstance(param, click.Argument)]
    options = [param for param in command.params if isinstance(param, click.Option) and not param.hidden]
    head = f".SS {_escaped(' '.join([path, *arguments]))}\n"
    return head + _described(command.help) + "".join(map(_option, options)) + _examples(command.epilog)


def _argument(argument: click.Argument) -> str:
    choices = argument.type.choices if isinstance(argument.type, click.Choice) else ()
    name = argument.metavar or "|".join(map(str, choices)) or (argument.name or "").upper()
    if name.endswith(("...", "]")):
        return name
    name += "..." if argument.nargs != 1 else ""
    return name if argument.required else f"[{name}]"


def _option(option: click.Option) -> str:
    """Its names, its value and what it is for; made here, since each click words that in its own way."""
    names = ", ".join([*option.opts, *option.secondary_opts])
    value = "" if option.is_flag else f" {option.metavar or _value_of(option)}"
    text = ((option.help or "") + _default(option)).strip()
    return f".TP\n.B {_escaped(names + value)}\n{_escaped(text)}\n"


def _value_of(option: click.Option) -> str:
    if isinstance(option.type, click.Choice):
        return "|".join(map(str, option.type.choices))
    return option.type.name.split()[0].upper()


def _default(option: click.Option) -> str:
    if isinstance(option.show_default, str):
        return f" Default: {option.show_default}."
    default = option.default
    is_shown = isinstance(default, int | float | str) and not isinstance(default, bool) and not option.is_flag
    return f" Default: {default}." if is_shown and default != "" else ""


def _described(text: str | None) -> str:
    """A help text as paragraphs."""
    paragraphs = re.split(r"\n\s*\n", (text or "").strip())
    return "".join(f".PP\n{_escaped(' '.join(one.split()))}\n" for one in paragraphs if one.strip())


def _examples(epilog: str | None) -> str:
    """What click must not wrap, nor troff."""
    if not epilog:
        return ""
    lines = "".join(f"{_escaped(line)}\n" for line in epilog.replace("\b", "").strip("\n").split("\n"))
    return f".PP\n.nf\n{lines}.fi\n"


def _escaped(text: str) -> str:
    """*text* for troff: hyphens are typed as such, and nothing at the start of a line is a request."""
    plain = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    return f"\\&{plain}" if plain.startswith((".", "\\(aq")) else plain


if __name__ == "__main__":
    from pulse.cli.main import cli

    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    sys.stdout.write(manpage(cli))
