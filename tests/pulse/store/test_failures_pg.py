"""
Values that PostgreSQL cannot store: each is reported as the row's fault, so that the others of a statement can go on.

A statement that fails for a bad row changes nothing, leaves its connection usable, and succeeds without that row.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any, Final

import asyncpg
import pytest
from msgspec.structs import replace

from pulse.errors import StatementError, StatementTimeoutError
from pulse.store.failures import explain
from pulse.store.rows import Completion, Ending, EndingKind, Renewal
from pulse.store.store import Store
from tests.support.store.helpers import LEASE_S, WORKER, Sql, count, fence, forge, job, read

DEEP: Final = "[" * 20_000 + "]" * 20_000
BAD_JSON: Final = {
    "NUL": '"\\u0000"', "raw NUL": '"\0"', "NaN": "NaN", "Infinity": "-Infinity", "lone surrogate": '"\\ud800"',
    "raw lone surrogate": '"\ud800"', "20 000 deep": DEEP, "not JSON": "{", "nothing": "",
    "too many digits": "1e400000",
}  # fmt: skip
BAD_TEXT: Final = {"NUL": "a\0b", "lone surrogate": "a\udfffb"}
BAD_JOBS: Final[dict[str, dict[str, Any]]] = {
    **{f"args: {name}": {"args": f'{{"a": {value}}}'} for name, value in BAD_JSON.items()},
    **{f"args: {value}": {"args": value} for value in ("[]", "null", "1", '"{}"')},
    **{f"name: {name}": {"name": value} for name, value in BAD_TEXT.items()},
    **{f"topic: {name}": {"topic": value} for name, value in BAD_TEXT.items()}, "name: empty": {"name": ""},
    "name: long": {"name": "x" * 201}, "topic: long": {"topic": "x" * 201}, "priority": {"priority": 101},
    "priority: no smallint": {"priority": 40_000}, "max_attempts": {"max_attempts": 0},
    "max_attempts: no int": {"max_attempts": 2**31}, "timeout_s": {"timeout_s": 0.0},
    "timeout_s: NaN": {"timeout_s": math.nan}, "run_at: NaN": {"run_at": math.nan},
    "run_at: infinite": {"run_at": math.inf}, "run_at: beyond": {"run_at": 1e18},
    "run_at: before Christ": {"run_at": -1e11}, "run_at: year 10000": {"run_at": 253_402_300_800.0},
    "delay_s: NaN": {"delay_s": math.nan}, "delay_s: infinite": {"delay_s": math.inf},
    "delay_s: beyond": {"delay_s": 1e18},
}  # fmt: skip
BAD_ENDINGS: Final[dict[str, dict[str, Any]]] = {
    **{f"error: {name}": {"error": value} for name, value in BAD_TEXT.items()},
    **{f"progress: {name}": {"progress": value} for name, value in BAD_JSON.items()},
    "no reason": {"kind": EndingKind.DISCARDED, "error": None},
    "empty reason": {"kind": EndingKind.DISCARDED, "error": ""}, "delay_s: NaN": {"delay_s": math.nan},
    "delay_s: infinite": {"delay_s": math.inf}, "delay_s: beyond": {"delay_s": 1e18},
    "exit code": {"exit_code": 2**31}, "attempt": {"attempt": 2**31},
}  # fmt: skip


async def refused(doing: Awaitable[object]) -> None:
    """*doing* fails by a bad row, which is not the same as an absent database."""
    with pytest.raises(StatementError) as caught:
        await doing
    assert caught.value.is_value, caught.value
    assert caught.value.code == "bad_request"


async def alone(store: Store, connection: Sql, ids: list[bytes], doing: Callable[[], Awaitable[object]]) -> None:
    """*doing* is refused, changes nothing, and the hot connection is still the same one."""
    before = [await read(connection, identity) for identity in ids]
    pids = [await _pid(store), await _pid(store)]
    await refused(doing())
    assert [await read(connection, identity) for identity in ids] == before
    assert await _pid(store) == pids[0] == pids[1]


async def _pid(store: Store) -> int:
    async with store.hot.connection() as hot:
        return hot.get_server_pid()


@pytest.mark.parametrize("fields", BAD_JOBS.values(), ids=BAD_JOBS)
async def test_submit(store: Store, connection: Sql, fields: dict[str, Any]) -> None:
    """A job that cannot be stored refuses its submit, first or repeated; its neighbours go in without it."""
    good, bad = [job() for _ in range(3)], job(**fields)
    await alone(store, connection, [], lambda: store.submit([good[0], bad, *good[1:]]))
    await refused(store.submit_again([good[0], bad, *good[1:]]))
    assert await count(connection) == 0
    await store.submit(good)
    assert await count(connection) == 3


@pytest.mark.parametrize("value", BAD_JSON.values(), ids=BAD_JSON)
async def test_complete(store: Store, connection: Sql, value: str) -> None:
    ids = [await forge(connection, "RUNNING") for _ in range(3)]
    completions = [Completion(identity, 1, WORKER, "1") for identity in ids]
    bad_result, bad_progress = replace(completions[1], result=value), replace(completions[1], progress=value)
    await alone(store, connection, ids, lambda: store.complete([completions[0], bad_result, completions[2]]))
    await alone(store, connection, ids, lambda: store.complete([completions[0], bad_progress, completions[2]]))
    assert len(await store.complete(completions)) == 3


@pytest.mark.parametrize("fields", BAD_ENDINGS.values(), ids=BAD_ENDINGS)
async def test_end(store: Store, connection: Sql, fields: dict[str, Any]) -> None:
    ids = [await forge(connection, "RUNNING") for _ in range(3)]
    endings = [Ending(*fence(identity), EndingKind.ERROR, "why") for identity in ids]
    bad = endings[1]._replace(**fields)
    await alone(store, connection, ids, lambda: store.end([endings[0], bad, endings[2]]))
    assert len(await store.end(endings)) == 3


@pytest.mark.parametrize("value", BAD_JSON.values(), ids=BAD_JSON)
async def test_extend_and_checkpoint(store: Store, connection: Sql, value: str) -> None:
    ids = [await forge(connection, "RUNNING") for _ in range(3)]
    beats = [Renewal(identity, 1, WORKER, "1") for identity in ids]
    mixed = [beats[0], beats[1]._replace(progress=value), beats[2]]
    await alone(store, connection, ids, lambda: store.extend(mixed, LEASE_S))
    await alone(store, connection, ids, lambda: store.checkpoint(mixed))
    assert len(await store.extend(beats, LEASE_S)) == len(await store.checkpoint(beats)) == 3


async def test_what_looks_bad_and_is_not(store: Store, connection: Sql) -> None:
    """Numbers beyond a float, repeated keys, and text of any language are stored."""
    await store.submit([job(args='{"a": 1e400, "a": -1e400, "\\ud83d\\ude00": "\\u007f"}', name="é😀", topic="t\n")])
    assert (await connection.fetchval("SELECT args::text FROM pulse.jobs"))[:20].startswith('{"a": -1000')


async def test_other_errors_are_not_bad_rows(store: Store, connection: Sql) -> None:
    """A missing table is no bad row: it may come back; neither is a statement that took too long."""
    with pytest.raises(StatementError, match=r"relation .nowhere. does not exist .SQLSTATE 42P01") as caught:
        async with store.hot.connection() as hot:
            await hot.fetch("SELECT FROM nowhere")
    assert (caught.value.is_value, caught.value.code) == (False, "unavailable")
    assert (caught.value.sqlstate, caught.value.statement) == ("42P01", "SELECT FROM nowhere")
    with pytest.raises(StatementTimeoutError, match="statement timeout"):
        async with store.hot.connection() as hot:
            await hot.execute("SET statement_timeout = 10; SELECT pg_sleep(5)")


@pytest.mark.parametrize(("change", "told"), [
    ("starts_at = '0001-01-01 00:00+00'", "starts_at must lie in the years 1 to 9999"),
    ("overlap = 'never'", 'new row for relation "schedules" violates check constraint "schedules_overlap"'),
    ("name = NULL", 'null value in column "name" of relation "schedules" violates not-null constraint'),
])  # fmt: skip
async def test_no_row_is_told(connection: Sql, change: str, told: str) -> None:
    """PostgreSQL's error has the row, with args that may be hidden; that part is left out."""
    await connection.execute("SELECT pulse.create_schedule('n', every_s => 5, args => '{\"pin\": 1234}')")
    with pytest.raises(asyncpg.PostgresError) as caught:
        await connection.execute(f"UPDATE pulse.schedules SET {change}")
    assert "1234" in str(caught.value.detail)
    assert explain(caught.value) == told
