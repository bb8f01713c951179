"""The scene `limits`: what claims under limits and of groups cost, how a rate is kept, how soon a slot is taken."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bench.drain import Work, drained, install
from bench.load import submit
from bench.recovery_scene import BenchError
from bench.results import Sample
from bench.scale import put
from bench.stage import Sql, Stage
from pulse.store.connections.pool import Target
from pulse.store.rows import Claim, Completion, GroupLevel
from pulse.store.store import Store

CLAIM: Final = 100  # jobs of one claim; and groups that it names
MOST: Final = 2  # jobs of one group in a claim, so that it need not lock what others will have
FIRST: Final = 5  # that are not looked at: connections, plans, pages
LEASE_S: Final = 3600.0
SLOTS: Final = 1000
RATE: Final = 100.0
BURST: Final = 10
PAUSE_S: Final = 0.01  # of one that waits for tokens
WORKER: Final = "bench"
PLAIN: Final = "claim of 100, nothing in use"
# The n-th row goes to group n modulo $2, where that is not 0.
DUE: Final = """
    INSERT INTO pulse.jobs (id, topic, name, args, max_attempts, group_key, next_run_at)
    SELECT pulse.uuid7(), 'default', 'noop', '{}', 5, CASE $2::int WHEN 0 THEN NULL ELSE 'group-' || n % $2::int END,
           now() - interval '1 hour' + n * interval '1 microsecond'
    FROM generate_series(1, $1::int) AS n"""

GROUPED: Final = "UPDATE pulse.jobs SET group_key = 'group-' || hashtext(id::text) % GROUPS"
BETWEEN: Final = """
    SELECT 1000 * percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM r.started_at - r.before))
    FROM (SELECT j.started_at, lag(j.completed_at) OVER (ORDER BY j.started_at) AS before FROM pulse.jobs j) AS r"""


@dataclass(frozen=True, slots=True)
class Case:
    """
    What is in use.

    Attributes:
        groups: How many groups the jobs have; 0: none has one.
        policy: Of the limit; None: there is no limit.
    """

    name: str
    groups: int = 0
    policy: dict[str, object] | None = None


def cases(groups: int) -> list[Case]:
    """All that is compared with plain claims."""
    some = f"{groups:,} groups"
    return [
        Case("claim of 100, one limit of 1000", policy={"concurrency": SLOTS}),
        Case(f"claim of 100, {some}, no limit", groups),
        Case(f"claim of 100, {some}, limit 1 each", groups, {"group_concurrency": 1}),
        Case(
            f"claim of 100, {some}, limit 1 each, 1000 in all", groups, {"concurrency": SLOTS, "group_concurrency": 1}
        ),
        Case(f"claim of 100, {some}, a rate for each", groups, {"group_rate": 1000.0}),
        Case(f"claim of 100, {some}, sequences", groups, {"sequence": "continue"}),
    ]


class Claims:
    """Claims one batch after the other, of the next groups each time, and ends them."""

    def __init__(self, store: Store, groups: int, begin_s: float) -> None:
        self._store = store
        self._begin_s = begin_s
        self._groups: list[str | None] = [f"group-{number}" for number in range(groups)] or [None]
        self._next = 0

    async def once(self) -> list[Claim]:
        """One claim."""
        count = min(CLAIM, len(self._groups))
        named = [self._groups[(self._next + number) % len(self._groups)] for number in range(count)]
        self._next += count
        levels = [(GroupLevel("default", group, 0), self._begin_s) for group in named]
        claims, _ = await self._store.limited.claim(
            levels, [WORKER], [0] * CLAIM, LEASE_S, most=MOST if count > 1 else None
        )
        return claims

    async def end(self, claims: Sequence[Claim]) -> None:
        """They are completed."""
        await self._store.complete([Completion(one.id, one.attempt, WORKER, None) for one in claims])


async def _claim_ms(dsn: str, case: Case | None, tries: int) -> float:
    """The median of *tries* claims of 100; the jobs of each are done before the next one."""
    store = Store(Target(dsn, "pulse bench"))
    began_s = time.time() - 2 * 3600.0
    limited = Claims(store, 0 if case is None else case.groups, began_s)
    times: list[float] = []
    try:
        for _ in range(FIRST + tries):
            at_s = time.perf_counter()
            if case is None:
                claims = await store.claim([], [WORKER], [0] * CLAIM, LEASE_S, levels=[("default", 0, began_s)])
            else:
                claims = await limited.once()
            times.append(1000 * (time.perf_counter() - at_s))
            if len(claims) != CLAIM:
                raise BenchError(f"{'plain' if case is None else case.name}: a claim returned {len(claims)} jobs")
            await limited.end(claims)
    finally:
        store.close()
    return statistics.median(times[FIRST:])


def claim_ms(stage: Stage, case: Case | None) -> float:
    """The same in a database of its own."""
    tries = stage.size.limit_tries
    with stage.fresh() as dsn:
        asyncio.run(install(dsn))
        with Sql(dsn) as sql:
            groups = 0 if case is None else case.groups
            put(sql, DUE, 2 * max((FIRST + tries) * CLAIM, groups), groups)
            if case is not None and case.policy is not None:
                sql.run("SELECT pulse.set_limit('default', NULL, $1)", json.dumps(case.policy))
            sql.run("ANALYZE")
        return asyncio.run(_claim_ms(dsn, case, tries))


async def _starts(dsn: str, seconds: float) -> float:
    """Starts per second under a rate, beyond the burst, of one that asks whenever it may."""
    store = Store(Target(dsn, "pulse bench"))
    claims = Claims(store, 0, time.time() - 2 * 3600.0)
    try:
        await claims.end(await claims.once())  # the burst
        began_s, started = time.perf_counter(), 0
        while time.perf_counter() - began_s < seconds:
            found = await claims.once()
            started += len(found)
            if found:
                await claims.end(found)
            await asyncio.sleep(PAUSE_S)
        return started / (time.perf_counter() - began_s)
    finally:
        store.close()


def rate_kept(stage: Stage) -> float:
    """How many jobs start per second under a rate of 100."""
    seconds = stage.size.rate_s
    with stage.fresh() as dsn:
        asyncio.run(install(dsn))
        with Sql(dsn) as sql:
            put(sql, DUE, int(2 * (seconds + 1) * RATE) + CLAIM, 0)
            sql.run("SELECT pulse.set_limit('default', NULL, $1)", json.dumps({"rate": RATE, "burst": BURST}))
        return asyncio.run(_starts(dsn, seconds))


async def _slots_ms(dsn: str, tries: int) -> float:
    store = Store(Target(dsn, "pulse bench"))
    claims = Claims(store, 0, time.time() - 2 * 3600.0)
    times: list[float] = []
    try:
        running = [one for _ in range(SLOTS // CLAIM) for one in await claims.once()]
        for number in range(FIRST + tries):
            at_s = time.perf_counter()
            await claims.end([running[number]])
            found = await claims.once()
            times.append(1000 * (time.perf_counter() - at_s))
            if len(found) != 1:
                raise BenchError(f"one slot of {SLOTS} was free, and {len(found)} jobs were claimed")
    finally:
        store.close()
    return statistics.median(times[FIRST:])


def slot_ms(stage: Stage) -> float:
    """From the report of a job to the claim of the next one, when all slots are taken."""
    with stage.fresh() as dsn:
        asyncio.run(install(dsn))
        with Sql(dsn) as sql:
            put(sql, DUE, 2 * SLOTS, 0)
            sql.run("SELECT pulse.set_limit('default', NULL, $1)", json.dumps({"concurrency": SLOTS}))
        return asyncio.run(_slots_ms(dsn, stage.size.limit_tries))


def drained_under(stage: Stage, groups: int, policy: Mapping[str, object] | None) -> float:
    """Jobs per second out of the queue of a whole system, whose jobs have these groups and this limit."""
    filled = [GROUPED.replace("GROUPS", str(groups))] if groups else []
    if policy is not None:
        filled.append(f"SELECT pulse.set_limit('default', NULL, '{json.dumps(policy)}')")
    work = Work("noop", stage.size.drain_jobs, filled="; ".join(filled))
    return drained(stage, work).rate


def turns_ms(stage: Stage) -> float:
    """From the end of a job to the start of the next one, where only one may run: the median, in a whole system."""
    with stage.fresh() as dsn, stage.system(dsn) as system:
        system.client.pause(reason="bench")
        system.sql.run("SELECT pulse.set_limit('default', NULL, $1)", json.dumps({"concurrency": 1}))
        submit(system.client, "noop", 10 * stage.size.limit_tries)
        system.client.resume()
        system.wait_done()
        return float(system.sql.value(BETWEEN))


def limits(stage: Stage) -> list[Sample]:
    """Claims with everything that may be in use, the rate, and a slot that becomes free."""
    plain = claim_ms(stage, None)
    samples = [Sample(PLAIN, plain, "ms")]
    samples += [Sample(one.name, claim_ms(stage, one), "ms", plain, PLAIN) for one in cases(stage.size.groups)]
    said = f"starts under a rate of {RATE:g} a second, {stage.size.rate_s:g} s"
    samples.append(Sample(said, rate_kept(stage), "jobs/s", RATE, "the rate"))
    return [*samples, Sample(f"end of a job and claim of the next, {SLOTS} slots taken", slot_ms(stage), "ms")]


def turns(stage: Stage) -> list[Sample]:
    """A whole system under limits and with groups: its rate, and how soon a slot is taken."""
    free = drained_under(stage, 0, None)
    some = f"{stage.size.groups:,} groups"
    samples = [
        Sample(f"drain, {name}", drained_under(stage, groups, policy), "jobs/s", free, "drain, nothing in use")
        for name, groups, policy in (
            (f"one limit of {SLOTS}", 0, {"concurrency": SLOTS}),
            (f"{some}, no limit", stage.size.groups, None),
            (f"{some}, limit 1 each", stage.size.groups, {"group_concurrency": 1}),
        )
    ]
    return [*samples, Sample("from the end of a job to the start of the next, limit 1", turns_ms(stage), "ms")]
