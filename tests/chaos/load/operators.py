"""Operators change schedules, policies, pauses and jobs while they are in use."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import pulse
from pulse.common.ids import uuid7
from tests.chaos.load.ledger import GOVERNED_TOPIC
from tests.chaos.load.turns import PATIENCE_S, Turns
from tests.support.waiting import until

if TYPE_CHECKING:
    from tests.chaos.site import Site

BUSY_S: Final = (0.2, 1.0)  # between two acts
SCHEDULES: Final = 20
SOME: Final = 5  # jobs that are cancelled or retried at once
CRON_S: Final = (1, 2, 3, 5, 10)
EVERY_S: Final = (0.7, 1.0, 1.5, 2.0, 3.0, 5.0)
PAUSED: Final = ("", GOVERNED_TOPIC, GOVERNED_TOPIC, "default", "ticks")
OPTIONS: Final[Mapping[str, Sequence[Any]]] = {
    "max_attempts": (1, 2, 3, 4),
    "max_crashes": (3, 4, 5),  # with 2 the deaths of neighbours could use it up
    "backoff": ("fixed:0.5", "list:0.2,1,2", "exponential:0.5:4", "quadratic", "quadratic:0.3", None),
    "timeout_s": (5.0, 10.0, 30.0),
    "stall_s": (10.0, 20.0),
    "lease_s": (4.0, 5.0, 6.0),
    "ageing_s": (0.0, 1.0, 30.0),
    "retention_s": (3600.0, 86_400.0),  # jobs are evidence: none may be deleted before the end
    "retention_dead_s": (3600.0,),
}


class Operator(Turns):
    def __init__(self, site: Site, rng: random.Random) -> None:
        super().__init__()
        self.rng = rng
        self.client = site.client()
        self.done = 0

    def run(self) -> None:
        try:
            super().run()
        finally:
            self.client.close()

    def turn(self) -> None:
        with contextlib.suppress(pulse.PulseError):
            self.act()
            self.done += 1
        self.pause_s(self.rng.uniform(*BUSY_S))

    def act(self) -> None:
        raise NotImplementedError

    def conclude(self) -> None:
        """Undo what keeps jobs from running; it rests."""


class Planner(Operator):
    def __init__(self, site: Site, rng: random.Random) -> None:
        super().__init__(site, rng)
        self._made: list[UUID] = []

    def act(self) -> None:
        if len(self._made) < SCHEDULES:
            self._create()
        schedule = self.rng.choice(self._made)
        client = self.client
        self.rng.choice(
            (client.schedules_pause, client.schedules_resume, client.schedules_resume, client.schedules_trigger)
        )(schedule)
        client.schedules_update(schedule, catch_up=self.rng.choice(("all", "latest", "skip")))

    def _create(self) -> None:
        rng, schedule = self.rng, uuid7()
        when: dict[str, Any] = rng.choice(
            (
                {"every_s": rng.choice(EVERY_S), "jitter_s": rng.choice((0.0, 0.5))},
                {"cron": f"*/{rng.choice(CRON_S)} * * * * *"},
                {"run_at": time.time() + rng.uniform(0.5, 20.0)},
            )
        )
        overlap = rng.choice(("allow", "skip", "queue", "cancel"))
        # Where none can pile up, jobs may still run when the next occurrence is due.
        lasts_s = rng.uniform(0.0, 2.5) if overlap in {"skip", "cancel"} else 0.0
        self.client.schedules_create("long", {"seconds": lasts_s}, id=schedule, overlap=overlap, **when)
        self._made.append(schedule)


class Governor(Operator):
    """Changes the policy of a topic, and pauses topics, or all, with and without an end."""

    def act(self) -> None:
        some = self.rng.sample(sorted(OPTIONS), self.rng.randint(1, 3))
        policy: dict[str, Any] = {option: self.rng.choice(OPTIONS[option]) for option in some}
        self.client.topics_set(GOVERNED_TOPIC, **policy)
        topic = self.rng.choice(PAUSED)
        for_s = self.rng.uniform(0.3, 1.0) if topic == "" else self.rng.choice((None, self.rng.uniform(0.5, 4.0)))
        self.client.pause(topic, for_s=for_s)
        self.client.resume(self.rng.choice(PAUSED))

    def conclude(self) -> None:
        until(self._are_open, "all topics are resumed", PATIENCE_S)

    def _are_open(self) -> bool:
        with contextlib.suppress(pulse.PulseError):
            for topic in {*PAUSED}:
                self.client.resume(topic)
            return True
        return False


class Clerk(Operator):
    def __init__(self, site: Site, rng: random.Random) -> None:
        super().__init__(site, rng)
        self._revived: set[UUID] = set()

    def act(self) -> None:
        self.rng.choice((self._cancel, self._retry))()

    def _cancel(self) -> None:
        found = self.client.jobs(status=self.rng.choice(["PENDING", "RUNNING", "RETRYING"]), limit=SOME).jobs
        self.client.cancel(*(job.id for job in found if job.schedule_id is None))

    def _retry(self) -> None:
        found = self.client.jobs(status=self.rng.choice(["DEAD_LETTERED", "CANCELED"]), limit=SOME).jobs
        fresh = [job.id for job in found if job.id not in self._revived and job.name != "deadly"]
        self._revived.update(fresh)
        if fresh:
            self.client.retry(*fresh)


def operators(site: Site, seed: int) -> list[Operator]:
    return [kind(site, random.Random(f"{seed}/{kind.__name__}")) for kind in (Planner, Governor, Clerk)]
