"""Rows that a trigger drops silently, or a foreign constraint refuses: no wrong "ok"."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pulse.errors import StatementError
from pulse.protocol import Result, SubmittedJob
from pulse.store.store import Store
from pulse_actors.dispatcher.writes import report
from pulse_actors.dispatcher.writes.report_rows import PendingReport
from pulse_actors.dispatcher.writes.submit import PendingSubmit
from pulse_actors.runtime import actor
from tests.support.store.helpers import TOPIC, Patch, Sql, job
from tests.support.store.recovery_kit import Floor, Wire, new_worker, running, wire_of
from tests.support.waiting import until_async

pytestmark = pytest.mark.heavy

DROPPED = "dropped"


@pytest.fixture
async def dropping(connection: Sql) -> AsyncIterator[None]:
    """A trigger of the user drops jobs of one name."""
    await connection.execute(
        """
        CREATE FUNCTION public.nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
        CREATE TRIGGER nothing BEFORE INSERT ON pulse.jobs FOR EACH ROW WHEN (new.name = 'dropped')
            EXECUTE FUNCTION public.nothing()"""
    )
    yield
    await connection.execute("DROP FUNCTION public.nothing CASCADE")


@pytest.mark.usefixtures("dropping")
@pytest.mark.parametrize("has_room", [True, False])
async def test_requests(store: Store, connection: Sql, *, has_room: bool) -> None:
    """The client of a dropped job gets an error, and may try again; all others are stored, by either way."""
    floor = Floor(store, connection)
    worker = new_worker("w", capacity=10)
    if has_room:
        floor.registry.join(worker)
    floor.claims.signal._is_waiting = has_room
    submits = floor.claims.submits
    jobs = [job(name=DROPPED if number == 1 else "n", topic=TOPIC) for number in range(3)]
    asked = [PendingSubmit(Wire(), 1, [one]) for one in jobs]
    await submits._write(asked)
    said = [one.link.sent[-1][0] for one in asked if isinstance(one.link, Wire)]
    assert said == ["ok", "error", "ok"]
    assert isinstance(asked[1].link, Wire)
    told = asked[1].link.bodies("error")[0]
    assert told["code"] == "unavailable"
    assert "drops 1 of 1 jobs without an error" in told["message"]
    stored = {row["id"].bytes for row in await connection.fetch("SELECT id FROM pulse.jobs")}
    assert stored == {jobs[0].id, jobs[2].id}
    if has_room:  # what was handed out before the rest was refused is run
        handed = {one[0] for body in wire_of(worker).bodies("assign") for one in body["jobs"]}
        assert {pair[0] for pair in worker.held} == handed <= stored


@pytest.mark.usefixtures("dropping")
async def test_a_submit_that_is_repeated(store: Store) -> None:
    jobs: list[SubmittedJob] = [job(), job(name=DROPPED)]
    with pytest.raises(StatementError, match="drops 1 of 2 jobs"):
        await store.submit_again(jobs)


async def test_a_constraint_that_is_not_pulses(store: Store, connection: Sql, monkeypatch: Patch) -> None:
    """No result counts as bad: it is kept, charges no attempt, and is written when the constraint is gone."""
    monkeypatch.setattr(report, "REFUSED_PAUSE_S", 0.05)
    monkeypatch.setattr(actor, "RETRY_MAX_S", 0.05)
    floor = Floor(store, connection)
    worker = new_worker("w")
    floor.registry.join(worker)
    one = await floor.running(worker)
    await connection.execute("ALTER TABLE pulse.jobs ADD CONSTRAINT strange CHECK (status <> 'COMPLETED') NOT VALID")
    floor.results.accept(PendingReport(worker, 1, [Result(one, 1, "ok")], [(one, 1)]))

    async def is_kept() -> bool:
        return bool(await connection.fetchval("SELECT count(*) FROM pulse.set_aside WHERE sqlstate = '23514'"))

    async with running(floor.results.run):
        await until_async(is_kept, "it is known to be refused")
        assert (await floor.read(one))["status"] == "RUNNING"
        await connection.execute("ALTER TABLE pulse.jobs DROP CONSTRAINT strange")
        await floor.wait(one, status="COMPLETED", attempts=1, last_error=None)
