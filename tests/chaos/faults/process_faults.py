"""Faults of processes: workers, actors, the supervisor."""

from __future__ import annotations

import contextlib
import random
import resource
import signal
from typing import ClassVar, Final

from pulse.system import processes
from tests.chaos.faults.fault import Fault, actors, found, send
from tests.chaos.load import ledger
from tests.chaos.site import APP, LEASE_S, SETTINGS, Site
from tests.support.systems.system_kit import ACTORS, Whole, place
from tests.support.waiting import is_alive, until

END_S: Final = 20.0
GAVE_UP: Final = 70  # the supervisor's exit code
TOO_OFTEN: Final = 6  # restarts of a child within a minute: one more than the supervisor makes


class KillWorker(Fault):
    row, name = 1, "kill-worker"
    kills = True

    def inject(self) -> None:
        self.hit(self.site.workers, signal.SIGKILL, "no worker is connected")


class KillWorkerWithChild(Fault):
    """SIGKILL of a handler process whose child holds all its descriptors, the connection too."""

    row, name = 2, "kill-worker-with-child"
    kills = True
    works = True

    def __init__(self, site: Site, rng: random.Random) -> None:
        super().__init__(site, rng)
        self._gate = site.gate()

    def inject(self) -> None:
        self.job = self.site.submit("forks", {"how": "plain", "gate": str(self._gate)}, priority=100)
        started = self.site.wait_started(self.job)
        until(lambda: [line for line in self.site.lines("child") if line.job == self.job], "the child", END_S)
        send(started.pid, signal.SIGKILL)

    def heal(self) -> None:
        self._gate.touch()


class StopWorker(Fault):
    """SIGSTOP of a handler process for longer than a lease, then SIGCONT."""

    row, name = 4, "stop-worker"
    kills = True
    held_s: ClassVar = (LEASE_S * 0.3, LEASE_S * 3)
    _victim = _start = 0

    def inject(self) -> None:
        self._victim = self.hit(self.site.workers, signal.SIGSTOP, "no worker is connected")
        self._start = processes.start_time(self._victim) or 0

    def heal(self) -> None:
        if self._victim and processes.start_time(self._victim) == self._start:
            send(self._victim, signal.SIGCONT)


class KillActor(Fault):
    row, name = 6, "kill-actor"

    def inject(self) -> None:
        self.hit(lambda: actors(self.site).values(), signal.SIGKILL, "no actor runs")


class KillDispatcher(Fault):
    """SIGKILL of the dispatcher, in the middle of claims and reports."""

    row, name = 6, "kill-dispatcher"

    def inject(self) -> None:
        self.hit(lambda: filter(None, [actors(self.site).get("dispatcher")]), signal.SIGKILL, "no dispatcher runs")


class StopActor(Fault):
    """SIGSTOP of an actor, until the supervisor kills it."""

    row, name = 7, "stop-actor"
    held_s: ClassVar = (4.0, 6.0)

    def inject(self) -> None:
        self.hit(lambda: actors(self.site).values(), signal.SIGSTOP, "no actor runs")


class KillSupervisor(Fault):
    """SIGKILL of the supervisor; the next one is started when the actors have ended."""

    row, name = 8, "kill-supervisor"
    kills = True
    held_s: ClassVar = (0.0, 2.0)
    bar_s = 20.0
    alone = True

    def inject(self) -> None:
        whole = self.site.whole
        left = list(actors(self.site).values())
        process, whole.process = whole.process, None
        assert process is not None
        process.kill()
        process.wait(END_S)
        until(lambda: not any(map(is_alive, left)), "the actors end", END_S)

    def heal(self) -> None:
        if self.site.whole.process is None:
            self.site.start(audit=False)


class CrashLoop(Fault):
    """An actor that ends as often as it is started, until the supervisor gives up."""

    row, name = 9, "crash-loop"
    kills = True
    bar_s = 20.0
    alone = True

    def inject(self) -> None:
        whole = self.site.whole
        assert whole.process is not None
        self.actor = self.rng.choice(ACTORS)
        self.shots = pid = 0
        while whole.process.poll() is None and self.shots <= TOO_OFTEN:
            try:
                pid = whole.wait_actor(self.actor, not_pid=pid)
            except (OSError, AssertionError):
                break
            self.shots += send(pid, signal.SIGKILL)
        self.code = whole.process.wait(END_S)
        if self.code != GAVE_UP:
            self.gave_up = f"after {self.shots} kills the supervisor ended with {self.code}"
        whole.process = None

    def heal(self) -> None:
        if self.site.whole.process is None:
            self.site.start(audit=False)


class FullStderr(Fault):
    """The log of the supervisor and the actors has no room for another byte, as on a full disk (here EFBIG)."""

    row, name = 56, "full-stderr"
    held_s: ClassVar = (3.0, 8.0)
    alone = True  # what is started meanwhile inherits it, for all its files

    def __init__(self, site: Site, rng: random.Random) -> None:
        super().__init__(site, rng)
        self._limits: dict[int, tuple[int, int]] = {}

    def inject(self) -> None:
        whole = self.site.whole
        running = found(lambda: actors(self.site)) or {}
        if not running or whole.process is None:
            self.gave_up = "no actor runs"
            return
        for pid in (whole.process.pid, *running.values()):
            with contextlib.suppress(OSError):
                self._limits[pid] = resource.prlimit(pid, resource.RLIMIT_FSIZE)
                size = (whole.errors.stat().st_size, self._limits[pid][1])
                resource.prlimit(pid, resource.RLIMIT_FSIZE, size)

    def heal(self) -> None:
        for pid, limits in self._limits.items():
            with contextlib.suppress(OSError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)


class SecondSupervisor(Fault):
    """Another supervisor with a pool on the same database, as if on another host or not; it stops, or is killed."""

    row, name = 35, "second-supervisor"
    kills = True
    held_s: ClassVar = (3.0, 8.0)
    bar_s = 20.0
    _whole: Whole | None = None

    def __init__(self, site: Site, rng: random.Random) -> None:
        super().__init__(site, rng)
        self._stack = contextlib.ExitStack()

    def inject(self) -> None:
        host = {"PULSE_HOST_ID": "another"} if self.rng.random() < 0.5 else {}
        options = ("--app", APP, "--concurrency", "4")
        whole = self._stack.enter_context(place(self.site.database.dsn, options, **SETTINGS, **host))
        whole.env[ledger.VARIABLE] = str(self.site.ledger.directory)
        whole.spawn()
        self._whole = whole

    def heal(self) -> None:
        whole, self._whole = self._whole, None
        with self._stack:
            if whole is not None and self.rng.random() < 0.5:
                whole.stop()
