"""Submits with unique keys in the dispatcher: what wakes the claims, and what is answered."""

from __future__ import annotations

from typing import Any, Final

import pytest

from pulse.errors import BadRequestError, ConflictError, UnavailableError
from pulse.store.store import Store
from pulse_actors.dispatcher.monitoring.counters import Counted
from tests.support.store.helpers import TOPIC, Sql, forge, holding, job
from tests.support.store.recovery_kit import Floor, new_worker, running, wire_of
from tests.support.waiting import until_async

KEY: Final = "doc:42"


@pytest.fixture
def floor(store: Store, connection: Sql) -> Floor:
    return Floor(store, connection)


async def test_they_start_at_once(floor: Floor) -> None:
    """A new job, one that is replaced and due now, and one with a delay: no poll has to find them."""
    worker, submits = new_worker("w"), floor.claims.submits
    floor.registry.join(worker)
    later = job(unique="later", delay_s=3600.0)

    def started() -> set[bytes]:
        return {one[0] for body in wire_of(worker).bodies("assign") for one in body["jobs"]}

    async with running(floor.claims.loop.run):
        await submits.submit_unique([later])
        new = job(unique="new")
        assert await submits.submit_unique([new]) == {"ids": [new.id]}
        await until_async(lambda: started() == {new.id}, "the new one")
        assert await submits.submit_unique([job(unique="later", on_conflict="replace")]) == {"ids": [later.id]}
        await until_async(lambda: started() == {new.id, later.id}, "the replaced one")
        soon = job(unique="soon", delay_s=0.05)
        await submits.submit_unique([soon])
        await until_async(lambda: started() == {new.id, later.id, soon.id}, "the one that waited")
    assert floor.claims.counters.total(TOPIC)[Counted.SUBMITTED] == 3


@pytest.mark.parametrize(("fields", "error", "said"), [
    ({"unique": KEY, "on_conflict": "error"}, ConflictError, f"unique key '{KEY}' belongs to job "),
    ({"unique": "k", "args": "{"}, BadRequestError, "job n cannot be stored: invalid input syntax for type json"),
], ids=["conflict", "args"])  # fmt: skip
async def test_refused(floor: Floor, fields: dict[str, Any], error: type[Exception], said: str) -> None:
    await forge(floor.connection, unique_key=KEY, unique_until="end")
    with pytest.raises(error, match=said):
        await floor.claims.submits.submit_unique([job(**fields)])


async def test_a_key_of_a_transaction_that_is_open(floor: Floor, dsn: str) -> None:
    """Try again: an error that says so, and why."""
    async with holding(dsn, "SELECT pulse.submit('n', unique_key => $1)", KEY):
        with pytest.raises(UnavailableError, match=r"^a transaction that is not over has one of these unique keys"):
            await floor.claims.submits.submit_unique([job(unique=KEY)])
    assert await floor.claims.submits.submit_unique([job(unique=KEY)])
