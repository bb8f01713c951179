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
from pulse.cli.output.render import Cell, Line, Screen, foreign, write_document
from pulse.common.extras import missing_extra
from pulse.errors import ConfigError, PulseError

if TYPE_CHECKING:
    from pulse.config import Settings
    from pulse.ops.doctor.finding import Finding
    from pulse.protocol.answers import StatusAnswer

_STYLES: Final = {"ok": "green", "warning": "yellow", "wrong": "bold red", "skipped": "dim"}
_STATE_WIDTH: Final = 9
_GRACE_S: Final = 60.0  # leases, sweeps and restarts repair younger problems by themselves
_WHOLE_S: Final = 10.0
_DATABASE_S: Final = 7.0
_STATUS_S: Final = 1.4


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
    help="From which age on a transaction, a lapsed lease, a pause or a due job is worth a word.",
)
@click.option("--strict", is_flag=True, help="Let a warning count as wrong.")
@click.option("--json", "as_json", is_flag=True, help='Print {"ok", "checks": [...]}.')
def doctor(dsn: str | None, config: Path | None, *, grace_s: float, strict: bool, as_json: bool) -> None:
    """
    Examine everything, and say what to do: a line for each check, below it what is the matter and what helps.

    It only reads, and ends within 10 seconds whatever is down. Ends with exit code 1 when something is wrong. Whether
    what is in the database agrees with itself is the question of `pulse check`.
    """
    from pulse.ops.doctor.finding import State, is_well
    from pulse.system import processes

    processes.leave_no_core()
    found: list[Finding] = []
    screen = None if as_json else Screen()
    for finding in _examine(dsn, config, grace_s):
        found.append(finding)
        if screen is not None:
            screen.lines(_lines(finding))
    well = is_well(found, strict=strict)
    bad = {State.WRONG, *([State.WARNING] if strict else [])}
    if as_json:
        write_document({"ok": well, "checks": [_document(one) for one in found]})
    if not well:
        raise PulseError(f"something is wrong: {', '.join(one.check for one in found if one.state in bad)}")
    if screen is not None:
        screen.lines([[Cell("nothing is wrong; to test the invariants: pulse check")]])


def _examine(dsn: str | None, config: Path | None, grace_s: float) -> Iterator[Finding]:
    """All findings in order: of this host, of the processes, of the database."""
    from pulse.common.version import VERSION
    from pulse.ops.doctor import directories, installation
    from pulse.system.directories import client_candidates, server_state_dir

    started_s = time.monotonic()
    needed = installation.required()
    yield installation.installation(VERSION, installation.this_python(), needed, installation.installed(needed))
    settings, configured = _settings(dsn, config)
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
    yield _processes(running, VERSION)
    yield judge_workers(running)
    yield _statements(running)
    yield from _memory(running)
    yield from _of_database(settings, running, grace_s, min(_DATABASE_S, _WHOLE_S - (time.monotonic() - started_s)))


def _settings(dsn: str | None, config: Path | None) -> tuple[Settings, Finding]:
    from pulse.config import Settings, load
    from pulse.ops.doctor.installation import configuration

    problem = None
    try:
        settings = load(os.environ, config, {"dsn": dsn})
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


def _processes(running: RunningSystem, version: str) -> Finding:
    """Supervisor, actors and pools, as ``pulse ctl status`` judges them."""
    from pulse.ops.doctor.finding import verdict_of
    from pulse.ops.problems import process_problems

    wrong = [f"the {who} does not answer: {why}" for who, why in running.silent.items()]
    warnings = list(process_problems(running.status))
    supervisor = running.status.supervisor
    if supervisor is not None and supervisor.version != version:
        warnings.append(f"the server is pulse {supervisor.version}, this is {version}")
    text = (
        "nobody answers"
        if supervisor is None
        else f"the supervisor (pid {supervisor.pid}), its actors and pools are at work"
    )
    return verdict_of(
        "processes",
        wrong,
        warnings,
        text,
        "pulse ctl status",
        "pulse ctl logs",
        "A dispatcher that hangs is restarted within seconds.",
    )


def _statements(running: RunningSystem) -> Finding:
    """Statements that the database refuses: only the running server knows them."""
    from pulse.ops.doctor.finding import Finding, State
    from pulse.ops.doctor.refusals import statements

    if running.status.incidents is None:
        return Finding("statements", State.SKIPPED, "the dispatcher did not say what the database refuses")
    told = next((one for one in running.status.incidents if one.check == "statements"), None)
    if told is None:
        return statements(())
    return Finding("statements", State.WRONG, told.text, details=tuple(told.details), advice=tuple(told.advice))


def judge_workers(running: RunningSystem) -> Finding:
    """Whether there are workers that can take jobs."""
    from pulse.ops.doctor.finding import MAX_SHOWN, Finding, State, list_some, verdict_of
    from pulse.ops.problems import trouble_of

    workers = running.status.workers
    if workers is None:
        return Finding("workers", State.SKIPPED, "the dispatcher did not say which workers are connected")
    troubled = [found for worker in workers if (found := trouble_of(worker)) is not None]
    held, places = sum(worker.held for worker in workers), sum(worker.capacity for worker in workers)
    warnings = [] if workers else ["no worker is connected: no job is started"]
    if workers and held >= places:
        warnings.append(f"all workers are full: {held} of {places} places are taken")
    if workers and all(worker.draining for worker in workers):
        warnings.append("all workers drain: they take no more jobs")
    return verdict_of(
        "workers",
        list(list_some([found.text for found in troubled])),
        warnings,
        f"{len(workers)} connected, {held} of {places} places are taken",
        *dict.fromkeys(line for found in troubled[:MAX_SHOWN] for line in found.advice),
        *(["More of them: pulse worker MODULE:APP"] if warnings else []),
    )


def _memory(running: RunningSystem) -> Iterator[Finding]:
    """Whether the dispatcher can store what it remembers of the database; only it knows."""
    from pulse.ops.doctor.finding import Finding, State

    for one in running.status.incidents or ():
        if one.check == "memory":
            yield Finding(one.check, State(one.state), one.text, details=tuple(one.details), advice=tuple(one.advice))


def _of_database(settings: Settings, running: RunningSystem, grace_s: float, within_s: float) -> Iterator[Finding]:
    import asyncio  # takes 50 ms, which help texts need not wait

    from pulse.ops.doctor.finding import Finding, State
    from pulse.ops.doctor.verdicts import judge
    from pulse.system.directories import server_state_dir

    try:
        from pulse.cli.admin.check import choose_dsn
        from pulse.common.dsn import database_of
        from pulse.store.admin.doctor import expected_indexes, look
        from pulse.store.recovery.timelines import newest_of
    except ModuleNotFoundError as error:
        missing = missing_extra("what is in the database is not known: that", error)
        if missing is None:
            raise
        yield Finding("database", State.SKIPPED, missing.message)
        return
    database = running.status.database
    try:
        dsn = choose_dsn(settings, os.environ, None if database is None else database.dsn or None)
    except click.UsageError as error:
        yield Finding(
            "database", State.SKIPPED, error.format_message(), details=(), advice=("PULSE_DSN=… pulse doctor",)
        )
        return
    seen = asyncio.run(look(dsn, max(1.0, within_s)))
    newest = newest_of(server_state_dir(os.environ, settings.state_dir), database_of(dsn))
    yield from judge(seen, grace_s=grace_s, expected=expected_indexes(), served=_served(running), newest=newest)


def _served(running: RunningSystem) -> set[str] | None:
    """Topics that connected workers serve; None: not known."""
    workers = running.status.workers
    return None if workers is None else {topic for worker in workers for topic in worker.topics}


def _number_of_workers(running: RunningSystem) -> int | None:
    return None if running.status.workers is None else len(running.status.workers)


def _is_embedded(settings: Settings, running: RunningSystem, state_dir: Path) -> bool:
    """Whether the database is the embedded one: its socket is below the state directory."""
    if settings.dsn is not None:
        return False
    database = running.status.database
    return database is None or not database.dsn or str(state_dir) in database.dsn or "%2F" in database.dsn


def _lines(finding: Finding) -> Iterator[Line]:
    yield [
        Cell(f"{finding.state.value:<{_STATE_WIDTH}}", _STYLES[finding.state.value]),
        Cell(f"{finding.check}: ", "bold"),
        foreign(finding.text),
    ]
    if finding.state.value in {"ok", "skipped"} and not finding.details:
        return
    margin = Cell(" " * _STATE_WIDTH)
    yield from ([margin, foreign(text)] for text in finding.details)
    yield from ([margin, Cell("-> ", "dim"), foreign(text, "cyan")] for text in finding.advice)


def _document(finding: Finding) -> dict[str, Any]:
    details: Sequence[str] = finding.details
    return {
        "name": finding.check,
        "state": finding.state.value,
        "text": finding.text,
        "details": list(details),
        "advice": list(finding.advice),
    }
