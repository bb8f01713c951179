"""A queue of NOTIFY that is full, since a session that listens stays in a transaction: pulse goes on in silence."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from typing import Final

import asyncpg
import pytest

from pulse.common.ids import uuid7
from pulse.ops.doctor.finding import State
from pulse.store.connections.pool import Target
from pulse.store.store import Store
from tests.store.doctor_kit import Patient, said
from tests.store.helpers import Sql
from tests.support import postgres
from tests.support.notify_queue import SETTINGS, NotifyQueue
from tests.support.postgres import Postgres, started

pytestmark = pytest.mark.heavy

SCHEDULE: Final = "0199a1b2-c3d4-7e5f-8a0b-1c2d3e4f5a6b"
# Whatever tells somebody something, and commits.
TELLING: Final = (
    "SELECT pulse.submit('n')",
    """SELECT pulse.submit_many('[{"name": "n"}, {"name": "m"}]')""",
    "SELECT pulse.notify_work()",
    """SELECT pulse.set_topic('t', '{"timeout_s": 5}')""",
    "INSERT INTO pulse.topics (topic, timeout_s) VALUES ('u', 5)",
    f"SELECT pulse.create_schedule('n', every_s => 15, id => '{SCHEDULE}')",
    f"SELECT pulse.update_schedule('{SCHEDULE}', every_s => 30)",
    f"SELECT pulse.resume_schedule('{SCHEDULE}')",
    f"SELECT pulse.trigger_schedule('{SCHEDULE}')",
)


@pytest.fixture(scope="module")
def small_server() -> Iterator[Postgres]:
    """One whose queue of NOTIFY is as small as one can be: no setting of it before PostgreSQL 17."""
    installation, *_ = postgres.installations()
    if installation.major < 17:
        pytest.skip("the queue of NOTIFY is 8 GB before PostgreSQL 17")
    with started(installation, **SETTINGS) as server:
        yield server


@pytest.fixture
def database(small_server: Postgres) -> Iterator[str]:
    """A fresh database of it."""
    with small_server.database() as made:
        yield made


@pytest.fixture
async def sql(database: str) -> AsyncIterator[Sql]:
    """A session of it."""
    made = await asyncpg.connect(database)
    yield made
    await made.close(timeout=5)


@pytest.fixture
async def queue(database: str) -> AsyncIterator[NotifyQueue]:
    """Somebody who fills it."""
    made = NotifyQueue(database)
    yield made
    await made.close()


async def test_all_that_tells_goes_on(database: str, sql: Sql, queue: NotifyQueue) -> None:
    """Submits, schedules, topics and the gate commit at a full queue, where a plain NOTIFY cannot."""
    await queue.fill()
    with pytest.raises(asyncpg.ProgramLimitExceededError):
        await sql.execute("NOTIFY somebody, 'something'")
    for statement in TELLING:
        await sql.execute(statement)
    store = Store(Target(database, "test"))
    try:
        await store.notify_work("me")
        await store.gate.pause("t", "why", for_s=1e-6)
        assert [pause.topic for pause in await store.gate.expire()] == ["t"]
        await store.gate.pause("t", "why")
        await store.gate.resume("t")
        await store.schedules.delete(uuid7().bytes)
    finally:
        store.close()


async def test_half_full_is_enough_to_be_silent(sql: Sql, queue: NotifyQueue) -> None:
    """What pulse itself tells never fills it: from a half on it tells nothing, below it does."""
    for upto, is_told in ((0.3, True), (0.5, False)):
        await queue.fill(upto)
        before = await queue.usage()
        for _ in range(3):
            await sql.execute("SELECT pulse.tell('pulse_work', $1)", "x" * 7900)
        assert (await queue.usage() > before) is is_told


async def test_the_doctor_names_who_keeps_it_full(database: str, sql: Sql, queue: NotifyQueue) -> None:
    """How full it is, and the oldest transaction, whatever its database; below a half all is well."""
    patient = Patient(database, sql)
    finding = (await patient.found())["notifications"]
    assert (finding.state, finding.text) == (State.OK, "the queue of NOTIFY is 0% full")
    await queue.fill(0.6)
    await sql.execute("BEGIN")
    younger = await patient.session()
    await younger.execute("BEGIN")
    finding = (await patient.found())["notifications"]
    await younger.close(timeout=5)
    assert finding.state is State.WARNING
    assert re.fullmatch(r"the queue of NOTIFY is 6\d% full", finding.text)
    assert f"session {queue.pid} (" in finding.details[0]
    assert "is idle in transaction since 0 s" in finding.details[0]
    assert len(finding.details) == 3
    assert "pg_terminate_backend" in said(finding) + finding.advice[0]
