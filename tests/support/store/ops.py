"""The guarded statements as operations on one job, and sessions to do them in: on a connection of one's own choice."""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import asyncpg

from pulse.store.connections.pool import HOT_SETTINGS, STATEMENT_DEADLINE_S, Pool, Target, connect
from pulse.store.operators.gate import GateStore
from pulse.store.operators.policies import TopicStore
from pulse.store.operators.schedules import ScheduleStore
from pulse.store.reading.jobs import JobReader
from pulse.store.rows import Completion, Ending, EndingKind, Fired, Firing, NewSchedule, Renewal, to_us
from pulse.store.store import Store
from tests.support.store.helpers import LEASE_S, NOW, OTHER, WORKER, Sql, at, fence, forge, job, new_id

LATER_S: Final = 2 * LEASE_S  # when all operations happen: leases opened at NOW have lapsed
EXPIRES_S: Final = 2 * LATER_S  # until then the job may be claimed; expiry alone looks later
STAGES: Final = ("absent", "PENDING", "RETRYING", "RUNNING", "COMPLETED")
_STATE: Final = """
    SELECT jsonb_build_object(
        'job', (SELECT to_jsonb(j) - '{id,topic}'::text[] FROM pulse.jobs j WHERE j.id = $1),
        'history', (SELECT jsonb_agg(to_jsonb(a) - 'job_id' ORDER BY a.attempt)
                    FROM pulse.attempts a WHERE a.job_id = $1),
        'schedule', (SELECT to_jsonb(s) - '{id,topic,created_at,last_job_id}'::text[]
                     FROM pulse.schedules s WHERE s.id = $2),
        'fired', (SELECT count(*) FROM pulse.jobs j WHERE j.schedule_id = $2),
        'gate', (SELECT to_jsonb(g) - 'topic' FROM pulse.dispatch_control g WHERE g.topic = $3),
        'policy', (SELECT to_jsonb(t) - 'topic' FROM pulse.topics t WHERE t.topic = $3)
    )::text"""


@dataclass(frozen=True, slots=True)
class World:
    """
    One job, in a topic of its own, and a schedule that is due; ``job`` may not be there yet.

    The job is the schedule's last, which makes way for the next.
    """

    job: bytes = field(default_factory=new_id)
    schedule: bytes = field(default_factory=new_id)
    topic: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def firing(self) -> Firing:
        return Firing(self.schedule, to_us(NOW), to_us(at(3600)), to_us(NOW))

    @property
    def made_as(self) -> NewSchedule:
        return NewSchedule(self.schedule, "n", "every", "{}", NOW, topic=self.topic, every_s=3600.0, overlap="cancel")


@dataclass(frozen=True, slots=True)
class Op:
    """
    One guarded statement.

    Attributes:
        do: Does it and returns what it said, without anything that differs from world to world.
        hot: On which kind of connection it runs.
    """

    name: str
    do: Callable[[Store, World], Awaitable[object]]
    hot: bool = True

    def __str__(self) -> str:
        return self.name


class PinnedPool(Pool):
    """A pool of the one connection that it is given, which it neither opens nor closes."""

    def __init__(self, target: Target, pinned: Sql) -> None:
        super().__init__(target, size=1)
        self.pinned = pinned

    @contextlib.asynccontextmanager
    async def connection(self, deadline_s: float = STATEMENT_DEADLINE_S) -> AsyncIterator[Sql]:
        yield self.pinned


class Session(Store):
    """A store on two known connections, a hot one and one for queries, so that a transaction can be held open."""

    def __init__(self, target: Target, hot: Sql, query: Sql) -> None:
        super().__init__(target)
        self.hot = self.beats = PinnedPool(target, hot)
        self.query = PinnedPool(target, query)
        self.reads = JobReader(self.query)
        self.gate = GateStore(self.query)
        self.topics = TopicStore(self.query)
        self.schedules = ScheduleStore(self.query)
        self._pinned = {True: hot, False: query}

    @classmethod
    async def open(cls, dsn: str) -> Session:
        target = Target(dsn, "pulse-tests")
        return cls(target, await connect(target, HOT_SETTINGS), await connect(target, {}))

    def connection_of(self, op: Op) -> Sql:
        return self._pinned[op.hot]

    def close(self) -> None:
        super().close()
        for connection in self._pinned.values():
            connection.terminate()


async def made(connection: Sql, store: Store, stage: str) -> World:
    """A world whose job stands in *stage*; a RUNNING one is held by WORKER, and its lease lapses before LATER_S."""
    world = World()
    if stage != "absent":
        await forge(connection, stage, id=world.job, topic=world.topic, expires_at=at(EXPIRES_S))
    await store.schedules.create(world.made_as)
    await connection.execute(
        "UPDATE pulse.schedules SET last_job_id = $2 WHERE id = $1", world.schedule.hex(), world.job.hex()
    )
    return world


async def state(connection: Sql, world: World) -> str:
    """All that the database knows of *world*, without its names: equal states are equal strings."""
    ids = (uuid.UUID(bytes=world.job), uuid.UUID(bytes=world.schedule))
    found: str = await connection.fetchval(_STATE, *ids, world.topic)
    return found


async def said(op: Op, store: Store, world: World) -> object:
    """What *op* returns, or the name of the database's refusal."""
    try:
        return await op.do(store, world)
    except asyncpg.PostgresError as error:
        return type(error).__name__


async def _claim(store: Store, world: World) -> object:
    claimed = await store.claim([world.topic], [OTHER], [0, 0], LEASE_S, now=at(LATER_S))
    return sorted((one.id == world.job, one.attempt) for one in claimed)


async def _complete(store: Store, world: World) -> object:
    return len(await store.complete([Completion(world.job, 1, WORKER, "1")], now=at(LATER_S)))


def _end(kind: EndingKind) -> Op:
    async def end(store: Store, world: World) -> object:
        ended = await store.end([Ending(*fence(world.job), kind, kind.value)], now=at(LATER_S))
        return [(one.status, one.delay_s) for one in ended]

    return Op(kind.value, end)


async def _extend(store: Store, world: World) -> object:
    return len(await store.extend([Renewal(world.job, 1, WORKER, "0.5")], LEASE_S, now=at(LATER_S)))


async def _checkpoint(store: Store, world: World) -> object:
    return len(await store.checkpoint([Renewal(world.job, 1, WORKER, "7")]))


async def _move(store: Store, world: World) -> object:
    return len(await store.move([(fence(world.job), OTHER)]))


async def _cancel(store: Store, world: World) -> object:
    return [(one.attempt, one.worker) for one in await store.cancel([world.job], now=at(LATER_S))]


async def _retry(store: Store, world: World) -> object:
    return len(await store.retry([world.job], now=at(LATER_S)))


async def _delete(store: Store, world: World) -> object:
    return len(await store.delete([world.job]))


async def _change(store: Store, world: World) -> object:
    moved = await store.change([world.job], priority=7, now=at(LATER_S))
    return [(was.priority, was.wake is not None) for was in moved.values()]


def _became(fired: Iterable[Fired]) -> object:
    return [(one.verdict, one.level is not None, one.canceled is not None) for one in fired]


async def _fire(store: Store, world: World) -> object:
    return _became(await store.schedules.fire([world.firing], now=at(LATER_S)))


async def _fire_as_another(store: Store, world: World) -> object:
    firing = dataclasses.replace(world.firing, next_us=to_us(at(7200)))
    return _became(await store.schedules.fire([firing], now=at(LATER_S)))


async def _pause(store: Store, world: World) -> object:
    await store.gate.pause(world.topic, None, now=at(LATER_S))
    return None


async def _pause_schedule(store: Store, world: World) -> object:
    return await store.schedules.pause(world.schedule, paused=True)


async def _update_schedule(store: Store, world: World) -> object:
    return await store.schedules.update(dataclasses.replace(world.made_as, name="m", next_run_at=at(60)), 0, moved=True)


async def _delete_schedule(store: Store, world: World) -> object:
    return await store.schedules.delete(world.schedule)


def _set_topic(name: str, max_attempts: int, backoff: str) -> Op:
    async def set_topic(store: Store, world: World) -> object:
        await store.topics.set(world.topic, {"max_attempts": max_attempts, "backoff": backoff, "timeout_s": 9.0})
        return None

    return Op(name, set_topic, hot=False)


async def _expire(store: Store, _: World) -> object:
    await store.expire(10_000, now=at(EXPIRES_S))  # how many: of other worlds, too; the state tells of this one
    return None


async def _submit(store: Store, world: World) -> object:
    return len(await store.submit([job(id=world.job, topic=world.topic)], now=at(LATER_S)))


async def _submit_again(store: Store, world: World) -> object:
    return len(await store.submit_again([job(id=world.job, topic=world.topic)], now=at(LATER_S)))


CLAIM: Final = Op("claim", _claim)
SET_TOPIC: Final = (_set_topic("set topic", 1, "fixed:7"), _set_topic("set topic else", 9, "fixed:70"))
EXPIRE: Final = Op("expire", _expire)
OPS: Final = [
    CLAIM,
    Op("complete", _complete),
    _end(EndingKind.ERROR),
    _end(EndingKind.RELEASED),
    _end(EndingKind.CRASHED),
    _end(EndingKind.LEASE_EXPIRED),
    Op("extend", _extend),
    Op("checkpoint", _checkpoint),
    Op("move", _move),
    Op("cancel", _cancel, hot=False),
    Op("retry", _retry, hot=False),
    Op("delete", _delete, hot=False),
    Op("change", _change, hot=False),
    Op("fire", _fire, hot=False),
    Op("fire as another", _fire_as_another, hot=False),
    Op("pause", _pause, hot=False),
    Op("pause schedule", _pause_schedule, hot=False),
    Op("update schedule", _update_schedule, hot=False),
    Op("delete schedule", _delete_schedule, hot=False),
    *SET_TOPIC,
    EXPIRE,
    Op("submit", _submit),
    Op("submit again", _submit_again, hot=False),
]
