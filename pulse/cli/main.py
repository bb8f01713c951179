"""
The command ``pulse``: what there is, and how each command ends.

Exit codes: 0 done; 1 refused or failed, one line on stderr; 2 bad usage; 3 nobody answers; 130 interrupted.
With ``--json`` a failure is also ``{"error": {"code", "message"}}`` on stdout, unless an answer was printed before it.
A command is added by a line in ``COMMANDS``; its module is imported when it is called.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final, TextIO

import click

from pulse.cli.ctl import COMMANDS as CTL_COMMANDS
from pulse.cli.lazy import DOCUMENT_WRITTEN, Lazy, LazyGroup, examples
from pulse.common.extras import MissingExtraError, missing_extra
from pulse.common.version import VERSION
from pulse.errors import NobodyAnswersError, ProtocolError, PulseError, RefusedError
from pulse.security.hide_password import hide_password
from pulse.system.pid1 import obey_sigterm

_FAILED: Final = 1
_BAD_USAGE: Final = 2
_NOBODY_ANSWERS: Final = 3
_INTERRUPTED: Final = 130  # 128 + SIGINT, as a shell says it
_OUTPUT_CLOSED: Final = 141  # 128 + SIGPIPE
_WITH_DSN: Final = frozenset({"check", "doctor", "migrate"})
COMPLETION_VARIABLE: Final = "_PULSE_COMPLETE"

COMMANDS: Final = {
    "worker": Lazy("pulse.worker.command", "worker", "Run the handlers of an app."),
    "ctl": Lazy("pulse.cli.ctl", "ctl", "Look at the running system, and control it."),
    "migrate": Lazy("pulse.cli.admin.migrate", "migrate", "Install or upgrade the database schema."),
    "check": Lazy("pulse.cli.admin.check", "check", "Check the invariants in the database."),
    "doctor": Lazy("pulse.cli.admin.doctor", "doctor", "Examine everything, and say what to do."),
    "metrics": Lazy("pulse.cli.admin.metrics", "metrics", "Serve metrics to Prometheus."),
    "ui": Lazy("pulse.cli.admin.ui", "ui", "Serve the dashboard."),
    "bridge": Lazy("pulse.bridge.command", "bridge", "Make jobs of the messages of a broker."),
    "passwd": Lazy("pulse.cli.admin.passwd", "passwd", "Make a bcrypt entry for PULSE_AUTH_USERS."),
    "demo": Lazy("pulse.cli.admin.demo", "demo", "Watch a worker being killed, and its job recovered."),
    "completion": Lazy("pulse.cli.admin.completion", "completion", "Print the completion script of a shell."),
}


def _show_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(f"pulse {VERSION}")
        ctx.exit()


cli: Final = LazyGroup(
    "pulse",
    COMMANDS,
    help="""
    pulse: a job queue on PostgreSQL.

    The server is started by `pulse-supervisor`. Settings come from options, else from the environment (PULSE_*),
    else from the config file (PULSE_CONFIG or pulse.toml).
    """,
    epilog=examples(
        "pulse worker shop.jobs:app --processes 4",
        "pulse ctl status",
        """pulse ctl submit resize '{"path": "a.png", "width": 64}'""",
    ),
    elsewhere=[f"ctl {name}" for name in CTL_COMMANDS],
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_version,
            show_default=False,
            help="Show the version and exit.",
        )
    ],
)


def main(args: Sequence[str] | None = None) -> int:
    """
    Run the command line.

    Args:
        args: The words behind ``pulse``; by default this process's.

    Returns:
        The exit code.
    """
    obey_sigterm()
    if args is None and set(sys.argv[1:2]) <= _WITH_DSN:
        hide_password()
    for stream in (sys.stdout, sys.stderr):
        _write_anything(stream)
    if COMPLETION_VARIABLE in os.environ:
        cli.main(prog_name="pulse", complete_var=COMPLETION_VARIABLE)
    try:
        code = _run(list(sys.argv[1:] if args is None else args))
        sys.stdout.flush()
    except BrokenPipeError:  # `| head`: it has seen enough
        _discard_output()
        return _OUTPUT_CLOSED
    except KeyboardInterrupt:
        _say("interrupted")
        return _INTERRUPTED
    except OSError as error:  # a full disk behind stdout
        _say(f"cannot go on: {error.strerror or error}")
        _discard_output()
        return _FAILED
    return code


def _run(args: list[str]) -> int:
    meta: dict[str, object] = {}
    try:
        with cli.make_context("pulse", args) as ctx:
            meta = ctx.meta  # shared by the contexts of all commands below
            cli.invoke(ctx)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.Abort:
        raise KeyboardInterrupt from None
    except (click.ClickException, PulseError, ModuleNotFoundError) as error:
        return _fail(error, args, has_document=DOCUMENT_WRITTEN in meta)
    return 0


def _fail(error: Exception, args: Sequence[str], *, has_document: bool) -> int:
    """Say what went wrong, with ``--json`` also as the one JSON document on stdout; returns the exit code."""
    code, word, message, hint = _FAILED, "failed", str(error), ""
    match error:
        case click.UsageError():
            where = "pulse" if error.ctx is None else error.ctx.command_path
            code, word, hint = _BAD_USAGE, "bad_usage", f" (see: {where} --help)"
            message = error.format_message().rstrip(".")
        case click.ClickException():
            message = error.format_message()
        case NobodyAnswersError():
            code, word = _NOBODY_ANSWERS, "nobody_answers"
        case RefusedError() | ProtocolError() | MissingExtraError():
            word = error.code
        case ModuleNotFoundError():
            missing = missing_extra(" ".join(["pulse", *args[:1]]), error)
            if missing is None:
                raise error
            message, word = missing.message, missing.code
        case _:
            pass
    _say(message + hint)
    if "--json" in args and not has_document:
        from pulse.cli.output.render import write_document

        write_document({"error": {"code": word, "message": message}})
    return code


def _say(message: str) -> None:
    """One line on stderr for each line of *message*; most have one."""
    for line in message.splitlines():
        click.echo(f"pulse: {line}", err=True)


def _write_anything(stream: TextIO) -> None:
    """Let no name or error text fail because the terminal's encoding lacks one of its characters."""
    from io import TextIOWrapper

    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Let the interpreter's last flush of stdout go nowhere, instead of failing once more."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())
