"""The guarded statements as operations on one job, and sessions to do them in: on a connection of one's own choice."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import asyncpg

from pulse.errors import ConflictError
from pulse.store.connections.pool import HOT_SETTINGS, STATEMENT_DEADLINE_S, Pool, Target, connect
from pulse.store.operators.gate import GateStore
from pulse.store.operators.policies import TopicStore
from pulse.store.operators.schedules import ScheduleStore
from pulse.store.operators.unique import UniqueSubmits
from pulse.store.reading.jobs import JobReader
from pulse.store.rows import Completion, Ending, EndingKind, Fired, Firing, NewSchedule, Renewal, to_us
from pulse.store.store import Store
from tests.support.store.helpers import LEASE_S, NOW, OTHER, WORKER, Sql, at, fence, forge, job, new_id

LATER_S: Final = 2 * LEASE_S  # when all operations happen: leases opened at NOW have lapsed
LATER: Final = at(LATER_S)
EXPIRES_S: Final = 2 * LATER_S  # until then the job may be claimed; expiry alone looks later
STAGES: Final = ("absent", "PENDING", "RETRYING", "RUNNING", "COMPLETED")
_STATE: Final = """
    SELECT jsonb_build_object(
        'job', (SELECT to_jsonb(j) - '{id,topic,unique_key}'::text[]
                    || CASE WHEN j.completed_at < j.submitted_at THEN '{"completed_at": "now"}' ELSE '{}' END::jsonb
                FROM pulse.jobs j WHERE j.id = $1),
        'history', (SELECT jsonb_agg(to_jsonb(a) - 'job_id'
                    || CASE WHEN a.ended_at < a.started_at THEN '{"ended_at": "now"}' ELSE '{}' END::jsonb
                    ORDER BY a.attempt) FROM pulse.attempts a WHERE a.job_id = $1),
        'schedule', (SELECT to_jsonb(s) - '{id,topic,created_at,last_job_id}'::text[]
                     FROM pulse.schedules s WHERE s.id = $2),
        'fired', (SELECT count(*) FROM pulse.jobs j WHERE j.schedule_id = $2),
        'gate', (SELECT to_jsonb(g) - 'topic' FROM pulse.dispatch_control g WHERE g.topic = $3),
        'policy', (SELECT to_jsonb(t) - 'topic' FROM pulse.topics t WHERE t.topic = $3)
    )::text"""


@dataclass(frozen=True, slots=True)
class World:
    """One job, in a topic of its own, and a schedule that is due, whose last job it is; ``job`` may not exist yet."""

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
    """One guarded statement; *hot*: on a hot connection; *told*: its result, but for what differs between worlds."""

    name: str
    do: Callable[[Store, World], Awaitable[Any]]
    hot: bool = True
    told: Callable[[Any], object] = len

    def __str__(self) -> str:
        return self.name


class PinnedPool(Pool):
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
        self.unique = UniqueSubmits(self.query)
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
    """A world whose job is in *stage*; WORKER holds a RUNNING one, and its lease lapses before LATER_S."""
    world = World()
    if stage != "absent":
        of_its_own = {"unique_key": world.job.hex(), "unique_until": "end"}
        await forge(connection, stage, id=world.job, topic=world.topic, expires_at=at(EXPIRES_S), **of_its_own)
    await store.schedules.create(world.made_as)
    await connection.execute(
        "UPDATE pulse.schedules SET last_job_id = $2 WHERE id = $1", world.schedule.hex(), world.job.hex()
    )
    return world


async def state(connection: Sql, world: World) -> str:
    ids = (uuid.UUID(bytes=world.job), uuid.UUID(bytes=world.schedule))
    found: str = await connection.fetchval(_STATE, *ids, world.topic)
    return found


async def said(op: Op, store: Store, world: World) -> object:
    """What *op* returns, or the name of the refusal."""
    try:
        return op.told(await op.do(store, world))
    except (asyncpg.PostgresError, ConflictError) as error:
        return type(error).__name__


def _end(kind: EndingKind) -> Op:
    return Op(
        kind.value,
        lambda store, world: store.end([Ending(*fence(world.job), kind, kind.value)], now=LATER),
        told=lambda ended: [(one.status, one.delay_s) for one in ended],
    )


def _set_topic(name: str, max_attempts: int, backoff: str) -> Op:
    policy = {"max_attempts": max_attempts, "backoff": backoff, "timeout_s": 9.0}
    return Op(name, lambda store, world: store.topics.set(world.topic, policy), hot=False, told=_nothing)


def _became(fired: Iterable[Fired]) -> object:
    return [(one.verdict, one.level is not None, one.canceled is not None) for one in fired]


def _same(answer: object) -> object:
    return answer


def _nothing(_answer: object) -> None:
    """Of how many it is, or of nothing at all."""


async def _claim(store: Store, world: World) -> object:
    claimed = await store.claim([world.topic], [OTHER], [0, 0], LEASE_S, now=LATER)
    return sorted((one.id == world.job, one.attempt) for one in claimed)


async def _complete_by_handler(store: Store, world: World) -> None:
    async with store.query.connection() as connection:
        complete = "SELECT pulse.complete_attempt($1, 1, $2, '2')"
        await connection.execute(complete, uuid.UUID(bytes=world.job), WORKER)


async def _replace(store: Store, world: World) -> object:
    """Whether the job that has the key, or had it, keeps it from a new one."""
    new = job(topic=world.topic, unique=world.job.hex(), on_conflict="replace", args='{"replaced": 1}')
    ids, _ = await store.unique.submit([new], now=LATER)
    return ids == [world.job]


CLAIM: Final = Op("claim", _claim, told=_same)
SET_TOPIC: Final = (_set_topic("set topic", 1, "fixed:7"), _set_topic("set topic else", 9, "fixed:70"))
# What it says is of other worlds, too; the state tells of this one.
EXPIRE: Final = Op("expire", lambda store, _: store.expire(10_000, now=at(EXPIRES_S)), told=_nothing)
OPS: Final = [
    CLAIM,
    Op("complete", lambda store, world: store.complete([Completion(world.job, 1, WORKER, "1")], now=LATER)),
    Op("complete by a handler", _complete_by_handler, hot=False, told=_nothing),
    _end(EndingKind.ERROR),
    _end(EndingKind.RELEASED),
    _end(EndingKind.CRASHED),
    _end(EndingKind.LEASE_EXPIRED),
    Op("extend", lambda store, world: store.extend([Renewal(world.job, 1, WORKER, "0.5")], LEASE_S, now=LATER)),
    Op("checkpoint", lambda store, world: store.checkpoint([Renewal(world.job, 1, WORKER, "7")])),
    Op("move", lambda store, world: store.move([(fence(world.job), OTHER)])),
    Op(
        "cancel", lambda store, world: store.cancel([world.job], now=LATER), hot=False,
        told=lambda canceled: [(one.attempt, one.worker) for one in canceled],
    ),
    Op("retry", lambda store, world: store.retry([world.job], now=LATER), hot=False),
    Op("delete", lambda store, world: store.delete([world.job]), hot=False),
    Op(
        "change", lambda store, world: store.change([world.job], priority=7, now=LATER), hot=False,
        told=lambda moved: [(was.priority, was.wake is not None) for was in moved.values()],
    ),
    Op("fire", lambda store, world: store.schedules.fire([world.firing], now=LATER), hot=False, told=_became),
    Op(
        "fire as another",
        lambda store, world: store.schedules.fire([replace(world.firing, next_us=to_us(at(7200)))], now=LATER),
        hot=False,
        told=_became,
    ),
    Op("pause", lambda store, world: store.gate.pause(world.topic, None, now=LATER), hot=False, told=_nothing),
    Op(
        "pause schedule", lambda store, world: store.schedules.pause(world.schedule, paused=True), hot=False, told=_same
    ),
    Op(
        "update schedule",
        lambda store, world: store.schedules.update(
            replace(world.made_as, name="m", next_run_at=at(60)), 0, moved=True
        ),
        hot=False,
        told=_same,
    ),
    Op("delete schedule", lambda store, world: store.schedules.delete(world.schedule), hot=False, told=_same),
    *SET_TOPIC,
    EXPIRE,
    Op("submit", lambda store, world: store.submit([job(id=world.job, topic=world.topic)], now=LATER)),
    Op(
        "submit again",
        lambda store, world: store.submit_again([job(id=world.job, topic=world.topic)], now=LATER),
        hot=False,
    ),
    Op("replace", _replace, hot=False, told=_same),
]  # fmt: skip
