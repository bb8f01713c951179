"""Schedules, policies and pauses are changed while actors are killed: no invariant of the audit is broken."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator, Mapping
from typing import Final

import pytest

from tests.chaos.load.ledger import GOVERNED_TOPIC
from tests.chaos.load.load import BRIEF, GOVERNED, Load, Shape
from tests.chaos.load.operators import Governor, Operator, Planner
from tests.chaos.site import Site, site
from tests.support.waiting import until

pytestmark = [
    pytest.mark.chaos, pytest.mark.process, pytest.mark.postgres, pytest.mark.system, pytest.mark.rest,
    pytest.mark.spare,
]  # fmt: skip

POOL: Final = ("--processes", "1", "--concurrency", "8")
BETWEEN_S: Final = 2.0  # two kills
LOCKED_S: Final = 1.5
SEED: Final = 1


@contextlib.contextmanager
def operated(mix: Mapping[str, float], *kinds: type[Operator]) -> Iterator[tuple[Site, list[Operator]]]:
    with site(pool=POOL) as made:
        made.start()
        made.pool(*POOL)
        operators = [kind(made, random.Random(f"{SEED}/{kind.__name__}")) for kind in kinds]
        with Load(made.whole.path, made.ledger, Shape(20.0, mix=mix), SEED, operators) as load:
            yield made, operators
            load.rest()
            made.settle()
            made.drain()
            assert load.gave_up == 0
            assert made.report().wrong == []


def pass_time(seconds: float) -> None:
    over_s = time.monotonic() + seconds
    until(lambda: time.monotonic() > over_s, "the time", 2 * seconds)


def test_schedules_policies_and_pauses_change() -> None:
    """While the scheduler, the dispatcher and the pause actor are killed."""
    with operated({**BRIEF, **GOVERNED}, Planner, Governor) as (made, operators):
        for name in ("scheduler", "dispatcher", "pause"):
            pass_time(BETWEEN_S)
            pid = made.whole.pids()[name]
            os.kill(pid, signal.SIGKILL)
            made.whole.wait_actor(name, not_pid=pid)
        pass_time(BETWEEN_S)
    assert all(one.done > 5 for one in operators)


def test_jobs_expire_while_the_table_is_locked() -> None:
    """What expired meanwhile is not started by the claims that waited."""
    with operated({"perishable": 1}) as (made, _):
        with made.client() as client:
            client.pause(GOVERNED_TOPIC)
            pass_time(1.0)  # so that jobs wait
            [holder] = made.sql.hold()
            made.sql.on(holder, "BEGIN; LOCK TABLE pulse.jobs IN ACCESS EXCLUSIVE MODE")
            client.resume(GOVERNED_TOPIC)
        pass_time(LOCKED_S)
        made.sql.let_go([holder])
        until(lambda: made.sql.value("SELECT count(*) FROM pulse.attempts WHERE outcome = 'expired'"), "jobs expire")
