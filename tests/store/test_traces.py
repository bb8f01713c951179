"""A job carries the trace of whoever submitted it to whoever claims it, by whichever way it came."""

from __future__ import annotations

import json
from typing import Any, Final

import asyncpg
import pytest

from pulse.protocol import NewJob
from pulse.store.store import Store
from tests.store.helpers import LEASE_S, TOPIC, WORKER, Sql, claim, job

TRACE: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203332-00"
BAD: Final = ["", "x", TRACE[:-1], f"{TRACE}0", TRACE.upper(), f"{TRACE}\n", f"\n{TRACE}"]


def _jobs() -> list[NewJob]:
    return [job(traceparent=TRACE), job(), job(traceparent=OTHER)]


@pytest.mark.parametrize("again", [False, True])
async def test_from_a_submit_to_the_claim(store: Store, again: bool) -> None:
    """Each job its own, or none."""
    await (store.submit_again if again else store.submit)(_jobs())
    assert [one.traceparent for one in await claim(store, seconds=1e9)] == [TRACE, None, OTHER]


async def test_handed_out_by_the_submit(store: Store) -> None:
    """The same where no claim is made."""
    claims, _ = await store.submit_and_claim(_jobs(), [TOPIC], [WORKER], [0, 0, 0], LEASE_S)
    assert sorted(str(one.traceparent) for one in claims) == sorted([TRACE, "None", OTHER])


async def test_from_sql_to_the_claim(store: Store, connection: Sql) -> None:
    """Both functions take it."""
    await connection.execute("SELECT pulse.submit('n', topic => 't', traceparent => $1)", TRACE)
    many: list[dict[str, Any]] = [{"name": "n", "topic": "t", "traceparent": OTHER}, {"name": "n", "topic": "t"}]
    await connection.execute("SELECT pulse.submit_many($1::jsonb)", json.dumps(many))
    assert [one.traceparent for one in await claim(store, seconds=1e9)] == [TRACE, OTHER, None]


async def test_what_was_written_past_the_functions(store: Store, connection: Sql) -> None:
    """Whoever may insert may insert megabytes: no frame could carry them, so the job is handed out without."""
    await store.submit([job()])
    await connection.execute("UPDATE pulse.jobs SET traceparent = repeat('x', 9000000)")
    assert [one.traceparent for one in await claim(store, seconds=1e9)] == [None]


@pytest.mark.parametrize("bad", BAD)
async def test_what_sql_refuses(connection: Sql, bad: str) -> None:
    """What is none of W3C Trace Context, with what was given."""
    for sql, given in (
        ("SELECT pulse.submit('n', traceparent => $1)", bad),
        ("SELECT pulse.submit_many($1::jsonb)", json.dumps([{"name": "n"}, {"name": "n", "traceparent": bad}])),
    ):
        with pytest.raises(asyncpg.PostgresError, match=r"(?s)^traceparent is .*; one of W3C Trace Context is allowed"):
            await connection.execute(sql, given)
