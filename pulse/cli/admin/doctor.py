"""``pulse doctor``: examine the installation, the running system, its database and its queue, and say what to do."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from pulse.cli.lazy import examples
from pulse.cli.options import DURATION, with_config, with_dsn
from pulse.cli.output.render import Cell, Screen, write_document
from pulse.common.extras import missing_extra
from pulse.errors import ConfigError, PulseError
from pulse.security.schema_name import quoted

if TYPE_CHECKING:
    from pulse.config import Settings
    from pulse.ops.doctor.finding import Finding
    from pulse.protocol.answers import StatusAnswer

_GRACE_S: Final = 60.0  # leases, sweeps and restarts repair younger problems by themselves
_WHOLE_S: Final = 10.0
_DATABASE_S: Final = 7.0
_STATUS_S: Final = 1.4
_WELL: Final = {
    "statements": "the database carries out what the server asks for",
    "memory": "the dispatcher keeps beside the database what it knows of it",
}


@dataclass(frozen=True, slots=True)
class RunningSystem:
    """The state of the running system, as in ``pulse ctl status``, and which process did not answer."""

    status: StatusAnswer
    silent: Mapping[str, str]

    @property
    def dispatcher(self) -> int | None:
        """Its pid."""
        return next((one.pid for one in self.status.actors or () if one.name == "dispatcher"), None)


@click.command(
    epilog=examples("pulse doctor", "pulse doctor --strict --json | jq '.checks[] | select(.state != \"ok\")'")
)
@with_dsn(", else the running server's")
@with_config
@click.option(
    "--grace",
    "grace_s",
    type=DURATION,
    default=_GRACE_S,
    metavar="DURATION",
    help="From which age on a transaction, a lapsed lease or a due job is worth a word.",
)
@click.option("--strict", is_flag=True, help="Let a warning count as wrong.")
@click.option("--json", "as_json", is_flag=True, help='Print {"ok", "findings": [...], "checks": [...]}.')
def doctor(config: Path | None, *, grace_s: float, strict: bool, as_json: bool, **given: str | None) -> None:
    """
    Examine everything, and say what to do: a line for each check, below it what is the matter and what helps.

    It only reads, and ends within 10 seconds whatever is down. Ends with exit code 1 when something is wrong. Whether
    what is in the database agrees with itself is the question of `pulse check`.
    """
    from pulse.cli.system.status_page import finding_lines
    from pulse.ops.doctor.finding import State, bad_of, counts, document_of, is_well
    from pulse.system import processes

    processes.leave_no_core()
    found: list[Finding] = []
    screen = None if as_json else Screen()
    for finding in _examine(given, config, grace_s):
        found.append(finding)
        if screen is not None:
            screen.lines(finding_lines(finding))
    well, bad = is_well(found, strict=strict), bad_of(found)
    if as_json:
        checks = [_document(one) for one in found]
        write_document({"ok": well, "findings": list(map(document_of, bad)), "checks": checks})
    if not well:
        worst = [one.check for one in bad if strict or one.state is State.WRONG]
        raise PulseError(f"{counts(found)}: {', '.join(worst)}")
    if screen is not None:
        screen.lines([[Cell(f"{counts(found)}; to test the invariants: pulse check")]])


def _examine(given: Mapping[str, object], config: Path | None, grace_s: float) -> Iterator[Finding]:
    """All findings in order: of this host, of the processes, of the database."""
    from pulse.common.version import VERSION
    from pulse.ops.doctor import directories, installation
    from pulse.ops.doctor.running import processes
    from pulse.system.directories import client_candidates, server_state_dir

    started_s = time.monotonic()
    needed = installation.required()
    yield installation.installation(VERSION, installation.this_python(), needed, installation.installed(needed))
    settings, configured = _settings(given, config)
    yield configured
    looked = client_candidates(os.environ, settings.runtime_dir)
    directory = next((path for path in looked if os.path.lexists(path)), None)
    named = settings.runtime_dir is not None
    chosen = None if directory is None else directories.directory_at(directory, named=named, is_shared=True)
    yield directories.runtime_dir(chosen, looked)
    if directory is not None:
        yield directories.sockets(directories.both_sockets(directory))
    running = _ask_running(directory)
    state = directories.directory_at(server_state_dir(os.environ, settings.state_dir), named=True, is_shared=False)
    yield directories.state_dir(state, is_used=_is_embedded(settings, running, state.path))
    yield installation.kernel(installation.abilities())
    yield installation.limits(installation.limits_of(running.dispatcher, _number_of_workers(running)))
    yield processes(running.status, running.silent)
    yield judge_workers(running)
    yield _told(running, "statements")
    yield _told(running, "memory")
    yield from _of_database(settings, running, grace_s, min(_DATABASE_S, _WHOLE_S - (time.monotonic() - started_s)))


def _settings(given: Mapping[str, object], config: Path | None) -> tuple[Settings, Finding]:
    from pulse.config import Settings, load
    from pulse.ops.doctor.installation import configuration

    problem = None
    try:
        settings = load(os.environ, config, given)
    except ConfigError as error:
        problem = error.message
        runtime_dir = os.environ.get("PULSE_RUNTIME_DIR")
        settings = Settings(runtime_dir=Path(runtime_dir) if runtime_dir else None)
    known = [name for name in settings.__struct_fields__ if name != "config"]
    return settings, configuration(problem, settings.config, os.environ, known)


def _ask_running(directory: Path | None) -> RunningSystem:
    """Supervisor and dispatcher, both at once."""
    from pulse.cli.server import ServerHandle
    from pulse.cli.system.status import ask_both
    from pulse.ops.status import merge
    from pulse.protocol.answers import StatusAnswer, read
    from pulse.system.directories import CLIENT_SOCKET

    if directory is None:
        nobody = "there is no runtime directory"
        return RunningSystem(read(StatusAnswer, merge(None, None)), {"supervisor": nobody, "dispatcher": nobody})
    answers = ask_both(ServerHandle(directory / CLIENT_SOCKET, _STATUS_S))
    return RunningSystem(read(StatusAnswer, answers.merged), answers.silent)


def judge_workers(running: RunningSystem) -> Finding:
    """Whether there are workers that can take jobs."""
    from pulse.ops.doctor.finding import Finding, State
    from pulse.ops.doctor.running import dispatcher_up_s, workers

    if running.status.workers is None:
        return Finding("workers", State.SKIPPED, "the dispatcher did not say which workers are connected")
    return workers(running.status.workers, dispatcher_up_s(running.status))


def _told(running: RunningSystem, check: str) -> Finding:
    """What only the running dispatcher knows of that."""
    from pulse.ops.doctor.finding import Finding, State
    from pulse.ops.doctor.running import finding_of

    if running.status.findings is None:
        return Finding(check, State.SKIPPED, "the dispatcher did not answer")
    told = next((one for one in running.status.findings if one.id == check), None)
    return Finding(check, State.OK, _WELL[check]) if told is None else finding_of(told)


def _of_database(settings: Settings, running: RunningSystem, grace_s: float, within_s: float) -> Iterator[Finding]:
    import asyncio  # takes 50 ms, which help texts need not wait

    from pulse.ops.doctor.finding import Finding, State
    from pulse.ops.doctor.running import finding_of
    from pulse.ops.doctor.verdicts import CheckContext, judge, without_answers
    from pulse.system.directories import server_state_dir

    told = list(map(finding_of, running.status.findings or ()))
    try:
        from pulse.cli.admin.check import choose_dsn, choose_schema
        from pulse.common.dsn import database_of
        from pulse.store.admin.doctor import expected_indexes, look
        from pulse.store.recovery.timelines import newest_of
    except ModuleNotFoundError as error:
        missing = missing_extra("what is in the database is not known: that", error)
        if missing is None:
            raise
        yield Finding("database", State.SKIPPED, missing.message)
        yield from without_answers(told, "the database is not asked")
        return
    database = running.status.database
    try:
        dsn = choose_dsn(settings, os.environ, None if database is None else database.dsn or None)
    except click.UsageError as error:
        yield Finding(
            "database", State.SKIPPED, error.format_message(), details=(), advice=("PULSE_DSN=… pulse doctor",)
        )
        yield from without_answers(told, "the database is not asked")
        return
    schema = choose_schema(settings, database)
    seen = asyncio.run(look(dsn, max(1.0, within_s), schema))
    newest = newest_of(server_state_dir(os.environ, settings.state_dir), database_of(dsn))
    served = served_topics(running)
    known = CheckContext(seen.shown, expected_indexes(), served=served, newest=newest, told=told, schema=quoted(schema))
    yield from judge(seen, known, grace_s=grace_s)


def served_topics(running: RunningSystem) -> set[str] | None:
    """Topics that connected workers serve; None: not known."""
    from pulse.ops.doctor.running import ARRIVE_S, dispatcher_up_s

    workers = running.status.workers
    if workers is None or dispatcher_up_s(running.status) < ARRIVE_S:
        return None
    return {topic for one in workers if not one.draining for topic in one.topics}


def _number_of_workers(running: RunningSystem) -> int | None:
    return None if running.status.workers is None else len(running.status.workers)


def _is_embedded(settings: Settings, running: RunningSystem, state_dir: Path) -> bool:
    """Whether the database is the embedded one: its socket is below the state directory."""
    if settings.dsn is not None:
        return False
    database = running.status.database
    return database is None or not database.dsn or str(state_dir) in database.dsn or "%2F" in database.dsn


def _document(finding: Finding) -> dict[str, Any]:
    details: Sequence[str] = finding.details
    return {
        "name": finding.check,
        "state": finding.state.value,
        "text": finding.text,
        "details": list(details),
        "advice": list(finding.advice),
    }
