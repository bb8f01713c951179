"""A dispatcher checks its database, once at a time: when it may claim, and what it does when that went back."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import msgspec
import pytest
from structlog.testing import capture_logs

from pulse.common.ids import uuid7
from pulse.errors import StatementError, UnavailableError
from pulse.store.connections.pool import Target
from pulse.store.recovery.epochs import CLOSED, HostContact
from pulse.store.rows import Claim, Completion, Level
from pulse.store.store import Store
from pulse_actors.dispatcher.epochs import witness as module
from pulse_actors.dispatcher.epochs.witness import OTHERS_S, PUT_OFF_S, REJOIN_S, SOON_S, TICK_S, Witness
from pulse_actors.dispatcher.workers.records import HeldJob
from pulse_actors.dispatcher.workers.registry import WorkerRegistry
from pulse_actors.shared.epoch_memory import MemoryFile
from tests.support.store.claim_parts import claim_parts
from tests.support.store.epoch_kit import HOST, LEASE_S, OTHER, clean, come, keep, put_back, raised
from tests.support.store.helpers import TOPIC, Patch, Sql, forge, found_of, job, read
from tests.support.store.recovery_kit import new_worker, pairs_of, wire_of
from tests.support.store.refusing_kit import refusing

pytestmark = pytest.mark.heavy

FLOOR: Final = 1000


class Host:
    def __init__(self, dsn: str, directory: Path | None) -> None:
        self.store = Store(Target(dsn, "witness"))
        self.registry = WorkerRegistry()
        self.claims = claim_parts(self.store, self.registry, None, lease_s=LEASE_S, poll_s=60.0, batch=100)
        self.witness = Witness(
            self.store, self.registry, in_doubt=self.claims.in_doubt, signal=self.claims.signal, host=HOST,
            directory=directory, lease_s=LEASE_S,
        )  # fmt: skip
        self.store.trust(self.witness)
        self.worker = new_worker(f"{HOST}/b/1/2.3/w", 2, capacity=9)
        self.registry.join(self.worker)

    @property
    def lost(self) -> list[tuple[bytes, int]]:
        orders = [order for body in wire_of(self.worker).bodies("stop") for order in body["jobs"]]
        assert {order[2] for order in orders} <= {"lost"}
        return [(order[0], order[1]) for order in orders]

    async def claim(self) -> list[tuple[bytes, int]]:
        before = len(pairs_of(self.worker))
        self.claims.signal.wake_level(Level(TOPIC, 0), due_s=1.0)
        await self.claims.loop.pass_once()
        return pairs_of(self.worker)[before:]

    @property
    def is_open(self) -> bool:
        return self.witness.witnessed is not CLOSED


class Clock:
    def __init__(self) -> None:
        self.now_s = float(round(time.monotonic()))  # sums with it are exact

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: Patch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


@pytest.fixture(autouse=True)
async def at_first(connection: Sql) -> AsyncIterator[None]:
    await clean(connection)
    yield
    await clean(connection)


@pytest.fixture
async def host(dsn: str, tmp_path: Path) -> AsyncIterator[Host]:
    made = Host(dsn, tmp_path)
    yield made
    made.store.close()


async def due(connection: Sql, **columns: Any) -> bytes:
    at = await connection.fetchval("SELECT clock_timestamp() - interval '1 second'")
    return await forge(connection, **{"next_run_at": at, **columns})


async def held(host: Host, connection: Sql) -> bytes:
    await host.witness.step()
    one = await due(connection)
    assert await host.claim() == [(one, 1)]
    return one


async def kept(host: Host, connection: Sql) -> None:
    await host.witness.step()
    await keep(connection)
    await host.witness.step()


async def test_it_claims_when_it_has_come(host: Host, connection: Sql) -> None:
    one = await due(connection)
    assert await host.claim() == []
    assert await host.witness.step() == TICK_S
    assert await host.claim() == [(one, 1)]
    before = host.witness.witnessed.counter
    assert await host.witness.step() == TICK_S
    assert before is not None
    assert host.witness.witnessed.counter == before + 1


async def test_what_was_kept_is_put_back(host: Host, connection: Sql) -> None:
    """Nothing is claimed; then the epoch is raised, what is held is lost, and claims go on above it."""
    one, two = await due(connection), await due(connection)
    await kept(host, connection)
    running, gone = await due(connection), await due(connection)
    assert {job for job, _ in await host.claim()} == {one, two, running, gone}
    ended = {(two, 1), (gone, 1)}
    assert await host.store.complete([Completion(*pair, host.worker.identity, None) for pair in ended]) == ended
    host.registry.free(host.worker, [*ended])
    await put_back(connection)
    third = await due(connection)
    assert await host.claim() == []
    with capture_logs() as logs:
        assert await host.witness.step() == SOON_S
    assert sorted(host.lost) == sorted([(one, 1), (running, 1)])
    (line,) = [line for line in logs if line["event"] == "database_went_back"]
    figures = "epoch", "floor", "held", "reopened", "unknown_running", "unknown_finished"
    assert [line[name] for name in figures] == [2, FLOOR, 2, 1, 1, 1]
    assert line["jobs"] + line["unknown_jobs"] == [str(UUID(bytes=job)) for job in (two, running, gone)]
    assert line["back_to"] < line["known_until"]
    assert await connection.fetchval("SELECT reopened FROM pulse.epochs WHERE epoch = 2") == 1
    assert await host.claim() == []
    assert (await host.witness.step(), {*await host.claim()}) == (TICK_S, {(two, FLOOR + 1), (third, FLOOR + 1)})
    assert host.worker.held.keys() >= {(one, 1)}
    assert await host.store.complete([Completion(one, 1, host.worker.identity, None)]) == set()


async def away(*_given: object) -> None:
    raise UnavailableError


async def test_what_may_run_yet_is_handed_out_to_nobody(host: Host, connection: Sql, monkeypatch: Patch) -> None:
    """Not by this host, whose registry knows it, though its worker is not watched; nor by others: it is put off."""
    one = await due(connection)
    await kept(host, connection)
    assert await host.claim() == [(one, 1)]
    await put_back(connection)
    with monkeypatch.context() as patch:
        patch.setattr(host.store.epochs, "put_off", away)
        with pytest.raises(UnavailableError, match="nothing was changed"):
            await host.witness.step()
    assert None in host.claims.signal._due.passed(time.monotonic() + PUT_OFF_S)
    first = (await read(connection, one))["next_run_at"]
    assert first > await connection.fetchval("SELECT clock_timestamp() + $1 * interval '0.5 seconds'", PUT_OFF_S)
    await host.witness.step()
    assert (await read(connection, one))["next_run_at"] > first
    await connection.execute("UPDATE pulse.jobs SET next_run_at = clock_timestamp() - interval '1 second'")
    assert await host.claim() == []
    assert (await read(connection, one))["attempts"] == FLOOR + 1
    host.registry.free(host.worker, [(one, 1)])
    await connection.execute("UPDATE pulse.jobs SET next_run_at = clock_timestamp() - interval '1 second'")
    await host.witness.step()
    assert host.registry.lost == set()
    assert None in host.claims.signal._due.passed(time.monotonic() + PUT_OFF_S)
    assert await host.claim() == [(one, FLOOR + 2)]


async def test_it_remembers_beside_the_database(dsn: str, host: Host, connection: Sql, clock: Clock) -> None:
    """Another process of this host notices that it went back; it lets workers come back before it claims."""
    one = await due(connection)
    await kept(host, connection)
    await put_back(connection)
    host.witness._file.close()
    again = Host(dsn, host.witness._file.directory)
    again.worker.held[one, 1] = HeldJob("n", TOPIC)
    assert await again.witness.step() == SOON_S
    assert await connection.fetchval("SELECT max(epoch) FROM pulse.epochs") == 2
    again.registry.lost = set()
    assert await again.witness.step() == SOON_S
    assert again.registry.lost == {(one, 1)}
    assert await again.claim() == []
    clock.now_s += REJOIN_S
    assert await again.witness.step() == TICK_S
    assert again.registry.lost == {(one, 1)}
    again.store.close()


async def test_another_host_has_raised_it(host: Host, connection: Sql) -> None:
    one = await due(connection)
    await host.witness.step()
    assert await host.claim() == [(one, 1)]
    assert await raised(host.store, 2, OTHER) == (2, FLOOR)
    two = await due(connection)
    assert await host.claim() == []
    assert await host.witness.step() == SOON_S
    assert host.lost == [(one, 1)]
    assert (await read(connection, one))["status"] == "PENDING"
    await host.witness.step()
    assert await host.claim() == [(two, FLOOR + 1)]
    assert await connection.fetchval("SELECT count(*) FROM pulse.epochs") == 2


async def test_who_was_overtaken_looks_again(host: Host, connection: Sql) -> None:
    """What it has seen is no longer so: it accepts nothing, and begins nothing."""
    memory = await host.witness._recalled()
    seen = await host.store.epochs.look(memory.instance, None, LEASE_S)
    await raised(host.store, 2, OTHER)
    assert not await host.witness._come(memory, seen)
    for is_new in (True, False):
        await host.witness._begin(memory, seen, is_new=is_new)
    assert not host.is_open
    assert wire_of(host.worker).bodies("stop") == []


async def test_an_epoch_that_does_not_cover_all(host: Host, connection: Sql) -> None:
    await host.witness.step()
    await host.witness.claimed([Claim(uuid7().bytes, 1001, "n", TOPIC, "{}", None, 0, 0.0, 0, 0)])
    await raised(host.store, 2, OTHER)
    await host.witness.step()
    assert await connection.fetchval("SELECT max(attempts_floor) FROM pulse.epochs WHERE epoch = 3") == 2000


async def test_a_new_number_is_remembered_before_it_is_handed_out(host: Host, connection: Sql) -> None:
    await due(connection, status="RETRYING", attempts=1500)
    await host.witness.step()
    assert await host.claim() != []
    host.witness._file.close()
    lineage = await connection.fetchval("SELECT lineage FROM pulse.epochs WHERE epoch = 1")
    assert MemoryFile(host.witness._file.directory).open(lineage).highest == 2000
    await host.witness.step()
    assert await connection.fetchval("SELECT highest FROM pulse.witnesses") == 2000


async def elsewhere(host: Host) -> float:
    """A step as if the one before had been at another place, a moment ago."""
    host.witness._memory = msgspec.structs.replace(found_of(host.witness._memory), place="elsewhere")
    return await host.witness.step()


async def test_a_new_place_that_knows_the_newest_attempts(host: Host, connection: Sql) -> None:
    await held(host, connection)
    assert await elsewhere(host) == TICK_S
    assert host.lost == []
    assert await connection.fetchval("SELECT max(epoch) FROM pulse.epochs") == 1


@pytest.mark.parametrize("change", [
    "DELETE FROM pulse.jobs",
    "UPDATE pulse.jobs SET attempts = 0, status = 'PENDING', locked_by = NULL, lease_until = NULL",
])  # fmt: skip
async def test_a_new_place_that_does_not(host: Host, connection: Sql, change: str) -> None:
    """Jobs handed out since the last tick, or in the current one, prove that it went back."""
    one = await held(host, connection)
    await connection.execute(change)
    assert await elsewhere(host) == SOON_S
    assert host.lost == [(one, 1)]


async def test_what_a_tick_has_confirmed_is_not_asked_for(host: Host, connection: Sql) -> None:
    """An operator deletes jobs, and their attempts: only those that no tick has counted yet are looked for."""
    await held(host, connection)
    await host.witness.step()
    await connection.execute("DELETE FROM pulse.jobs")
    await elsewhere(host)
    assert await connection.fetchval("SELECT max(epoch) FROM pulse.epochs") == 1


@pytest.mark.parametrize(("keep", "epoch"), [(True, 2), (False, 1)])
async def test_what_was_completed_and_is_not_there(host: Host, connection: Sql, keep: bool, epoch: int) -> None:
    """It proves that the database went back, unless completed jobs are forgotten at once."""
    one = await held(host, connection)
    done = [Completion(one, 1, host.worker.identity, None)]
    assert await host.store.complete(done, keep=keep) == {(one, 1)}
    host.registry.free(host.worker, [(one, 1)])
    await connection.execute("DELETE FROM pulse.jobs")
    await elsewhere(host)
    assert await connection.fetchval("SELECT max(epoch) FROM pulse.epochs") == epoch
    await host.witness.step()
    await host.witness.step()
    assert host.witness._forgotten == set()


async def test_a_report_that_a_new_place_does_not_know(host: Host, connection: Sql) -> None:
    one = await held(host, connection)
    host.registry.free(host.worker, [(one, 1)])
    assert await elsewhere(host) == TICK_S
    await host.claims.loop.pass_once()
    assert (await read(connection, one))["status"] != "RUNNING" or pairs_of(host.worker)[-1] == (one, 2)


async def test_a_tick_that_failed_has_confirmed_nothing(host: Host, connection: Sql) -> None:
    one = await held(host, connection)
    known = found_of(host.witness._memory)
    seen = await host.store.epochs.look(known.instance, None, LEASE_S)
    assert not await host.witness._tick(known, replace(seen, relation=1))  # another server by then
    assert not host.is_open
    await connection.execute("DELETE FROM pulse.jobs")
    await elsewhere(host)
    assert host.lost == [(one, 1)]


async def test_hosts_that_have_not_come_to_a_new_place(host: Host, connection: Sql, clock: Clock) -> None:
    await host.witness.step()
    await come(host.store, OTHER)
    for come_s in (None, OTHERS_S):
        await connection.execute("UPDATE pulse.witnesses SET place = 'elsewhere' WHERE instance = $1", OTHER)
        await connection.execute("UPDATE pulse.witnesses SET seen_at = seen_at - interval '1 hour'")
        assert await elsewhere(host) == SOON_S
        assert await host.witness.step() == SOON_S
        assert await host.claim() == []
        if come_s is None:
            await come(host.store, OTHER)
        else:
            clock.now_s += come_s
        assert await host.witness.step() == TICK_S


async def test_hosts_that_have_not_accepted(host: Host, connection: Sql) -> None:
    await host.witness.step()
    await come(host.store, OTHER)
    await kept(host, connection)
    await put_back(connection)
    await due(connection)
    await host.witness.step()
    assert await host.witness.step() == SOON_S
    assert await host.claim() == []
    await come(host.store, OTHER)
    assert await host.witness.step() == TICK_S
    assert len(await host.claim()) == 1


async def test_hosts_that_never_come_back(host: Host, connection: Sql, clock: Clock) -> None:
    """They delay claims for a lease, by this host's clock, also where the database's was set back."""
    await host.witness.step()
    await come(host.store, OTHER)
    await kept(host, connection)
    await put_back(connection)
    await host.witness.step()
    await connection.execute("UPDATE pulse.epochs SET began_at = began_at + interval '1 hour' WHERE epoch = 2")
    assert await host.witness.step() == SOON_S
    clock.now_s += LEASE_S - 1.0
    assert await host.witness.step() == SOON_S
    clock.now_s += 1.0
    assert await host.witness.step() == TICK_S


async def test_another_database_under_the_same_name(host: Host, connection: Sql, tmp_path: Path) -> None:
    """It does not know what was handed out here either; it is remembered separately."""
    await host.witness.step()
    await connection.execute("UPDATE pulse.epochs SET lineage = gen_random_uuid() WHERE epoch = 1")
    await host.witness.step()
    assert await connection.fetchval("SELECT max(epoch) FROM pulse.epochs") == 2
    assert len(list(tmp_path.glob("*.json"))) == 2


async def test_what_is_wrong_beside_the_database(dsn: str, host: Host, clock: Clock) -> None:
    await host.witness.step()
    assert host.witness.findings() == []
    host.store.timelines.refused = "it is old", clock.now_s
    assert [(one.check, one.text) for one in host.witness.findings()] == [("timeline", "it is old")]
    clock.now_s += 60
    assert host.witness.findings() == []
    nowhere = Host(dsn, None)
    await nowhere.witness.step()
    assert [one.check for one in nowhere.witness.findings()] == ["memory"]
    nowhere.store.close()


async def test_a_submit_is_remembered_as_a_claim_is(host: Host, connection: Sql) -> None:
    await host.witness.step()
    one = job(topic=TOPIC)
    claims, _ = await host.store.submit_and_claim([one], [TOPIC], [host.worker.identity], [0], LEASE_S)
    host.registry.hand_over(host.worker.identity, claims)
    await connection.execute("DELETE FROM pulse.jobs")
    await elsewhere(host)
    assert host.lost == [(one.id, 1)]


async def test_a_row_that_cannot_be_ended(host: Host, connection: Sql) -> None:
    """The epoch begins all the same: that row waits for its lease, others are ended, and new work is handed out."""
    bad, good = await due(connection), await due(connection)
    await host.witness.step()
    assert {job for job, _ in await host.claim()} == {bad, good}
    await keep(connection)
    await host.witness.step()
    await put_back(connection)
    free = await due(connection)
    async with refusing(connection, {bad: "P0001"}, "PENDING", "RETRYING"):
        for _ in range(2):
            with suppress(StatementError):  # what may run yet is put off at each tick
                await host.witness.step()
        assert host.is_open
        assert [(await read(connection, one))["status"] for one in (bad, good)] == ["RUNNING", "PENDING"]
        assert [job for job, _ in await host.claim()] == [free]


async def test_since_when_it_went_back(host: Host, connection: Sql) -> None:
    await host.witness.step()
    await elsewhere(host)
    assert host.is_open
    await host.witness.step()
    await keep(connection)
    kept_at = await connection.fetchval("SELECT max(seen_at) FROM pulse.witnesses")
    await host.witness.step()
    await put_back(connection)
    await host.witness.step()
    assert await connection.fetchval("SELECT went_back_to FROM pulse.epochs WHERE epoch = 2") == kept_at


async def test_a_completion_whose_answer_is_lost(host: Host, connection: Sql, monkeypatch: Patch) -> None:
    await host.witness.step()
    await due(connection)
    [(done, attempt)] = await host.claim()
    connected = host.store.hot.connection
    monkeypatch.setattr(host.store.hot, "connection", _goes_away)
    with pytest.raises(UnavailableError, match="gone"):
        await host.store.complete([Completion(done, attempt, host.worker.identity, None)], keep=False)
    monkeypatch.setattr(host.store.hot, "connection", connected)
    await connection.execute("DELETE FROM pulse.jobs WHERE id = $1", UUID(bytes=done))  # it was carried out
    await elsewhere(host)
    assert await connection.fetchval("SELECT max(epoch) FROM pulse.epochs") == 1


def _goes_away() -> None:
    raise UnavailableError("gone")


async def test_a_clock_that_has_gone_back(host: Host, connection: Sql) -> None:
    known_until = await connection.fetchval("SELECT clock_timestamp() + interval '5 hours'")
    seen = await host.store.epochs.look(UUID(int=9), None, LEASE_S)
    coming = HostContact(UUID(int=9), HOST, 0, FLOOR)
    await host.store.epochs.begin(seen, coming, epoch=2, known_until=known_until)
    first = await connection.fetchval("SELECT first_id FROM pulse.epochs WHERE epoch = 2")
    assert first.int >> 80 > (known_until.timestamp() + 3500) * 1000
