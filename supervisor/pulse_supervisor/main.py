"""
The command ``pulse-supervisor``.

Exit codes: 0 stopped as asked; 1 refused or failed, one line on stderr; 2 bad usage; 70 a child died too often, and the
service manager should start everything afresh; 78 the DSN leads to a pooler that pulse cannot work with.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import click
import msgspec

from pulse.common.extras import SERVER, require
from pulse.errors import PulseError
from pulse.security.hide_password import hide_password
from pulse.system.log_forward import LEVELS
from pulse.system.pid1 import obey_sigterm
from pulse.worker.app_name import check_app_name

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from pulse.config import Settings
    from pulse_supervisor.children.spec import ChildSpec
    from pulse_supervisor.postgres.child import PostgresChild

_FAILED: Final = 1
_BAD_USAGE: Final = 2
_CRASHED: Final = 70
_INTERRUPTED: Final = 130  # 128 + SIGINT, as in a shell
_UNITS: Final = ("server", "worker", "sysusers", "tmpfiles")


@click.command("pulse-supervisor", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--dsn", metavar="DSN", help="PostgreSQL 15 to 18 to work on. Default: an embedded one, kept in --state-dir."
)
@click.option("--schema", metavar="NAME", help="The schema of the queue in that database. Default: pulse.")
@click.option("--runtime-dir", metavar="DIR", type=click.Path(path_type=Path), help="Where the sockets are.")
@click.option(
    "--state-dir", metavar="DIR", type=click.Path(path_type=Path), help="Where the embedded PostgreSQL is kept."
)
@click.option(
    "--config", metavar="FILE", type=click.Path(path_type=Path), help="Config file. Default: pulse.toml, if it exists."
)
@click.option("--app", metavar="MODULE:APP", help="Run a pool of workers too, with the handlers of this pulse.App.")
@click.option("--processes", metavar="N", type=int, help="Handler processes of that pool. Default: 1.")
@click.option("--concurrency", metavar="M", type=int, help="Jobs that each of them holds at once. Default: 10.")
@click.option("--spares", metavar="K", type=int, help="Processes that wait to replace one that dies. Default: 1.")
@click.option(
    "--drain-s", metavar="DURATION", help="How long running jobs may go on when stopping, as 90 or 5m. Default: 30."
)
@click.option("--log-level", type=click.Choice(LEVELS), help="Lowest level that is logged. Default: info.")
@click.option(
    "--log-format", type=click.Choice(["json", "console"]), help="Default: console on a terminal, json elsewhere."
)
@click.option(
    "--print-unit",
    type=click.Choice(_UNITS),
    is_flag=False,
    flag_value="server",
    help="Show what systemd needs, with the paths of this installation: the unit of the server, or what is named.",
)
@click.option("--version", is_flag=True, help="Show the version and exit.")
def cli(config: Path | None, version: bool, print_unit: str | None, **options: object) -> int:
    """
    Run pulse: the dispatcher, its fellow actors, and, unless a DSN is given, a PostgreSQL of their own.

    Stays in the foreground. SIGTERM or Ctrl-C lets running jobs finish, then stops everything; a second one stops
    at once. Each option is also a setting in the environment (PULSE_DSN, PULSE_RUNTIME_DIR, ...) and in the
    config file; an option wins over both.

    \b
    Examples:
      pulse-supervisor
          everything on this machine, with nothing to configure
      pulse-supervisor --dsn postgresql://pulse@db.example/jobs
          work on a PostgreSQL that is there already
      pulse-supervisor --app shop.jobs:app --processes 4 --concurrency 10
          run the handlers of shop/jobs.py as well
      pulse-supervisor --print-unit > /etc/systemd/system/pulse-supervisor.service
          have systemd run it

    \b
    Then, elsewhere:
      pulse ctl status
      pulse ctl submit resize '{"path": "a.png", "width": 64}'
    """  # noqa: D301 - click wants the character \\b before what it must not wrap
    if version:
        from pulse.common.version import VERSION

        click.echo(f"pulse-supervisor {VERSION}")
        return 0
    if print_unit is not None:
        from pulse_supervisor.systemd.units import unit_text

        click.echo(unit_text(print_unit), nl=False)
        return 0
    from pulse import config as configuration

    settings, routes = configuration.load_with_routes(os.environ, config, options)
    given = [name for name in ("processes", "concurrency", "spares") if options[name] is not None]
    if settings.app is None and given:
        raise click.UsageError(f"--{given[0]} is the size of a pool, and there is none without --app")
    if settings.app is not None:
        routes.refuse_several(
            f"app is {settings.app!r}, and none is allowed: pulse worker --queue NAME runs a pool for one of them"
        )
    return run(settings)


def main(args: Sequence[str] | None = None) -> int:
    """
    Run the command line.

    Args:
        args: The words behind ``pulse-supervisor``; by default this process's.

    Returns:
        The exit code.
    """
    obey_sigterm()
    if args is None:
        hide_password()
    return saying_errors(lambda: cli.main(args, prog_name="pulse-supervisor", standalone_mode=False))


def saying_errors(command: Callable[[], object]) -> int:
    """Run *command*; returns its exit code, or prints an error in one line and returns the code for it."""
    try:
        code = command()
    except click.UsageError as error:
        _say(f"{error.format_message().rstrip('.')} (see: pulse-supervisor --help)")
        return _BAD_USAGE
    except click.ClickException as error:
        _say(error.format_message())
        return _FAILED
    except PulseError as error:
        _say(error.message)
        return _FAILED
    except (click.Abort, KeyboardInterrupt):
        _say("interrupted")
        return _INTERRUPTED
    return code if isinstance(code, int) else 0


def run(settings: Settings, actors: Sequence[ChildSpec] | None = None, pools: Sequence[ChildSpec] = ()) -> int:
    """
    Take the runtime directory, supervise until the end, and print how it ended.

    Args:
        settings: Checked.
        actors: In the order of their start; None: pulse's own.
        pools: In addition to the one of the settings.

    Returns:
        The exit code.

    Raises:
        PulseError: It cannot start.
    """
    require("this", SERVER)
    if settings.app is not None:
        check_app_name(settings.app)
    log = _make_log(settings.log_level, settings.log_format)
    import trio

    from pulse.common.version import VERSION
    from pulse.security import grants
    from pulse.system import directories
    from pulse_supervisor.children import spec
    from pulse_supervisor.preflight import check_edge, readable_secrets
    from pulse_supervisor.sockets import open_sockets
    from pulse_supervisor.supervisor import Plan, supervise
    from pulse_supervisor.systemd import socket_activation
    from pulse_supervisor.systemd.notify import Notifier

    granted = grants.read_grants(settings.allow_users, settings.allow_groups)
    check_edge(settings)
    for path, what in readable_secrets(settings):
        log.warning("secret_readable", path=str(path), setting=what)
    directory = directories.server_runtime_dir(os.environ, settings.runtime_dir)
    directories.prepare_runtime_dir(directory, named=_is_named(settings, os.environ), shared=granted.shared)
    notifier, kept = Notifier(os.environ), socket_activation.take(os.environ)
    sockets = open_sockets(directory, kept, shared=granted.shared, listen=settings.listen)
    is_kept = notifier.keep(sockets.descriptors())
    settings = msgspec.structs.replace(settings, runtime_dir=directory)
    configured = [spec.pool(settings.app, settings, sockets.client_path)] if settings.app is not None else []
    plan = Plan(
        settings=settings,
        sockets=sockets,
        actors=spec.actors(tcp=sockets.tcp is not None) if actors is None else actors,
        pools=[*configured, *pools],
        grants=granted,
        make_database=functools.partial(_make_database, settings, log) if settings.dsn is None else None,
        version=VERSION,
        services=_services(settings, sockets.client_path),
    )
    try:
        verdict = trio.run(supervise, plan, notifier, log)
    except (Exception, BaseExceptionGroup) as error:
        log.exception("supervisor_failed")
        _say(f"internal error, the log says more: {error!r}")
        return _CRASHED
    finally:
        sockets.close(keep_names=is_kept)
    if verdict.message is not None:
        _say(verdict.message)
    return verdict.exit_code


def _make_log(level: str, log_format: Literal["json", "console"] | None) -> FilteringBoundLogger:
    """Set up logging; format None: console on a terminal, JSON elsewhere."""
    from pulse.logs import configure_logging

    configure_logging(level, log_format)
    import structlog

    logger: FilteringBoundLogger = structlog.get_logger()
    return logger


def _services(settings: Settings, socket_path: Path) -> list[ChildSpec]:
    from pulse_supervisor.children import spec

    if settings.metrics is None:
        return []
    require(f"metrics = {settings.metrics}", ["prometheus_client"])
    return [spec.metrics(settings.metrics, settings, socket_path)]


def _make_database(settings: Settings, log: FilteringBoundLogger) -> PostgresChild:
    from pulse.system import directories
    from pulse_supervisor.postgres import embedded
    from pulse_supervisor.postgres.child import PostgresChild

    state_dir = directories.server_state_dir(os.environ, settings.state_dir)
    return PostgresChild(embedded.prepare(state_dir, embedded_user=settings.embedded_user, log=log.info), log.info)


def _is_named(settings: Settings, env: Mapping[str, str]) -> bool:
    """Whether the user or the service manager chose the runtime directory, rather than a default."""
    return settings.runtime_dir is not None or bool(env.get("RUNTIME_DIRECTORY"))


def _say(message: str) -> None:
    """Print *message* on stderr."""
    for line in message.splitlines():
        sys.stderr.write(f"pulse-supervisor: {line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
