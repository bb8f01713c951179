"""Unique keys of schedules from SQL: what the functions store, refuse, and do while another job has the key."""

from __future__ import annotations

import json
import uuid
from typing import Any

import asyncpg
import pytest

from tests.support.store.helpers import Sql, dropping, found_of


async def made(connection: Sql, call: str) -> uuid.UUID:
    found = await connection.fetchval(f"SELECT {call}")
    return uuid.UUID(bytes=found.bytes)


async def set_options(connection: Sql, identity: uuid.UUID, changes: dict[str, Any]) -> asyncpg.Record:
    assert await connection.fetchval("SELECT pulse.set_schedule($1, $2)", str(identity), json.dumps(changes))
    columns = "unique_key, unique_until, on_conflict"
    return found_of(await connection.fetchrow(f"SELECT {columns} FROM pulse.schedules WHERE id = $1", str(identity)))


@pytest.mark.parametrize(("options", "message"), [
    ("unique_key => ''", "unique_key is ''; 1 to 500 characters are allowed"),
    ("unique_until => 'end'", "unique_until or on_conflict is given; they are allowed with unique_key only"),
    ("unique_key => 'k', on_conflict => 'error'", "on_conflict is 'error'; allowed for a schedule are skip, replace"),
    (
        "unique_key => 'k', overlap => 'skip'",
        "overlap is 'skip'; with unique_key only allow is: on_conflict says what happens",
    ),
])  # fmt: skip
async def test_what_is_refused(connection: Sql, options: str, message: str) -> None:
    with pytest.raises(asyncpg.InvalidParameterValueError) as refused:
        await connection.execute(f"SELECT pulse.create_schedule('n', every_s => 5, {options})")
    assert refused.value.args[0] == message


async def test_a_key_is_unset_with_all_that_is_said_of_it(connection: Sql) -> None:
    identity = await made(connection, "pulse.create_schedule('n', every_s => 60, unique_key => 'k')")
    await set_options(connection, identity, {"unique_until": "start"})
    row = await set_options(connection, identity, {"on_conflict": "replace"})
    assert (row["unique_key"], row["unique_until"], row["on_conflict"]) == ("k", "start", "replace")
    call = "SELECT pulse.update_schedule($1, unique_until => 'end', on_conflict => 'skip')"
    assert await connection.fetchval(call, str(identity))
    row = await set_options(connection, identity, {"unique_key": None})
    assert (row["unique_key"], row["unique_until"], row["on_conflict"]) == (None, None, None)


@pytest.mark.parametrize("until", ["start", "end"])
async def test_a_trigger_goes_by_the_key(connection: Sql, until: str) -> None:
    """It makes no second job while one has the key; the answer is that one, of any client."""
    rule = f"every_s => 60, unique_key => 'k', unique_until => '{until}'"
    identity = await made(connection, f"pulse.create_schedule('n', {rule})")
    first = await made(connection, f"pulse.trigger_schedule('{identity}')")
    row = found_of(await connection.fetchrow("SELECT unique_key, unique_until FROM pulse.jobs"))
    assert tuple(row) == ("k", until)
    assert await made(connection, f"pulse.trigger_schedule('{identity}')") == first
    assert await made(connection, f"pulse.trigger_schedule('{identity}', '{first}')") == first
    noted = await connection.fetchval("SELECT array_agg(job_id) FROM pulse.audit WHERE action = 'schedules.trigger'")
    assert noted == [first] * 3
    await connection.execute("DELETE FROM pulse.jobs")
    theirs = await made(connection, "pulse.submit('m', unique_key => 'k')")
    assert await made(connection, f"pulse.trigger_schedule('{identity}')") == theirs


async def test_each_has_its_own_key(connection: Sql) -> None:
    """A trigger finds the job with the key of its own schedule; without a key it makes a new one, that has none."""
    every = "pulse.create_schedule('n', every_s => 60"
    schedules = [await made(connection, f"{every}, unique_key => '{key}')") for key in "ab"]
    jobs = [await made(connection, f"pulse.trigger_schedule('{one}')") for one in schedules]
    assert [await made(connection, f"pulse.trigger_schedule('{one}')") for one in schedules] == jobs
    keyless = await made(connection, f"{every})")
    ids = {await made(connection, f"pulse.trigger_schedule('{keyless}')") for _ in range(2)}
    rows = await connection.fetch("SELECT id FROM pulse.jobs WHERE num_nonnulls(unique_key, unique_until) = 0")
    assert {row["id"] for row in rows} == ids
    assert len(ids) == 2


@pytest.mark.usefixtures("own_database")
async def test_a_key_that_goes_between_two_looks(connection: Sql) -> None:
    """The INSERT has met the job that has it, which has ended before it is looked at: the next try takes the key."""
    identity = await made(connection, "pulse.create_schedule('n', every_s => 60, unique_key => 'k')")
    first = await made(connection, f"pulse.trigger_schedule('{identity}')")
    text: str = await connection.fetchval("SELECT pg_get_functiondef('pulse.unique_holder'::regproc)")
    ends_it = "BEGIN UPDATE pulse.jobs SET status = 'CANCELED', completed_at = now(); END"
    await connection.execute(f"{text.partition('LANGUAGE')[0]} LANGUAGE plpgsql AS $$ {ends_it} $$")
    second = await made(connection, f"pulse.trigger_schedule('{identity}')")
    waiting = await connection.fetch("SELECT id FROM pulse.jobs WHERE status = 'PENDING'")
    assert [row["id"] for row in waiting] == [second]
    assert second != first


async def test_a_trigger_replaces(connection: Sql) -> None:
    rule = "every_s => 60, args => '{\"a\": 2}', unique_key => 'k', on_conflict => 'replace'"
    identity = await made(connection, f"pulse.create_schedule('n', {rule})")
    theirs = await made(connection, "pulse.submit('n', unique_key => 'k', delay_s => 60)")
    assert await made(connection, f"pulse.trigger_schedule('{identity}')") == theirs
    row = found_of(await connection.fetchrow("SELECT args, next_run_at <= clock_timestamp() FROM pulse.jobs"))
    assert tuple(row) == ('{"a": 2}', True)


async def test_a_trigger_that_stores_nothing(connection: Sql) -> None:
    identity = await made(connection, "pulse.create_schedule('n', every_s => 60)")
    async with dropping(connection):
        with pytest.raises(asyncpg.NoDataFoundError, match=r"job .* is not stored, without an error"):
            await made(connection, f"pulse.trigger_schedule('{identity}')")
