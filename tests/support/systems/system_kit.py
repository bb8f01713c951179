"""The whole system for tests: a real supervisor, real worker pools that write a ledger, and real clients."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

import pulse
from pulse.job import Job
from tests.support.apps.system_app import LEDGER
from tests.support.commandline import cli, warm
from tests.support.commandline.warm import PULSE, program
from tests.support.servers.streams import JsonLines
from tests.support.systems import system
from tests.support.systems.system import Body
from tests.support.systems.worker_kit import handler_processes
from tests.support.waiting import is_alive, until

ROOT: Final = Path(__file__).parents[3]
APP: Final = "tests.support.apps.system_app:app"
ACTORS: Final = ("dispatcher", "scheduler", "pause", "watchdog")
PATHS: Final = os.pathsep.join(map(str, (ROOT, ROOT / "supervisor", ROOT / "actors")))
# A lease is a tenth of the default, so that nobody has to wait for it.
SHORT_LEASE: Final = {"PULSE_LEASE_S": "3", "PULSE_HEARTBEAT_S": "1", "PULSE_SWEEP_S": "0.5"}
END_S: Final = 30.0  # for what takes a second on a quiet machine


@dataclass(frozen=True, slots=True)
class Entry:
    event: str
    job: UUID
    attempt: int
    pid: int
    at_s: float
    more: Mapping[str, object]


class Pool:
    def __init__(self, process: subprocess.Popen[bytes], errors: Path) -> None:
        self.process = process
        self._errors = errors

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def said(self) -> str:
        return self._errors.read_text("utf-8", "replace")

    def workers(self) -> list[int]:
        return [child.pid for child in handler_processes(self.pid)]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(END_S)

    def bury(self) -> None:
        """End it at once, and its handler processes, stopped ones too."""
        workers = self.workers()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(END_S)
        until(lambda: not any(map(is_alive, workers)), "the handler processes end", END_S)


class Whole(system.System):
    """A system with worker pools, clients, and the ledger of its handlers; *dsn* None: a PostgreSQL of its own."""

    def __init__(self, dsn: str | None, directory: Path, env: Mapping[str, str], options: Sequence[str] = ()) -> None:
        super().__init__(dsn or "", directory, clean_environment(**env), options)
        self.env = {
            **self._env,
            "PULSE_RUNTIME_DIR": str(self.runtime_dir),
            "PULSE_STATE_DIR": str(directory / "state"),
        }
        self.env[LEDGER] = str(directory / "ledger")
        self._ledger = JsonLines(directory / "ledger", _entry, lambda entry: entry.job)
        self._env = self.env
        if dsn is None:
            at = self._command.index("--dsn")
            del self._command[at : at + 2]
        self._stack = contextlib.ExitStack()
        self._pools = 0

    def set_dsn(self, dsn: str) -> None:
        self.dsn = dsn
        self._command[self._command.index("--dsn") + 1] = dsn

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(super().close)
            stack.callback(self._stack.close)

    # Its pools.

    def pool(
        self, *words: str, app: str = APP, env: Mapping[str, str] | None = None, wait: bool = True, cwd: Path = ROOT
    ) -> Pool:
        """Start ``pulse worker``, and wait until all its processes are connected."""
        self._pools += 1
        errors = self.directory / f"pool-{self._pools}"
        with errors.open("wb") as sink:
            process = program(
                PULSE, ["worker", app, *words], [sys.executable, "-m", PULSE],
                env={**self.env, **(env or {})}, stdout=sink, stderr=sink, cwd=cwd,
            )  # fmt: skip
        pool = Pool(process, errors)
        self._stack.callback(pool.bury)
        if wait:
            until(lambda: process.poll() is not None or self.is_connected(pool), "the pool connects", END_S)
            assert process.poll() is None, pool.said
        return pool

    def is_connected(self, pool: Pool) -> bool:
        """Whether every handler process of a pool is connected."""
        workers = pool.workers()
        return bool(workers) and set(workers) <= {row["pid"] for row in self.connected()}

    def connected(self) -> list[Body]:
        """The connected handler processes; none while nobody answers."""
        with contextlib.suppress(pulse.PulseError), pulse.Client(self.path) as client:
            return rows_of(client.workers())
        return []

    # Its clients.

    def jobs(self) -> Jobs:
        client = pulse.Client(self.path, timeout_s=END_S)
        self._stack.callback(client.close)
        return Jobs(client)

    def command(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return run(PULSE, words, self.env, stdin=stdin)

    # What its handlers wait for and write.

    def gate(self, name: str) -> Path:
        return self.directory / f"gate-{name}"

    def entries(self, job: UUID | None = None, event: str | None = None) -> list[Entry]:
        """The ledger, of one job and event where that is asked."""
        return [one for one in self._ledger.read(job) if event in {None, one.event}]

    def wait_entry(self, job: UUID, event: str = "start", attempt: int = 1, within_s: float = END_S) -> Entry:
        def look() -> list[Entry]:
            return [entry for entry in self.entries(job, event) if entry.attempt == attempt]

        return until(look, f"{event} of attempt {attempt} of {job}", within_s)[0]

    def row_text(self, job: UUID) -> str:
        return str(self.rows("SELECT to_jsonb(job)::text FROM pulse.jobs job WHERE id = $1", job)[0][0])


class Jobs:
    def __init__(self, client: pulse.Client) -> None:
        self.client = client
        self.submit = client.submit
        self.get = client.get

    def wait(self, job: UUID, *statuses: str, within_s: float = END_S) -> Job:
        """The job as soon as it has one of these statuses; COMPLETED without any."""
        wanted = statuses or ("COMPLETED",)
        last: list[Job] = []

        def look() -> bool:
            last[:] = [self.client.get(job)]
            return last[0].status in wanted

        try:
            until(look, "", within_s)
        except AssertionError:
            raise AssertionError(f"not {' or '.join(wanted)} within {within_s} s: {last}") from None
        return last[0]


def _entry(row: dict[str, object]) -> Entry:
    job, event = UUID(str(row.pop("job"))), str(row.pop("event"))
    attempt, pid, at_s = (float(str(row.pop(key))) for key in ("attempt", "pid", "at_s"))
    return Entry(event, job, int(attempt), int(pid), at_s, row)


@contextmanager
def place(dsn: str | None, options: Sequence[str] = (), **settings: str) -> Iterator[Whole]:
    # As root, the embedded PostgreSQL runs as another user, who has to get through.
    with (
        system.short_directory(0o711) as directory,
        contextlib.closing(Whole(dsn, directory, settings, options)) as whole,
    ):
        yield whole


def clean_environment(**more: str) -> dict[str, str]:
    """This process's environment without anything of a pulse, and with its import paths too; pools keep no spares."""
    strange = ("PULSE_", "NOTIFY_", "XDG_", "RUNTIME_DIRECTORY", "STATE_DIRECTORY")
    own = {key: value for key, value in os.environ.items() if not key.startswith(strange)}
    paths = os.pathsep.join(path for path in (PATHS, own.get("PYTHONPATH")) if path)  # a mutant comes by the latter
    return {**own, "PYTHONPATH": paths, "PULSE_SPARES": "0", **more}


def run(
    module: str,
    words: Sequence[str | bytes],
    env: Mapping[str, str],
    *,
    stdin: str = "",
    cwd: Path = ROOT,
    within_s: float = END_S,
) -> subprocess.CompletedProcess[str]:
    """Run a module of Python to its end; ``pulse ctl`` in a warm process, where that makes no difference."""
    if module == PULSE and warm.fits(words, env, stdin.encode(), cli.environment()):
        done = cli.run(words, env, stdin=stdin.encode(), cwd=cwd, within_s=within_s)
        return subprocess.CompletedProcess(words, done.code, done.out, done.err)
    return subprocess.run(
        [sys.executable, "-m", module, *words], env=env, input=stdin, cwd=cwd, capture_output=True, text=True,
        timeout=within_s, check=False,
    )  # fmt: skip


def rows_of(value: object) -> list[Body]:
    assert isinstance(value, list)
    return value


def cpu_s(pids: Sequence[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def measured(what: str, value: float, unit: str = "s") -> float:
    """Show a figure (``-rP`` or ``-s``), and return it."""
    sys.stdout.write(f"measured: {what}: {value:.3f} {unit}\n")
    return value


def since(start_s: float) -> float:
    return time.monotonic() - start_s
