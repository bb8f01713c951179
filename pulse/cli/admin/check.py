"""``pulse check``: do the invariants hold in this database?"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypedDict, Unpack
from urllib.parse import quote

import click

from pulse.cli.lazy import examples
from pulse.cli.options import DURATION, with_config, with_dsn
from pulse.cli.output.progress import ProgressLine
from pulse.cli.output.render import Cell, Line, Screen, foreign, write_document
from pulse.common.extras import require
from pulse.common.text import count, duration, one_line
from pulse.errors import NobodyAnswersError, PulseError
from pulse.security.schema_name import DEFAULT

if TYPE_CHECKING:
    from pulse.config import Settings
    from pulse.protocol.answers import Database
    from pulse.store.admin.checks import CheckResult, Examination
    from pulse.store.connections.pool import Target

_GRACE_S: Final = 90.0  # a lapsed lease, a lease of waiting after an outage, two sweeps
_TIMEOUT_S: Final = 60.0  # a join of two million rows on a slow disk
_EXAMPLES: Final = 5
_STATUS_S: Final = 2.0
_STYLES: Final = {"ok": "green", "violated": "bold red", "skipped": "yellow", "unfinished": "bold red"}
_STATE_WIDTH: Final = 10
_MASK: Final = "***"
_SOCKET: Final = ".s.PGSQL.5432"


class CheckLimits(TypedDict):
    """Time limits, and how many examples to show."""

    grace_s: float
    timeout_s: float
    examples: int


@click.command(
    epilog=examples(
        "pulse check",
        "pulse check --dsn postgresql://pulse@db.example.com/shop --json | jq .ok",
        "pulse check --install-audit   # then let it run, and: pulse check --audit",
    )
)
@with_dsn(", else the embedded PostgreSQL")
@with_config
@click.option(
    "--grace",
    "grace_s",
    type=DURATION,
    default=_GRACE_S,
    metavar="DURATION",
    help="How long a lapsed lease or a due schedule may stand; a watchdog silent for so long is not there.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=DURATION,
    default=_TIMEOUT_S,
    metavar="DURATION",
    help="Longest time for one invariant; what is not done by then counts as bad.",
)
@click.option(
    "--examples",
    type=click.IntRange(1, 1000),
    default=_EXAMPLES,
    metavar="N",
    help="Most violations of an invariant that are shown.",
)
@click.option("--audit", is_flag=True, help="Also check the history that an audit has written down.")
@click.option(
    "--install-audit", is_flag=True, help="Begin to write down every change of a job: expensive, for investigating."
)
@click.option("--remove-audit", is_flag=True, help="Remove the audit, and all that it has written down.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole as one JSON document.")
def check(
    dsn: str | None,
    schema: str | None,
    config: Path | None,
    *,
    audit: bool,
    install_audit: bool,
    remove_audit: bool,
    as_json: bool,
    **limits: Unpack[CheckLimits],
) -> None:
    """
    Check the invariants in the database: a line for each, with the number of violations and some of them.

    It only reads, each invariant in a transaction of its own, and may run beside everything else. Ends with exit code
    1 when an invariant is violated, or could not be checked in time. One that cannot be tested now is skipped, with
    the reason.
    """
    if audit + install_audit + remove_audit > 1:
        raise click.UsageError("--audit, --install-audit and --remove-audit exclude each other; one is allowed.")
    require("pulse check", ["asyncpg"])
    target = _target(dsn, schema, config)
    if install_audit:
        click.echo(asyncio.run(_install(target)))
    elif remove_audit:
        click.echo(asyncio.run(_remove(target)))
    else:
        from pulse.store.admin.checks import Examination

        examination = Examination(target, audit=audit, **limits)
        found = asyncio.run(_examine(examination, None if as_json else Screen()))
        _conclude(found, as_json=as_json)


def choose_dsn(settings: Settings, env: Mapping[str, str], told: str | None) -> str:
    """
    The database that is meant: named by the settings, else the one that the running server says, else the embedded one.

    Args:
        settings: The settings.
        env: The environment.
        told: What the running server says, without its password.

    Raises:
        click.UsageError: There is none.
    """
    if settings.dsn is not None:
        return settings.dsn
    if told is not None and _MASK not in told:
        return told
    from pulse.system.directories import server_state_dir

    home = server_state_dir(env, settings.state_dir) / "postgres"
    if told is None and os.path.exists(home / _SOCKET):  # noqa: PTH110 - false, too, where one may not look
        return f"postgresql:///postgres?host={quote(os.fsencode(home), safe='/')}&port=5432&user=pulse"
    where = f"the server uses {told}" if told else f"no server answers, and no embedded PostgreSQL runs in {home}"
    raise click.UsageError(f"no database is named: give --dsn or set PULSE_DSN ({where}).")


def choose_schema(settings: Settings, told: Database | None) -> str:
    """The schema that is meant: named by the settings, else the one of the running server if its database is meant."""
    of_server = DEFAULT if told is None or settings.dsn is not None else told.schema
    return settings.schema or of_server


def _told(settings: Settings) -> Database | None:
    """The database of the running supervisor."""
    from pulse.cli.server import ServerHandle
    from pulse.protocol.answers import StatusAnswer, read
    from pulse.system.directories import CLIENT_SOCKET

    socket = None if settings.runtime_dir is None else settings.runtime_dir / CLIENT_SOCKET
    try:
        status = read(StatusAnswer, ServerHandle(socket, _STATUS_S).ask_supervisor("status"))
    except NobodyAnswersError:
        return None
    return None if status.database is None or not status.database.dsn else status.database


def _target(dsn: str | None, schema: str | None, config: Path | None) -> Target:
    from pulse.config import load

    settings = load(os.environ, config, {"dsn": dsn, "schema": schema})
    told = _told(settings) if settings.dsn is None else None
    chosen = choose_dsn(settings, os.environ, None if told is None else told.dsn)
    from pulse.store.connections.pool import Target

    return Target(chosen, "pulse check", choose_schema(settings, told))


async def _install(target: Target) -> str:
    from pulse.store.admin import checks

    await checks.install_audit(target)
    return "audit installed: every change of a job is written down from now on; check it by `pulse check --audit`"


async def _remove(target: Target) -> str:
    from pulse.store.admin import checks

    return "audit removed" if await checks.remove_audit(target) else "there was no audit"


async def _examine(examination: Examination, screen: Screen | None) -> list[CheckResult]:
    """Run all checks; shows results on *screen* as they come, and on a terminal the check that runs."""
    found: list[CheckResult] = []
    names = [one.name for one in examination.checks]
    with ProgressLine() as line:
        line.show(_asking(0, names))
        async for finding in examination.findings():
            line.clear()
            found.append(finding)
            if screen is not None:
                screen.lines(_lines(finding))
                sys.stdout.flush()
            if len(found) < len(names):
                line.show(_asking(len(found), names))
    return found


def _asking(done: int, names: Sequence[str]) -> str:
    return f"checking {done + 1} of {len(names)}: {names[done]} …"


def _lines(finding: CheckResult) -> Iterator[Line]:
    state = Cell(f"{finding.state:<{_STATE_WIDTH}}", _STYLES[finding.state])
    line = [state, Cell(f"{finding.check.name}: {finding.check.what}")]
    if finding.violations:
        line.append(Cell(f": {count(finding.violations, 'violation')}", "bold red"))
    if finding.reason is not None:
        line.append(foreign(f": {finding.reason}", "yellow"))
    yield [*line, Cell(f" ({duration(finding.took_s)})", "dim")]
    for example in finding.examples:
        yield [Cell(" " * _STATE_WIDTH), foreign(f"{example.id}  ", "bold"), foreign(one_line(example.detail))]
    if finding.violations > len(finding.examples):
        yield [Cell(" " * _STATE_WIDTH), Cell(f"and {finding.violations - len(finding.examples):,} more", "dim")]


def _conclude(found: list[CheckResult], *, as_json: bool) -> None:
    bad = [one for one in found if one.is_bad]
    skipped = [one for one in found if one.state == "skipped"]
    if as_json:
        write_document({"ok": not bad, "checks": [_document(one) for one in found]})
    elif not bad:
        more = f", {len(skipped)} could not be tested" if skipped else ""
        Screen().lines([[Cell(f"{count(len(found) - len(skipped), 'invariant')} hold{more}")]])
    if bad:
        raise PulseError(f"these invariants do not hold: {', '.join(one.check.name for one in bad)}")


def _document(finding: CheckResult) -> dict[str, object]:
    return {
        "name": finding.check.name,
        "what": finding.check.what,
        "state": finding.state,
        "violations": finding.violations,
        "examples": [{"id": example.id, "detail": example.detail} for example in finding.examples],
        "reason": finding.reason,
        "took_s": finding.took_s,
    }
