"""The load: producers that submit a mix of jobs all the time, and an operator who pauses, cancels and retries."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from uuid import UUID

import pulse
from pulse.ids import uuid7
from tests.chaos.ledger import Ledger

CLIENT_S: Final = 5.0
PATIENCE_S: Final = 60.0  # then a producer gives up: what became of that submit is not known
QUIET_S: Final = 30.0
OPERATE_S: Final = 2.0
PAUSE_S: Final = 0.7
SOME: Final = 5
DEATHS: Final = ("exit", "SIGKILL", "SIGSEGV", "SIGABRT")

Args = dict[str, Any]
Choice = tuple[str, Args, Args]  # a handler, its args, options of the submit
# What a load may consist of.
KINDS: Final[Mapping[str, Callable[[random.Random], Choice]]] = {
    "short": lambda rng: ("short", {"seconds": rng.choice([0.0, 0.0, 0.02, 0.1])}, {"priority": rng.randint(-2, 2)}),
    "medium": lambda rng: ("long", {"seconds": rng.uniform(0.5, 1.5)}, {}),
    "long": lambda rng: ("long", {"seconds": rng.uniform(1.0, 6.0)}, {}),
    "busy": lambda rng: ("busy", {"seconds": rng.uniform(0.01, 0.1)}, {}),
    "flaky": lambda _: ("flaky", {"fails": 1}, {}),
    "shaky": lambda rng: ("flaky", {"fails": rng.randint(1, 2)}, {}),
    "doomed": lambda _: ("doomed", {}, {}),
    "later": lambda rng: ("later", {"seconds": rng.uniform(0.1, 0.5), "how": rng.choice(["snooze", "retry"])}, {}),
    "discarded": lambda _: ("discarded", {}, {}),
    "wicked": lambda rng: ("wicked", {"how": rng.choice(["nul", "surrogate", "nan", "set", "deep", "raise"])}, {}),
    "deadly": lambda rng: ("deadly", {"how": rng.choice(DEATHS), "times": rng.choice([1, 1, 100])}, {}),
    "forks": lambda rng: ("forks", {"how": rng.choice(["plain", "setsid", "daemon"])}, {}),
    "hung": lambda _: ("hung", {}, {}),
    "grip": lambda rng: ("grip", {"seconds": rng.uniform(0.1, 2.0)}, {}),
}
# Innocent jobs, and some that fail by themselves; nothing that harms others. All of it is over within seconds.
BRIEF: Final = {"short": 60, "medium": 6, "busy": 6, "flaky": 1, "doomed": 1, "later": 3, "discarded": 1}
# The same for longer, with jobs that take their process along or get in its way.
WILD: Final = {**BRIEF, "long": 5, "shaky": 2, "wicked": 2, "deadly": 0.2, "forks": 0.2, "grip": 0.2, "hung": 0.1}


@dataclass(frozen=True, slots=True)
class Shape:
    """
    What a load is like.

    Attributes:
        rate: Jobs per second, of all producers together.
        producers: How many submit.
        batch: Most jobs of one submit.
        mix: Kind -> how often, relative to the others.
    """

    rate: float
    producers: int = 1
    batch: int = 5
    mix: Mapping[str, float] = field(default_factory=lambda: BRIEF)

    def __str__(self) -> str:
        return f"{self.rate:.0f} jobs/s of {self.producers} producers, up to {self.batch} at once"


class _Paused(threading.Thread):
    """A thread that does something again and again, and can be told to rest."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._may_work = threading.Event()
        self._resting = threading.Event()
        self._over = threading.Event()
        self._may_work.set()
        self.failed: BaseException | None = None

    def run(self) -> None:
        """Work until told to end."""
        try:
            while not self._over.is_set():
                if not self._may_work.is_set():
                    self._resting.set()
                    self._may_work.wait()
                    self._resting.clear()
                    continue
                self.turn()
        except BaseException as error:  # noqa: BLE001 - shown by whoever rests or ends it
            self.failed = error
        finally:
            self._resting.set()

    def turn(self) -> None:
        """Do it once."""
        raise NotImplementedError

    def rest(self) -> None:
        """Stop after what is being done."""
        self._may_work.clear()

    def wait_rest(self) -> None:
        """Wait until it rests."""
        assert self._resting.wait(PATIENCE_S + QUIET_S), f"{self} does not rest"
        if self.failed is not None:
            raise self.failed

    def go_on(self) -> None:
        """Work again."""
        self._resting.clear()
        self._may_work.set()

    def end(self) -> None:
        """Stop for good."""
        self._over.set()
        self._may_work.set()
        self.join(PATIENCE_S + QUIET_S)

    def pause_s(self, seconds: float) -> None:
        """Wait so long, unless it is over."""
        self._over.wait(seconds)


class Producer(_Paused):
    """
    Submits jobs at a steady rate, each until it is acknowledged.

    Args:
        socket: The server's.
        ledger: Where it writes what it does.
        shape: What it submits.
        rng: Chooses.
    """

    def __init__(self, socket: Path, ledger: Ledger, shape: Shape, rng: random.Random) -> None:
        super().__init__()
        self._socket = socket
        self._ledger = ledger
        self._shape = shape
        self._rng = rng
        self._kinds = list(shape.mix)
        self._weights = list(shape.mix.values())
        self._client = pulse.Client(socket, timeout_s=CLIENT_S)
        self._next_s = time.monotonic()
        self._patience_s = PATIENCE_S
        self.acked = 0
        self.gave_up = 0
        self.slowest_s = 0.0

    def turn(self) -> None:
        """Submit once, and wait for the next time."""
        jobs = [self._job() for _ in range(self._rng.randint(1, self._shape.batch))]
        self._submit(jobs)
        self._next_s = max(self._next_s, time.monotonic() - 1.0) + len(jobs) * self._shape.producers / self._shape.rate
        self.pause_s(max(0.0, self._next_s - time.monotonic()))

    def end(self) -> None:
        """Stop for good."""
        super().end()
        self._client.close()

    def _job(self) -> dict[str, Any]:
        [kind] = self._rng.choices(self._kinds, self._weights)
        name, args, options = KINDS[kind](self._rng)
        return {"name": name, "args": args, "id": uuid7(), **options}

    def _submit(self, jobs: list[dict[str, Any]]) -> None:
        for job in jobs:
            self._ledger.write("intent", job["id"])
        started_s = time.monotonic()
        while time.monotonic() < started_s + self._patience_s and not self._over.is_set():
            try:
                self._client.submit_many(jobs)  # type: ignore[arg-type]
            except pulse.PulseError:
                self.pause_s(self._rng.uniform(0.02, 0.1))
            else:
                self.slowest_s = max(self.slowest_s, time.monotonic() - started_s)
                for job in jobs:
                    self._ledger.write("acked", job["id"])
                self.acked += len(jobs)
                return
        self.gave_up += not self._over.is_set()


class Operator(_Paused):
    """
    Pauses and resumes, cancels what waits or runs, and starts dead jobs anew.

    Args:
        socket: The server's.
        rng: Chooses.
    """

    def __init__(self, socket: Path, rng: random.Random) -> None:
        super().__init__()
        self._client = pulse.Client(socket, timeout_s=CLIENT_S)
        self._rng = rng
        self._acts = (self._pause, self._cancel, self._retry)
        self._revived: set[UUID] = set()
        self.done = 0

    def turn(self) -> None:
        """One act, and a rest."""
        try:
            self._rng.choice(self._acts)()
            self.done += 1
        except pulse.PulseError:
            pass  # away, or no such job any more
        self.pause_s(self._rng.uniform(0.5, 1.5) * OPERATE_S)

    def end(self) -> None:
        """Stop for good, with nothing paused."""
        super().end()
        self._client.close()

    def _pause(self) -> None:
        topic = self._rng.choice(["", "default"])
        self._client.pause(topic, "chaos")
        try:
            self.pause_s(PAUSE_S)
        finally:
            self._insist(lambda: self._client.resume(topic))

    def _cancel(self) -> None:
        found = self._client.jobs(status=self._rng.choice(["PENDING", "RUNNING", "RETRYING"]), limit=SOME).jobs
        self._client.cancel(*(job.id for job in found if job.schedule_id is None))

    def _retry(self) -> None:
        found = self._client.jobs(status=self._rng.choice(["DEAD_LETTERED", "CANCELED"]), limit=SOME).jobs
        fresh = [job.id for job in found if job.id not in self._revived and job.name != "deadly"]
        self._revived.update(fresh)
        if fresh:
            self._client.retry(*fresh)

    def _insist(self, act: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                act()
            except pulse.PulseError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.1)
            else:
                return


class Load:
    """
    Everybody who wants something; use it as a context manager.

    Args:
        socket: The server's.
        ledger: Where producers write.
        shape: What is submitted.
        seed: Of every choice.
        operated: With an operator.
    """

    def __init__(self, socket: Path, ledger: Ledger, shape: Shape, seed: int, *, operated: bool = False) -> None:
        self.producers = [
            Producer(socket, ledger, shape, random.Random(f"{seed}/{number}")) for number in range(shape.producers)
        ]
        self.operator = Operator(socket, random.Random(f"{seed}/operator")) if operated else None
        self._threads: list[_Paused] = [*self.producers, *([self.operator] if self.operator else [])]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for thread in self._threads:
            thread.rest()
        for thread in self._threads:
            thread.end()

    @property
    def acked(self) -> int:
        """Jobs that were acknowledged so far."""
        return sum(producer.acked for producer in self.producers)

    @property
    def gave_up(self) -> int:
        """Submits that nobody acknowledged however long it was tried."""
        return sum(producer.gave_up for producer in self.producers)

    def rest(self) -> None:
        """Nobody wants anything more for now."""
        for thread in self._threads:
            thread.rest()
        for thread in self._threads:
            thread.wait_rest()

    def go_on(self) -> None:
        """Everybody again."""
        for thread in self._threads:
            thread.go_on()
