"""
What the nemesis will do, as data: the same seed, the same faults and loads, in the same order.

A run is a row of *epochs*, each a system of its own that is started, suffers, drains, is checked and stopped. How far a
run gets through its plan depends on the machine; what it does does not.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tests.chaos.faults.faults import FAULTS
from tests.chaos.load.load import WILD, Shape

STEPS: Final = 100  # more than an epoch has time for
BETWEEN_S: Final = (0.0, 4.0)
BESIDE: Final = 0.3  # how often a second fault strikes while the first is there
LATER_S: Final = (0.0, 1.5)
RATES: Final = (15.0, 60.0)
PER_PLACE: Final = 1.0  # jobs per second: a job takes a third of a second, and workers are away half of the time


@dataclass(frozen=True, slots=True)
class Blow:
    """One fault: when it strikes after the one before, how long it is held, and the seed of its choices."""

    name: str
    after_s: float
    held_s: float
    seed: int


@dataclass(frozen=True, slots=True)
class Pool:
    processes: int
    concurrency: int
    backend: str

    @classmethod
    def chosen(cls, rng: random.Random) -> Pool:
        return cls(rng.randint(1, 2), rng.choice([4, 8, 16]), rng.choice(["asyncio", "trio"]))

    @property
    def sizes(self) -> tuple[str, ...]:
        return ("--processes", str(self.processes), "--concurrency", str(self.concurrency))

    @property
    def options(self) -> tuple[str, ...]:
        return (*self.sizes, "--backend", self.backend)


@dataclass(frozen=True, slots=True)
class Epoch:
    """
    One system and what it suffers.

    Attributes:
        own: Its database is beside the supervisor, and can be stopped; else it is the supervisor's.
        pools: The first is the supervisor's own, the others were started by hand.
        steps: Blows one after the other; two together strike at almost the same time.
    """

    number: int
    own: bool
    shape: Shape
    seed: int
    pools: tuple[Pool, ...]
    steps: tuple[tuple[Blow, ...], ...]


def epochs(seed: int, names: Sequence[str]) -> Iterator[Epoch]:
    for number in itertools.count(1):
        rng = random.Random(f"{seed}/{number}")
        pools = [Pool.chosen(rng) for _ in range(rng.randint(2, 3))]
        places = sum(pool.processes * pool.concurrency for pool in pools)
        rate = round(min(rng.uniform(*RATES), places * PER_PLACE))
        yield Epoch(
            number=number, own=number % 2 == 1, shape=Shape(rate, rng.randint(1, 3), rng.choice([1, 5, 20]), WILD),
            seed=rng.getrandbits(32), pools=tuple(pools), steps=tuple(_step(rng, names) for _ in range(STEPS)),
        )  # fmt: skip


def _step(rng: random.Random, names: Sequence[str]) -> tuple[Blow, ...]:
    first = _blow(rng, names, BETWEEN_S)
    beside = _blow(rng, names, LATER_S)
    together = rng.random() < BESIDE
    return (first, beside) if together and _go_together(first, beside) else (first,)


def _go_together(first: Blow, beside: Blow) -> bool:
    one, other = FAULTS[first.name], FAULTS[beside.name]
    return one is not other and not one.alone and not other.alone and not (one.stalls and other.works)


def _blow(rng: random.Random, names: Sequence[str], after_s: tuple[float, float]) -> Blow:
    name = rng.choice(names)
    held_s = rng.uniform(*FAULTS[name].held_s)
    return Blow(name, round(rng.uniform(*after_s), 2), round(held_s, 2), rng.getrandbits(32))
