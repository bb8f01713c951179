"""Schedules, policies and pauses are changed while actors are killed: nothing fires twice, and nothing is lost."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Iterator, Mapping
from typing import Final

import pytest

from tests.chaos.faults.fault import actors, send
from tests.chaos.load.ledger import GOVERNED_TOPIC
from tests.chaos.load.load import BRIEF, GOVERNED, Load, Shape
from tests.chaos.load.operators import Governor, Planner, Staff
from tests.chaos.site import Report, Site, site
from tests.support.waiting import is_alive, until
from tests.support.whole import WHOLE

pytestmark = [pytest.mark.chaos, pytest.mark.process, pytest.mark.postgres, pytest.mark.system, pytest.mark.rest]

POOL: Final = ("--processes", "1", "--concurrency", "8")
LOCKED_S: Final = 1.5
KILLS: Final = 3 if WHOLE else 2
BETWEEN_S: Final = 2.0
SEED: Final = 1


class Operated:
    """
    A system with operators.

    Args:
        site: It runs.
        load: It works.
    """

    def __init__(self, site: Site, load: Load) -> None:
        self.site = site
        self.load = load

    def wait(self, seconds: float) -> None:
        """Let them go on for a while."""
        over_s = time.monotonic() + seconds
        until(lambda: time.monotonic() > over_s, "the time", 2 * seconds)

    def kill(self, name: str) -> None:
        """SIGKILL of an actor, until another one is there."""
        pid = until(lambda: actors(self.site).get(name, 0), f"{name} runs")
        assert send(pid, signal.SIGKILL)
        until(lambda: not is_alive(pid) and actors(self.site).get(name) not in {None, pid}, f"another {name}")

    def report(self) -> Report:
        """What became of it when all is done."""
        self.load.rest()
        self.site.settle()
        self.site.drain()
        assert self.load.gave_up == 0
        return self.site.report()


@contextlib.contextmanager
def operated(mix: Mapping[str, float], *kinds: type[Staff]) -> Iterator[Operated]:
    """A system with two pools, a load, and those operators."""
    with site(pool=POOL) as made:
        made.start()
        made.pool(*POOL)
        with made.client() as client:
            client.schedules_create("tick", every_s=0.5)
        staff = [kind(made, random.Random(f"{SEED}/{kind.__name__}")) for kind in kinds]
        with Load(made.whole.path, made.ledger, Shape(20.0, mix=mix), SEED, staff) as load:
            yield Operated(made, load)


@pytest.mark.spare
def test_the_scheduler_is_killed() -> None:
    """Again and again, while schedules are made, changed, paused, resumed and triggered."""
    with operated(BRIEF, Planner) as system:
        for _ in range(KILLS):
            system.wait(BETWEEN_S)
            system.kill("scheduler")
        system.wait(BETWEEN_S)
        found = system.report()
    assert found.wrong == []
    assert found.counts["schedules"] > 5
    assert found.counts["operator calls"] > 10
    assert found.counts["occurrences reckoned"] > 5


@pytest.mark.spare
def test_policies_and_pauses_change() -> None:
    """While the dispatcher, and who tells it of them, are killed."""
    with operated({**BRIEF, **GOVERNED, "faulty": 30, "perishable": 30}, Governor) as system:
        for name in ("dispatcher", "pause"):
            system.wait(BETWEEN_S)
            system.kill(name)
        system.wait(BETWEEN_S)
        found = system.report()
    assert found.wrong == []
    assert found.counts["operator calls"] > 5
    assert found.counts["expired"] > 0


@pytest.mark.spare
def test_jobs_expire_while_the_table_is_locked() -> None:
    """What ran out of time meanwhile is not started by the claims that waited."""
    with operated({"perishable": 1}) as system:
        for _ in range(KILLS):
            with system.site.client() as client:
                client.pause(GOVERNED_TOPIC)
                system.wait(1.0)  # so that jobs wait
                [holder] = system.site.sql.hold()
                system.site.sql.on(holder, "BEGIN; LOCK TABLE pulse.jobs IN ACCESS EXCLUSIVE MODE")
                client.resume(GOVERNED_TOPIC)
            system.wait(LOCKED_S)
            system.site.sql.let_go([holder])
        found = system.report()
    assert found.wrong == []
    assert found.counts["expired"] > 0


def test_an_operator_who_gets_no_answer_asks_again() -> None:
    """Not before the earlier try can be on its way no more; until then it is written down as open."""
    with site(pool=POOL) as made:
        planner = Planner(made, random.Random(SEED))
        assert not planner.ask("target", "pause", planner.client.ping)
        assert not planner.is_free("target")
        assert [line.act for line in made.lines()] == ["asked"]
