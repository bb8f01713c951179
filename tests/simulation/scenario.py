"""What a seed stands for: machines, workers, limits, and jobs with what their handlers will do."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from tests.simulation.machine.worker import Act, Wait
from tests.support.store.limit_rows import Limit

LEASE_S: Final = 8.0
HEARTBEAT_S: Final = 2.0
SWEEP_S: Final = 2.0
POLL_S: Final = 1.0
OBEY_S: Final = 1.0
LIMITED_SHARE: Final = 0.3  # of the seeds
WORKFLOW_SHARE: Final = 0.35
STALLS: Final = -1.0  # in the place of a timeout: it is the silence that is bounded


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a worker runs, again and again; *foreign*: ``uid`` or ``pidns``, of another user or in another pidns."""

    name: str
    machine: int
    names: tuple[str, ...]
    concurrency: int
    foreign: str
    pooled: bool
    leads_group: bool
    leaks: bool


@dataclass(frozen=True, slots=True)
class Job:
    """
    One job; *acts*: what its handler does the first, second ... time, then as the last time.

    Before that it has *waits*; *after*: the jobs that it waits for itself, *on_failure*: what it does if one fails.
    """

    id: bytes
    label: str
    name: str
    acts: tuple[Act, ...]
    at_s: float
    priority: int
    max_attempts: int
    timeout_s: float | None
    delay_s: float
    topic: str | None = None
    group: str | None = None
    after: tuple[bytes, ...] = ()
    on_failure: str | None = None
    waits: tuple[Wait, ...] = ()


@dataclass(frozen=True, slots=True)
class SignalPlan:
    """A signal that somebody sends to a job; its *key* is also what it says."""

    job: bytes
    name: str
    key: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """
    All of it.

    Attributes:
        limits: By name.
        limit_of: Topics that go by the limit of another name.
        signals: What is sent to the jobs that wait; empty: none does.
        by_hand: A job that somebody cancels, and when: by SQL that does not tell those that wait for it.
    """

    machines: int
    slots: tuple[Slot, ...]
    jobs: tuple[Job, ...]
    has_peerpidfd: bool
    trouble_s: float
    slowness: float
    limits: Mapping[str, Limit] = field(default_factory=dict)
    limit_of: Mapping[str, str] = field(default_factory=dict)
    signals: tuple[SignalPlan, ...] = ()
    by_hand: tuple[bytes, float] | None = None

    @property
    def has_workflows(self) -> bool:
        return any(job.after or job.waits for job in self.jobs)


def draw(chance: random.Random) -> Scenario:
    machines = chance.choice((1, 2))
    slots = tuple(_slot(chance, number, machines) for number in range(machines + chance.randrange(1, 3)))
    jobs = tuple(_job(chance, number) for number in range(chance.randrange(4, 13)))
    return Scenario(machines, slots, jobs, chance.random() < 0.8, chance.uniform(4.0, 20.0), chance.choice((1, 1, 8)))


def with_limits(chance: random.Random, drawn: Scenario) -> Scenario:
    """
    *drawn*, or the same with limits and groups; in a world without a limit no job has a group.

    Args:
        chance: One of its own: what the other seeds stand for does not change.
        drawn: The scenario.
    """
    if chance.random() >= LIMITED_SHARE:
        return drawn
    name = chance.choice(("default", "other", "both"))
    limit = Limit(
        chance.choice((None, 1, 1, 2)), chance.choice((None, 1, 1, 2)), chance.choice((None, None, None, 0.5, 3.0))
    )
    groups = chance.choice(((None,), ("a", "b"), (None, "a", "b", "c")))
    jobs = tuple(
        replace(job, topic=chance.choice(("default", "default", "other")), group=chance.choice(groups))
        for job in drawn.jobs
    )
    limit_of = {"default": name, "other": name} if name == "both" else {}
    return replace(drawn, jobs=jobs, limits={name: limit}, limit_of=limit_of)


def with_workflows(chance: random.Random, drawn: Scenario) -> Scenario:
    """*drawn*, or the same with jobs that wait for others, and for signals; *chance* is one of its own, as above."""
    if chance.random() >= WORKFLOW_SHARE:
        return drawn
    jobs: list[Job] = []
    for job in drawn.jobs:
        parents = chance.sample(jobs, min(len(jobs), chance.choice((0, 0, 1, 1, 2, 3))))
        waits = tuple(
            Wait(chance.choice(("go", "go", "pay")), chance.choice((None, None, 0.0, 1.0, 6.0)))
            for _ in range(chance.choice((0, 0, 1, 2, 3)))
        )
        jobs.append(
            replace(
                job, after=tuple(one.id for one in parents), on_failure=chance.choice((None, "run")), waits=waits,
                at_s=max([job.at_s, *(one.at_s for one in parents)]),
            )
        )  # fmt: skip
    signals = tuple(
        SignalPlan(job.id, wait.name, f"{job.label}.{number}", chance.choice((0.0, chance.uniform(0.0, 15.0))))
        for job in jobs
        for number, wait in enumerate(job.waits)
    )
    waited_for = [one for job in jobs for one in job.after]
    by_hand = (chance.choice(waited_for), chance.uniform(1.0, 10.0)) if waited_for and chance.random() < 0.3 else None
    return replace(drawn, jobs=tuple(jobs), signals=signals, by_hand=by_hand)


def _slot(chance: random.Random, number: int, machines: int) -> Slot:
    first = number < machines
    return Slot(
        f"w{number}", number % machines, ("work", "rare", "tells") if first or chance.random() < 0.5 else ("work",),
        chance.randrange(1, 4), "" if first or chance.random() < 0.8 else chance.choice(("uid", "pidns")),
        chance.random() < 0.4, chance.random() < 0.5, chance.random() < 0.15,
    )  # fmt: skip


def _job(chance: random.Random, number: int) -> Job:
    acts, timeout_s = _acts(chance)
    return Job(
        hashlib.blake2b(f"{number} {chance.random()}".encode(), digest_size=16).digest(), f"job{number}",
        "tells" if timeout_s == STALLS else "rare" if chance.random() < 0.2 else "work", acts,
        chance.choice((0.0, chance.uniform(0.0, 10.0))), chance.choice((0, 0, 0, 5, -5)), chance.randrange(1, 4),
        None if timeout_s == STALLS else timeout_s, chance.choice((0.0, 0.0, 0.0, chance.uniform(0.0, 4.0))),
    )  # fmt: skip


def _acts(chance: random.Random) -> tuple[tuple[Act, ...], float | None]:
    ok = Act("ok", _seconds(chance))
    kind = chance.choices(
        ("ok", "error", "retry", "discard", "snooze", "crash", "hang", "busy"), (10, 2, 1, 1, 1, 3, 1, 2)
    )[0]
    if kind == "ok":
        return (ok,), chance.choice((None, None, 1.0, 20.0))
    bad = Act(kind, chance.uniform(4.0, 12.0) if kind == "busy" else _seconds(chance))
    times = chance.choice((1, 1, 2, 9))
    return (bad,) * times + (ok,), chance.choice((1.0, 1.0, STALLS)) if kind == "hang" else None


def _seconds(chance: random.Random) -> float:
    return chance.choice((0.0, chance.expovariate(1.5), chance.expovariate(1.5), chance.uniform(3.0, 10.0)))
