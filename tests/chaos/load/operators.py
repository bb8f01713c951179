"""
Operators change things while they are in use, and write each change down before and when it is acknowledged.

They ask through the SDK, the command line and SQL. Who gets no answer does not know whether it was done, and waits
until it cannot be done any more before asking again (`calls`).
"""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import UUID

import asyncpg

import pulse
from pulse.common.ids import uuid7
from pulse.errors import BadRequestError
from tests.chaos.database import AWAY, Sql
from tests.chaos.load.ledger import GOVERNED_TOPIC
from tests.chaos.load.turns import PATIENCE_S, Turns
from tests.chaos.verdicts.calls import ASKED, DONE, GATE, POLICY, QUIET_S
from tests.chaos.verdicts.timetable import Rule
from tests.support.waiting import until

if TYPE_CHECKING:
    from tests.chaos.site import Site

Act: TypeAlias = Callable[[], object]
BUSY_S: Final = (0.2, 1.0)  # between two acts
SCHEDULES: Final = 10
SOME: Final = 5
OPERATE_S: Final = 2.0
USAGE: Final = 2  # exit code of a command that was asked for wrongly
CATCH_UPS: Final = ("all", "all", "latest", "skip")
OVERLAPS: Final = ("allow", "allow", "skip", "queue", "cancel")
EVERY_S: Final = (0.7, 1.0, 1.5, 2.0, 3.0, 5.0)
CRON_S: Final = (1, 2, 3, 5, 10)
ENDS_S: Final = (10.0, 60.0)
AT_S: Final = (0.5, 20.0)
JITTER: Final = 0.8  # of the interval
OVERLAPPING_S: Final = (0.0, 2.5)  # how long a job of a schedule takes whose jobs may meet
PAUSED_S: Final = (0.5, 4.0)
ALL_PAUSED_S: Final = (0.3, 1.0)  # nothing at all goes on meanwhile
PAUSED: Final = ("", GOVERNED_TOPIC, GOVERNED_TOPIC, "default", "ticks")
OPTIONS: Final[Mapping[str, Sequence[Any]]] = {
    "max_attempts": (1, 2, 3, 4),
    "max_crashes": (3, 4, 5),  # with 2 the deaths of neighbours could use it up
    "backoff": ("fixed:0.5", "list:0.2,1,2", "exponential:0.5:4", "quadratic", "quadratic:0.3", None),
    "timeout_s": (5.0, 10.0, 30.0),
    "stall_s": (10.0, 20.0),
    "lease_s": (4.0, 5.0, 6.0),
    "ageing_s": (0.0, 1.0, 30.0),
    "retention_s": (3600.0, 86_400.0),  # nothing goes while it is evidence
    "retention_dead_s": (3600.0,),
}


class Staff(Turns):
    """
    One operator.

    Args:
        site: Of what.
        rng: Chooses.
    """

    def __init__(self, site: Site, rng: random.Random) -> None:
        super().__init__()
        self.site = site
        self.rng = rng
        self.client = site.client()
        self._sql: Sql | None = None
        self._open: dict[str, tuple[UUID, dict[str, Any], Act, float]] = {}

    @property
    def sql(self) -> Sql:
        """A connection of its own."""
        if self._sql is None:
            self._sql = Sql(self.site.database.dsn)
        return self._sql

    def run(self) -> None:
        """Work until told to end."""
        try:
            super().run()
        finally:
            self.client.close()
            if self._sql is not None:
                self._sql.close()

    def turn(self) -> None:
        """Ask again for what got no answer, as soon as that may be; one act; a rest."""
        for target, (call, facts, act, again_s) in list(self._open.items()):
            if time.monotonic() >= again_s:
                self._try(target, call, facts, act)
        self.act()
        self.pause_s(self.rng.uniform(*BUSY_S))

    def act(self) -> None:
        """One change."""
        raise NotImplementedError

    def conclude(self) -> None:
        """Leave nothing that keeps others from working; it rests."""

    def is_free(self, target: str) -> bool:
        """Whether nothing is open that was asked for it."""
        return target not in self._open

    def ask(self, target: str, what: str, act: Act, **facts: Any) -> bool:
        """Ask for a change; whether it is known to be done."""
        return self._try(target, uuid7(), {"target": target, "what": what, **facts}, act)

    def _try(self, target: str, call: UUID, facts: dict[str, Any], act: Act) -> bool:
        self.site.ledger.write(ASKED, call, **facts)
        try:
            act()
        except BadRequestError:
            if call == self._open.get(target, (None,))[0]:  # it was right when it was asked for first
                self._open[target] = (call, facts, act, inf)
                return False
            raise
        except (pulse.PulseError, *AWAY):
            self._open[target] = (call, facts, act, time.monotonic() + QUIET_S)
            return False
        self.site.ledger.write(DONE, call)
        self._open.pop(target, None)
        return True

    def by_sql(self, sql: str, *values: object) -> None:
        """Change something by SQL, once."""
        with contextlib.suppress(asyncpg.UniqueViolationError):  # what is made a second time is there
            self.sql.rows(sql, *values, within_s=0)


class Planner(Staff):
    """Makes schedules, changes, pauses, resumes and triggers them."""

    def __init__(self, site: Site, rng: random.Random) -> None:
        super().__init__(site, rng)
        self._rules: dict[UUID, Rule] = {}
        self._paused: set[UUID] = set()

    def act(self) -> None:
        """One change of one schedule."""
        free = [one for one in self._rules if self.is_free(str(one))]
        if len(self._rules) < SCHEDULES or (len(self._rules) < 2 * SCHEDULES and self.rng.random() < 0.1):
            self._create()
        elif free:
            schedule = self.rng.choice(free)
            if schedule in self._paused:
                self._resume(schedule)
            else:
                self.rng.choice((self._pause, self._pause, self._change, self._trigger))(schedule)

    def _create(self) -> None:
        schedule, rule = uuid7(), self._rule(self.rng.choice(("every", "every", "cron", "cron", "at")))
        lasts_s = self.rng.uniform(*OVERLAPPING_S) if rule.overlap in {"skip", "cancel"} else 0.0
        name, args = ("long", {"seconds": lasts_s}) if lasts_s else ("tick", {})
        self._rules[schedule] = rule
        words = {**_words(rule), "catch_up": rule.catch_up, "overlap": rule.overlap}
        act: Act = partial(self.client.schedules_create, name, args, id=schedule, **words)
        if rule.kind != "at" and self.rng.random() < 0.3:
            given, values = _sql_words({"name": name, "args": json.dumps(args), "id": schedule, **words})
            act = partial(self.by_sql, f"SELECT pulse.create_schedule({given})", *values)
        self.ask(str(schedule), "create", act, rule=rule.facts())

    def _change(self, schedule: UUID) -> None:
        old = self._rules[schedule]
        if old.kind == "at":
            return
        act: Act
        rule = replace(self._rule(old.kind), overlap=old.overlap)
        if old.ends_s is None and self.rng.random() < 0.3:  # what SQL leaves out stays as it is
            rule = replace(rule, ends_s=None, jitter_s=min(old.jitter_s, rule.step_s), catch_up=old.catch_up)
            given, values = _sql_words({"id": schedule, **_words(rule)})
            act = partial(self.by_sql, f"SELECT pulse.update_schedule({given})", *values)
        else:
            unset = ["ends_at"] if rule.ends_s is None else []
            words = {**_words(rule), "catch_up": rule.catch_up, "unset": unset}
            act = partial(self.client.schedules_update, schedule, **words)
        self._rules[schedule] = rule
        self.ask(str(schedule), "change", act, rule=rule.facts())

    def _pause(self, schedule: UUID) -> None:
        self._paused.add(schedule)
        act: Act = partial(self.client.schedules_pause, schedule)
        if self.rng.random() < 0.3:
            act = partial(self.by_sql, "SELECT pulse.pause_schedule($1)", schedule)
        self.ask(str(schedule), "pause", act)

    def _resume(self, schedule: UUID) -> None:
        self._paused.discard(schedule)
        act: Act = partial(self.client.schedules_resume, schedule)
        if self.rng.random() < 0.3:
            act = partial(self.by_sql, "SELECT pulse.resume_schedule($1)", schedule)
        self.ask(str(schedule), "resume", act)

    def _trigger(self, schedule: UUID) -> None:
        job = uuid7()
        body = {"id": schedule.bytes, "job_id": job.bytes}
        act: Act = partial(self.client.request, "schedules.trigger", body)
        if self.rng.random() < 0.3:
            act = partial(self.by_sql, "SELECT pulse.trigger_schedule($1, $2)", schedule, job)
        self.ask(str(schedule), "trigger", act, makes=str(job))

    def _rule(self, kind: str) -> Rule:
        now_s, rng = time.time(), self.rng
        catch_up, overlap = rng.choice(CATCH_UPS), rng.choice(OVERLAPS)
        if kind == "at":
            return Rule("at", 1.0, round(now_s + rng.uniform(*AT_S), 3), None, 0.0, catch_up)
        step_s = float(rng.choice(EVERY_S if kind == "every" else CRON_S))
        starts_s = round(now_s + rng.uniform(-2.0, 2.0), 3)
        ends_s = round(now_s + rng.uniform(*ENDS_S), 3) if rng.random() < 0.2 else None
        jitter_s = round(rng.uniform(0.0, JITTER * step_s), 3) if rng.random() < 0.3 else 0.0
        return Rule(kind, step_s, starts_s, ends_s, jitter_s, catch_up, overlap)


def _words(rule: Rule) -> dict[str, Any]:
    """When a rule occurs, in the words of the SDK."""
    if rule.kind == "at":
        return {"run_at": rule.starts_s}
    when = {"every_s": rule.step_s} if rule.kind == "every" else {"cron": f"{_seconds(int(rule.step_s))} * * * * *"}
    ends = {} if rule.ends_s is None else {"ends_at": rule.ends_s}
    return {**when, "starts_at": rule.starts_s, **ends, "jitter_s": rule.jitter_s}


def _seconds(step_s: int) -> str:
    return "*" if step_s == 1 else f"*/{step_s}"


def _sql_words(words: Mapping[str, object]) -> tuple[str, list[object]]:
    """Named arguments of a function, and their values."""
    casts = {"starts_at": "to_timestamp(${})", "ends_at": "to_timestamp(${})", "args": "${}::jsonb"}
    given = ", ".join(f"{name} => {casts.get(name, '${}').format(at)}" for at, name in enumerate(words, 1))
    return given, list(words.values())


class Governor(Staff):
    """Changes the policy of a topic, and pauses topics, or all, with and without an end."""

    def __init__(self, site: Site, rng: random.Random) -> None:
        super().__init__(site, rng)
        self._policy: dict[str, Any] = {}
        self._paused: dict[str, float] = {}

    def act(self) -> None:
        """One change."""
        for topic, until_s in list(self._paused.items()):
            if until_s <= time.monotonic() and self.is_free(GATE + topic):
                self._resume(topic)
        if not self._policy:
            self._set({option: self.rng.choice(values) for option, values in OPTIONS.items()})
        elif self.rng.random() < 0.5:
            some = self.rng.sample(sorted(OPTIONS), self.rng.randint(1, 3))
            self._set({option: self.rng.choice(OPTIONS[option]) for option in some})
        else:
            self._pause(self.rng.choice(PAUSED))

    def _set(self, policy: dict[str, Any]) -> None:
        target = POLICY + GOVERNED_TOPIC
        if not self.is_free(target):
            return
        self._policy |= policy
        way = self.rng.random()
        act: Act = partial(self.client.topics_set, GOVERNED_TOPIC, **policy)
        if way < 0.15 and None not in policy.values():  # unsetting is another command
            act = partial(self._command, policy)
        elif way < 0.4:
            act = partial(self.by_sql, "SELECT pulse.set_topic($1, $2::jsonb)", GOVERNED_TOPIC, json.dumps(policy))
        self.ask(target, "set", act, policy=policy)

    def _command(self, policy: Mapping[str, Any]) -> None:
        options = [word for name, value in policy.items() for word in (f"--{_option(name)}", str(value))]
        try:
            done = self.site.whole.command("ctl", "topics", "set", GOVERNED_TOPIC, *options)
        except subprocess.TimeoutExpired as error:
            raise pulse.PulseError(str(error)) from None
        assert done.returncode != USAGE, done.stderr
        if done.returncode:
            raise pulse.PulseError(done.stderr)

    def _pause(self, topic: str) -> None:
        if topic in self._paused or not self.is_free(GATE + topic):
            return
        lasts_s = round(self.rng.uniform(*(ALL_PAUSED_S if topic == "" else PAUSED_S)), 2)
        ends = topic == "" or self.rng.random() < 0.5
        self._paused[topic] = time.monotonic() + (0.0 if ends else lasts_s) + self.rng.choice((0.0, lasts_s))
        for_s = lasts_s if ends else None
        reason = self.rng.choice((None, "chaos"))
        self.ask(GATE + topic, "close", partial(self.client.pause, topic, reason, for_s=for_s), for_s=for_s)

    def _resume(self, topic: str) -> None:
        del self._paused[topic]
        self.ask(GATE + topic, "open", partial(self.client.resume, topic))

    def conclude(self) -> None:
        """Resume what is paused."""
        for topic in {*self._paused, *(one.removeprefix(GATE) for one in self._open if one.startswith(GATE))}:
            until(partial(self._is_opened, topic), f"{topic} is resumed", PATIENCE_S)
        self._paused.clear()

    def _is_opened(self, topic: str) -> bool:
        target = GATE + topic
        if target in self._open and self._open[target][3] > time.monotonic():
            return False
        self._open.pop(target, None)
        return self.ask(target, "open", partial(self.client.resume, topic))


def _option(name: str) -> str:
    return name.removesuffix("_s").replace("_", "-")


class Clerk(Staff):
    """Cancels what waits or runs, and starts dead jobs anew."""

    def __init__(self, site: Site, rng: random.Random) -> None:
        super().__init__(site, rng)
        self._revived: set[UUID] = set()

    def act(self) -> None:
        """One act."""
        with contextlib.suppress(pulse.PulseError):  # away, or no such job any more
            self.rng.choice((self._cancel, self._retry))()
        self.pause_s(OPERATE_S)

    def _cancel(self) -> None:
        found = self.client.jobs(status=self.rng.choice(["PENDING", "RUNNING", "RETRYING"]), limit=SOME).jobs
        self.client.cancel(*(job.id for job in found if job.schedule_id is None))

    def _retry(self) -> None:
        found = self.client.jobs(status=self.rng.choice(["DEAD_LETTERED", "CANCELED"]), limit=SOME).jobs
        fresh = [job.id for job in found if job.id not in self._revived and job.name != "deadly"]
        self._revived.update(fresh)
        if fresh:
            self.client.retry(*fresh)


def staff(site: Site, seed: int) -> list[Staff]:
    """One of each."""
    return [kind(site, random.Random(f"{seed}/{kind.__name__}")) for kind in (Planner, Governor, Clerk)]
