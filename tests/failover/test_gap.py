"""The rules of a failover that has lost something: each is broken once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import UUID

import pytest

from tests.chaos.load.ledger import Line
from tests.chaos.verdict import Database, Pair, Row
from tests.failover.gap import Gap, gone, wrong

GAP: Final = Gap(10.0, 20.0)
KEPT, RAN, DONE, UNSEEN, TWICE, FAILED = (UUID(int=number) for number in range(1, 7))


def line(act: str, job: UUID, at_s: float, attempt: int = 0, **facts: Any) -> Line:
    return Line(act, job, attempt, 7, at_s, facts, 1)


@dataclass
class World:
    """Five jobs that were acknowledged in the gap and are gone, and two that the database has."""

    lines: list[Line] = field(default_factory=list[Line])
    claims: set[Pair] = field(default_factory=set[Pair])
    told: set[UUID] = field(default_factory=lambda: {RAN, DONE})
    attempts: int = 1001

    def __post_init__(self) -> None:
        for job, at_s in ((KEPT, 9.0), (TWICE, 9.0), (RAN, 11.0), (DONE, 11.0), (UNSEEN, 11.0), (FAILED, 11.0)):
            self.lines += [line("intent", job, at_s), line("acked", job, at_s + 0.1)]
        for job, attempt, start_s, end_s in (
            (KEPT, 1, 9.5, 9.6), (TWICE, 1, 9.5, 15.0), (TWICE, 1001, 22.0, 22.1), (DONE, 1, 11.5, 11.6),
        ):  # fmt: skip
            self.lines += [
                line("start", job, start_s, attempt, name="short"), line("end", job, end_s, attempt, how="ok")
            ]  # fmt: skip
        self.lines += [line("start", RAN, 11.5, 1, name="hold"), line("end", RAN, 23.0, 1, how="ok")]
        self.lines += [line("start", FAILED, 11.5, 1, name="flaky"), line("end", FAILED, 11.6, 1, how="ValueError")]
        self.claims |= {(KEPT, 1), (TWICE, 1), (TWICE, 1001)}

    def wrong(self) -> list[str]:
        jobs = {KEPT: Row("COMPLETED", 1, "short"), TWICE: Row("COMPLETED", self.attempts, "short")}
        history = {(TWICE, 1): "released"}
        self.lines.sort(key=lambda one: one.at_s)
        return wrong(self.lines, Database(jobs, history, frozenset(self.claims)), GAP, self.told)


def test_what_a_gap_may_lose() -> None:
    """Jobs, claims and ends of the gap; what workers had is named, and the rest only the producers know."""
    world = World()
    assert world.wrong() == []
    assert gone(world.lines, Database({KEPT: Row("COMPLETED", 1, "short")})) == 5


def untell(job: UUID) -> Callable[[World], None]:
    return lambda world: world.told.discard(job)


def lose_earlier(world: World) -> None:
    world.lines = [replace(one, at_s=9.4) if one.act == "acked" and one.job == UNSEEN else one for one in world.lines]


def start_again(world: World) -> None:
    world.lines.append(line("start", RAN, 12.0, 1, name="hold"))


def overlap(world: World) -> None:
    world.lines.append(line("overlap", RAN, 12.0, 1, other=9))


def claim_nothing(world: World) -> None:
    world.claims.discard((TWICE, 1001))


@pytest.mark.parametrize(("spoil", "words"), [
    (untell(RAN), "(hold) is gone, a worker has its start, and nobody tells of it"),
    (untell(DONE), "(short) is gone, a worker has its end, and nobody tells of it"),
    (lambda world: world.told.add(KEPT), "is told to be gone, and is there"),
    (lose_earlier, "was acknowledged -0.600 s after the cut, and is not there"),
    (start_again, "I5 an attempt starts once: 1"),
    (overlap, "I18 no two attempts of a job at the same time: 1"),
    (claim_nothing, "I9 only what was claimed starts: 1"),
])  # fmt: skip
def test_what_it_may_not(spoil: Callable[[World], None], words: str) -> None:
    world = World()
    spoil(world)
    found = world.wrong()
    assert len(found) == 1
    assert words in found[0]
