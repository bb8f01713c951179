"""The load: producers that submit a mix of jobs all the time, beside operators who change things."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from uuid import UUID

import pulse
from pulse.common.ids import uuid7
from tests.chaos.load.ledger import GOVERNED_TOPIC, LIMITED_TOPIC, MOST, MOST_OF_A_GROUP, ORDERED_TOPIC, Ledger
from tests.chaos.load.operators import Operator
from tests.chaos.load.turns import PATIENCE_S, Turns

CLIENT_S: Final = 5.0
KEYS: Final = {"start": "abc", "end": "xyz"}
# What the ledger has to know of a submit.
NOTED: Final = ("topic", "group_key", "unique", "unique_until", "after", "on_failure")
RECENT: Final = 30  # jobs that new ones may wait for
DEATHS: Final = ("exit", "SIGKILL", "SIGSEGV", "SIGABRT")

Args = dict[str, Any]
Choice = tuple[str, Args, Args]  # a handler, its args, options of the submit
# What a load may consist of.
KINDS: Final[Mapping[str, Callable[[random.Random], Choice]]] = {
    "short": lambda rng: ("short", {"seconds": rng.choice([0.0, 0.0, 0.02, 0.1])}, {"priority": rng.randint(-2, 2)}),
    "medium": lambda rng: ("long", {"seconds": rng.uniform(0.5, 1.5)}, {}),
    "long": lambda rng: ("long", {"seconds": rng.uniform(1.0, 6.0)}, {}),
    "busy": lambda rng: ("busy", {"seconds": rng.uniform(0.01, 0.1)}, {}),
    "gathered": lambda _: ("gathered", {}, {}),
    "flaky": lambda _: ("flaky", {"fails": 1}, {}),
    "shaky": lambda rng: ("flaky", {"fails": rng.randint(1, 2)}, {}),
    "doomed": lambda _: ("doomed", {}, {}),
    "later": lambda rng: ("later", {"seconds": rng.uniform(0.1, 0.5), "how": rng.choice(["snooze", "retry"])}, {}),
    "discarded": lambda _: ("discarded", {}, {}),
    "wicked": lambda rng: ("wicked", {"how": rng.choice(["nul", "surrogate", "nan", "object", "deep", "raise"])}, {}),
    "deadly": lambda rng: ("deadly", {"how": rng.choice(DEATHS), "times": rng.choice([1, 1, 100])}, {}),
    "forks": lambda rng: ("forks", {"how": rng.choice(["plain", "setsid", "daemon"])}, {}),
    "hung": lambda _: ("hung", {}, {}),
    "faulty": lambda rng: ("faulty", {"fails": rng.randint(1, 4)}, {"topic": GOVERNED_TOPIC}),
    "fatal": lambda rng: ("fatal", {"times": rng.randint(1, 5)}, {"topic": GOVERNED_TOPIC}),
    "perishable": lambda rng: (
        "perishable",
        {"seconds": rng.choice([0.0, 0.1])},
        {"topic": GOVERNED_TOPIC, "expires_in_s": rng.choice([0.2, 1.0, 3.0, 20.0])},
    ),
    "limited": lambda rng: (
        "limited",
        {"seconds": rng.uniform(0.05, 1.0)},
        {"topic": LIMITED_TOPIC, "group_key": rng.choice("abc")},
    ),
    "ordered": lambda rng: (
        "ordered",
        {"fails": rng.choice([0, 0, 0, 1, 4])},
        {"topic": ORDERED_TOPIC, "group_key": rng.choice("abc"), "max_attempts": 3},
    ),
    "unique": lambda rng: (
        "unique",
        {"seconds": rng.choice([0.0, 0.1, 1.0])},
        {
            "unique": rng.choice(KEYS[until := rng.choice(["start", "end"])]),
            "unique_until": until,
            "on_conflict": rng.choice(["skip", "replace"]),
            "delay_s": rng.choice([0.0, 0.0, 0.5]),
        },
    ),
    "child": lambda rng: (
        "child",
        {"seconds": rng.choice([0.0, 0.1])},
        {"after": range(rng.randint(1, 3)), "on_failure": rng.choice(["cancel", "run"])},
    ),
    "grip": lambda rng: ("grip", {"seconds": rng.uniform(0.1, 2.0)}, {}),
}
LAYERS, WIDTH = 10, 100  # of a graph
# Innocent jobs, and some that fail by themselves; nothing that harms others. All of it is over within seconds.
BRIEF: Final = {"short": 60, "medium": 6, "busy": 6, "flaky": 1, "doomed": 1, "later": 3, "discarded": 1}
# What the policy of its topic decides about.
GOVERNED: Final = {"faulty": 3, "fatal": 0.1, "perishable": 4}
# The same for longer, with jobs that take their process along or get in its way.
WILD: Final = {
    **BRIEF, **GOVERNED, "long": 5, "shaky": 2, "wicked": 2, "deadly": 0.2, "forks": 0.2, "grip": 0.2, "hung": 0.1,
    "limited": 6, "ordered": 4, "unique": 4, "child": 8, "graph": 0.03,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shape:
    """What a load is like: *rate* jobs a second of all producers together, *mix* kind -> relative frequency."""

    rate: float
    producers: int = 1
    batch: int = 5
    mix: Mapping[str, float] = field(default_factory=lambda: BRIEF)

    def __str__(self) -> str:
        return f"{self.rate:.0f} jobs/s of {self.producers} producers, up to {self.batch} at once"


def _without_empty_after(job: dict[str, Any]) -> dict[str, Any]:
    return job if job.get("after", True) else {key: job[key] for key in job if key not in {"after", "on_failure"}}


class Producer(Turns):
    """Submits jobs at a steady rate, each until it is acknowledged."""

    def __init__(self, socket: Path, ledger: Ledger, shape: Shape, number: int, rng: random.Random) -> None:
        super().__init__()
        self._number = number
        self._socket = socket
        self._ledger = ledger
        self._shape = shape
        self._rng = rng
        self._kinds = list(shape.mix)
        self._weights = list(shape.mix.values())
        self._client = pulse.Client(socket, timeout_s=CLIENT_S)
        self._next_s = time.monotonic()
        self._recent: deque[UUID] = deque(maxlen=RECENT)
        self.acked = 0
        self.gave_up = 0

    def turn(self) -> None:
        jobs = [job for _ in range(self._rng.randint(1, self._shape.batch)) for job in self._jobs()]
        self._submit(jobs)
        self._next_s = max(self._next_s, time.monotonic() - 1.0) + len(jobs) * self._shape.producers / self._shape.rate
        self.pause_s(max(0.0, self._next_s - time.monotonic()))

    def end(self) -> None:
        super().end()
        self._client.close()

    def set_limits(self) -> None:
        """Before the first job that goes by one."""
        if "limited" in self._kinds:
            self._client.set_limit(LIMITED_TOPIC, concurrency=MOST, group_concurrency=MOST_OF_A_GROUP)
        if "ordered" in self._kinds:
            self._client.set_limit(ORDERED_TOPIC, sequence="continue")
            self._client.topics_set(ORDERED_TOPIC, backoff="fixed:0.2")  # all behind wait for it

    def _jobs(self) -> list[dict[str, Any]]:
        [kind] = self._rng.choices(self._kinds, self._weights)
        return self._graph() if kind == "graph" else [self._job(kind)]

    def _graph(self) -> list[dict[str, Any]]:
        """A thousand jobs at once, in layers: each waits for some of the layer before, the last one for all of it."""
        jobs, before = list[dict[str, Any]](), list[UUID]()
        for width in (*[WIDTH] * LAYERS, 1):
            layer: list[dict[str, Any]] = [
                {"name": "child", "args": {}, "id": uuid7(), "on_failure": "run"} for _ in range(width)
            ]
            for job in layer:
                job["after"] = before if width == 1 else self._rng.sample(before, min(len(before), 3))
            jobs += layer
            before = [job["id"] for job in layer]
        return [_without_empty_after(job) for job in jobs]

    def _job(self, kind: str) -> dict[str, Any]:
        name, args, options = KINDS[kind](self._rng)
        if kind == "ordered":  # only of one producer is it known which was the first
            options["group_key"] += f" of producer {self._number}"
        if kind == "child":
            options["after"] = self._rng.sample([*self._recent], min(len(options["after"]), len(self._recent)))
        job = _without_empty_after({"name": name, "args": args, "id": uuid7(), **options})
        if kind != "unique":  # which may turn out to be another one
            self._recent.append(job["id"])
        return job

    def _submit(self, jobs: list[dict[str, Any]]) -> None:
        for job in jobs:
            facts = {fact: job[fact] for fact in NOTED if fact in job}
            if "after" in facts:
                facts["after"] = [str(one) for one in facts["after"]]
            self._ledger.write("intent", job["id"], **facts)
        started_s = time.monotonic()
        while time.monotonic() < started_s + PATIENCE_S and not self._over.is_set():
            try:
                stored = self._client.submit_many(jobs)  # type: ignore[arg-type]
            except pulse.PulseError:
                self.pause_s(self._rng.uniform(0.02, 0.1))
            else:
                for job, there in zip(jobs, stored, strict=True):
                    if job["id"] == there:
                        self._ledger.write("acked", there)
                    else:
                        self._ledger.write("not_new", job["id"], other=str(there))
                self.acked += len(jobs)
                return
        self._recent.clear()  # nobody knows whether they are there
        self.gave_up += not self._over.is_set()


class Load:
    def __init__(
        self, socket: Path, ledger: Ledger, shape: Shape, seed: int, operators: Sequence[Operator] = ()
    ) -> None:
        self.producers = [
            Producer(socket, ledger, shape, number, random.Random(f"{seed}/{number}"))
            for number in range(shape.producers)
        ]
        self._operators = operators
        self._threads: list[Turns] = [*self.producers, *operators]

    def __enter__(self) -> Self:
        for producer in self.producers[:1]:
            producer.set_limits()
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
        return sum(producer.acked for producer in self.producers)

    @property
    def gave_up(self) -> int:
        """Submits that were never acknowledged."""
        return sum(producer.gave_up for producer in self.producers)

    def rest(self) -> None:
        for thread in self._threads:
            thread.rest()
        for thread in self._threads:
            thread.wait_rest()
        for one in self._operators:
            one.conclude()

    def go_on(self) -> None:
        for thread in self._threads:
            thread.go_on()
