"""Policy per topic: how it is set, what is refused, and its effects."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

import asyncpg
import pytest

from pulse.common.backoff import ALLOWED, backoff_s
from pulse.errors import BadRequestError
from pulse.protocol import HandlerInfo
from pulse.store.operators.gate import GATE_CHANNEL
from pulse.store.operators.policies import OPTIONS, SERVER_OPTIONS, LivePolicy, effective
from pulse.store.rows import Ending, EndingKind, Renewal
from pulse.store.store import Store
from tests.support.store.backoffs import BACKOFFS, FULL, NO_BACKOFFS
from tests.support.store.helpers import NOW, TOPIC, WORKER, Sql, at, forge, job, read

UNSET: Final[dict[str, Any]] = dict.fromkeys(OPTIONS)


async def own(store: Store, topic: str = TOPIC) -> dict[str, object]:
    found = (await store.topics.get(topic))[0 if topic else 1]
    return {option: found[option] for option in OPTIONS}


async def waits(store: Store, connection: Sql, attempts: int = 1, uncharged: int = 0, name: str = "n") -> float:
    identity = await forge(connection, "RUNNING", attempts=attempts, uncharged=uncharged, name=name, max_attempts=99)
    (ended,) = await store.end([Ending(identity, attempts, WORKER, EndingKind.ERROR, "boom")], now=NOW)
    row = await read(connection, identity)
    assert (row["next_run_at"] - NOW).total_seconds() == pytest.approx(ended.delay_s)
    return ended.delay_s


async def test_what_is_set(store: Store) -> None:
    assert await own(store) == UNSET
    await store.topics.set(TOPIC, FULL)
    assert await own(store) == FULL
    await store.topics.set(TOPIC, UNSET)
    assert await own(store) == UNSET


@pytest.mark.parametrize("option", OPTIONS)
async def test_one_option_at_a_time(store: Store, connection: Sql, option: str) -> None:
    """An option that is not named stays, set or not; a row without options goes."""
    await store.topics.set(TOPIC, {option: FULL[option]})
    assert await own(store) == {**UNSET, option: FULL[option]}
    await store.topics.set(TOPIC, {option: None})
    assert await connection.fetchval("SELECT count(*) FROM pulse.topics") == 1
    await store.topics.set(TOPIC, FULL)
    await store.topics.set(TOPIC, {option: None})
    assert await own(store) == {**FULL, option: None}


async def test_many_set_at_once(store: Store) -> None:
    for _ in range(3):
        await asyncio.gather(*(store.topics.set(TOPIC, {option: value}) for option, value in FULL.items()))
        assert await own(store) == FULL
        await asyncio.gather(*(store.topics.set(TOPIC, {option: None}) for option in FULL))
        assert await own(store) == UNSET


async def test_the_server(store: Store, connection: Sql) -> None:
    """The row '' has the server's defaults that are no settings; it is never deleted."""
    values = {option: FULL[option] for option in SERVER_OPTIONS}
    await store.topics.set("", values)
    assert await own(store, "") == {**UNSET, "max_attempts": 5, "max_crashes": 3, **values}
    await store.topics.set("", dict.fromkeys(SERVER_OPTIONS))
    assert await own(store, "") == {**UNSET, "max_attempts": 5, "max_crashes": 3}
    await connection.execute("DELETE FROM pulse.topics")
    await store.topics.get(TOPIC)


_SECONDS: Final = "seconds above 0, at most 1e9, are allowed"
_SECONDS_OR_ZERO: Final = "seconds, 0 or more, at most 1e9, are allowed"
_WHOLE: Final = "a whole number from 1 to 10000 is allowed"
_ANY_TOPIC: Final = 'up to 200 characters are allowed ("" for the server)'
_OPTIONS: Final = (
    "max_attempts, max_crashes, timeout_s, stall_s, lease_s, retention_s, retention_dead_s, ageing_s, backoff, limit,"
    " publish"
)


@pytest.mark.parametrize(("topic", "policy", "message"), [
    ("t", {"max_tries": 3}, f'unknown option "max_tries" of topic "t"; allowed are {_OPTIONS}'),
    ("t", {"max_attempts": 0}, f'max_attempts of topic "t" is 0; {_WHOLE}'),
    ("t", {"max_attempts": 2.5}, f'max_attempts of topic "t" is 2.5; {_WHOLE}'),
    ("t", {"max_crashes": "3"}, f'max_crashes of topic "t" is "3"; {_WHOLE}'),
    ("t", {"timeout_s": -1}, f'timeout_s of topic "t" is -1; {_SECONDS}'),
    ("t", {"stall_s": 0}, f'stall_s of topic "t" is 0; {_SECONDS}'),
    ("t", {"lease_s": 2e9}, f'lease_s of topic "t" is 2000000000.0; {_SECONDS}'),
    ("t", {"retention_s": -0.5}, f'retention_s of topic "t" is -0.5; {_SECONDS_OR_ZERO}'),
    ("t", {"retention_dead_s": True}, f'retention_dead_s of topic "t" is true; {_SECONDS_OR_ZERO}'),
    ("t", {"ageing_s": []}, f'ageing_s of topic "t" is []; {_SECONDS_OR_ZERO}'),
    *(("t", {"publish": bad}, f'publish of topic "t" is {bad}; true or false is allowed') for bad in (1, 0.5)),
    ("", {"max_attempts": 3}, "max_attempts of the server is a setting of it; here timeout_s, stall_s are allowed"),
    ("x" * 201, {"max_attempts": 3}, f"topic is '{'x' * 50}'; up to 200 characters are allowed (\"\" for the server)"),
    *(
        ("t", {"limit": name}, f'limit of topic "t" is {shown}; the name of a limit, 1 to 200 characters, is allowed')
        for name, shown in (("", '""'), ("x" * 201, f'"{"x" * 49}'), (5, "5"), (["api"], '["api"]'))
    ),
    ("", {"limit": "api"}, "limit of the server is a setting of it; here timeout_s, stall_s are allowed"),
    *(
        ("t", {"backoff": word}, f'backoff of topic "t" is {json.dumps(word)[:80]}; allowed are {ALLOWED}')
        for word in NO_BACKOFFS
    ),
])  # fmt: skip
async def test_what_set_topic_refuses(store: Store, topic: str, policy: dict[str, Any], message: str) -> None:
    """One line that names the topic, the option, the value and what is allowed; nothing is changed."""
    await store.topics.set("t", FULL)
    with pytest.raises(BadRequestError) as caught:
        await store.topics.set(topic, {**({} if topic == "" else {"timeout_s": 9.0}), **policy})
    assert caught.value.message == message
    assert await own(store, "t") == FULL


async def test_what_is_no_number(store: Store) -> None:
    with pytest.raises(BadRequestError, match=r'timeout_s of topic "t" is nan; a finite number is allowed'):
        await store.topics.set("t", {"timeout_s": float("nan")})


@pytest.mark.parametrize(("arguments", "message"), [
    ("'t', '[]'", 'the policy of topic "t" must be a JSON object of options, not array'),
    ("'t', NULL", 'the policy of topic "t" must be a JSON object of options, not NULL'),
    ("NULL, '{}'", f"topic is NULL; {_ANY_TOPIC}"),
])  # fmt: skip
async def test_what_sql_refuses(connection: Sql, arguments: str, message: str) -> None:
    with pytest.raises(asyncpg.InvalidParameterValueError) as caught:
        await connection.execute(f"SELECT pulse.set_topic({arguments})")
    assert str(caught.value) == message


async def test_a_plain_update_is_as_good(store: Store, connection: Sql) -> None:
    await connection.execute("INSERT INTO pulse.topics (topic, backoff) VALUES ($1, 'fixed:3')", TOPIC)
    assert await waits(store, connection) == 3
    await connection.execute("UPDATE pulse.topics SET backoff = 'fixed:4', stall_s = 5 WHERE topic = $1", TOPIC)
    assert await waits(store, connection) == 4
    assert await store.topics.live() == {TOPIC: LivePolicy(stall_s=5.0)}


async def test_a_change_is_told(store: Store, connection: Sql, other: Sql) -> None:
    heard: asyncio.Queue[object] = asyncio.Queue()
    await connection.add_listener(GATE_CHANNEL, lambda *message: heard.put_nowait(message[3]))
    await store.topics.set(TOPIC, {"stall_s": 1.0})
    assert await asyncio.wait_for(heard.get(), 5) == "topics"
    for change in (
        "UPDATE pulse.topics SET stall_s = 2",
        "INSERT INTO pulse.topics (topic, stall_s) VALUES ('another', 2)",
        "DELETE FROM pulse.topics WHERE topic = 'another'",
        "TRUNCATE pulse.topics",
    ):
        await other.execute(change)
        assert await asyncio.wait_for(heard.get(), 5) == "topics", change


async def test_whose_back_off_counts(store: Store, connection: Sql) -> None:
    """The handler's, else the topic's, else the server's, else n squared; of charged tries; each when it is set."""
    await store.topics.set("another", {"backoff": "fixed:70"})
    assert await waits(store, connection, 3) == 9
    await store.set_server_defaults(5, 3, "list:10,20,30")
    assert [await waits(store, connection, n, free) for n, free in ((1, 0), (4, 2), (9, 0))] == [10, 20, 30]
    await store.set_server_defaults(5, 3, "quadratic")
    assert await waits(store, connection, 3) == 9
    await store.topics.set(TOPIC, {"backoff": "fixed:40"})
    await store.note_handlers({"other": HandlerInfo(backoff="fixed:60")})
    assert await waits(store, connection, 3) == 40
    assert await waits(store, connection, 3, name="other") == 60
    await store.topics.set(TOPIC, {"backoff": None})
    assert await waits(store, connection, 3, uncharged=1) == 4
    assert await waits(store, connection, 3, name="other") == 60
    await store.set_server_defaults(5, 3, "fixed:50")
    assert await waits(store, connection, 3) == 50


async def test_an_own_delay_goes_before_every_back_off(store: Store, connection: Sql) -> None:
    """RetryAfter and Snooze say how long; a crash has its own rule; a job that was given back does not wait."""
    await store.topics.set(TOPIC, {"backoff": "fixed:40"})
    for kind, delay_s, waited in (
        (EndingKind.RETRY, 5.0, 5.0),
        (EndingKind.SNOOZED, 6.0, 6.0),
        (EndingKind.RELEASED, None, 0.0),
        (EndingKind.CRASHED, None, 0.0),
        (EndingKind.TIMEOUT, None, 40.0),
    ):
        identity = await forge(connection, "RUNNING")
        (ended,) = await store.end([Ending(identity, 1, WORKER, kind, "x", delay_s)], now=NOW)
        assert ended.delay_s == waited, kind


@pytest.mark.parametrize("word", BACKOFFS)
@pytest.mark.parametrize("tries", [0, 1, 2, 3, 20, 10_000])
async def test_sql_and_python_wait_alike(connection: Sql, word: str, tries: int) -> None:
    """Both languages compute the same, up to the jitter, between half and the whole."""
    found = [
        row["s"]
        for row in await connection.fetch(
            "SELECT pulse.backoff_s($1, $2) AS s FROM generate_series(1, 50)", word, tries
        )
    ]
    if not word.startswith("exponential"):
        assert set(found) == {backoff_s(word, tries)}
        return
    mine = [backoff_s(word, tries) for _ in range(50)]
    first_s, longest_s = ([*map(float, word.split(":")[1:]), *[1.0, 3600.0][word.count(":") :]])[:2]
    whole_s = min(longest_s, first_s * 2.0 ** min(max(tries, 1) - 1, 40))
    for waits_s in (found, mine):
        assert whole_s / 2 <= min(waits_s) < max(waits_s) <= whole_s


async def test_tries_and_timeout_are_resolved_at_submit(store: Store, connection: Sql) -> None:
    before, after = job(), job()
    await store.submit([before])
    await store.topics.set(TOPIC, {"max_attempts": 7, "timeout_s": 3.5})
    await store.submit([after])
    found = [await read(connection, one.id or b"") for one in (before, after)]
    assert [(row["max_attempts"], row["timeout_s"]) for row in found] == [(5, None), (7, 3.5)]


@pytest.mark.parametrize(("lease_s", "length_s"), [(None, 30), (90.0, 90), (10.0, 30)])
async def test_a_topic_may_have_longer_leases(
    store: Store, connection: Sql, lease_s: float | None, length_s: float
) -> None:
    """A heartbeat extends to the topic's lease where that is longer than the server's; else to the server's."""
    await store.topics.set(TOPIC, {"lease_s": lease_s, "stall_s": 1.0})
    mine, other = await forge(connection, "RUNNING"), await forge(connection, "RUNNING", topic="other")
    await store.extend([Renewal(one, 1, WORKER, None) for one in (mine, other)], 30.0, now=at(1))
    assert (await read(connection, mine))["lease_until"] == at(1 + length_s)
    assert (await read(connection, other))["lease_until"] == at(31)


async def test_what_servers_keep_in_memory(store: Store) -> None:
    assert await store.topics.live() == {}
    await store.topics.set("a", FULL)
    await store.topics.set("b", {"max_attempts": 3, "backoff": "fixed:1"})
    await store.topics.set("", {"stall_s": 9.0})
    assert await store.topics.live() == {"": LivePolicy(stall_s=9.0), "a": LivePolicy(2.5, 90.0, 0.0, 5.0, 60.0)}


async def test_pages(store: Store) -> None:
    for topic in "cab":
        await store.topics.set(topic, {"max_attempts": ord(topic)})
    first, following = await store.topics.page(2, None)
    second, end = await store.topics.page(2, following)
    assert [(one["topic"], one["max_attempts"]) for one in (*first, *second)] == [
        ("", 5), ("a", 97), ("b", 98), ("c", 99),
    ]  # fmt: skip
    assert (following, end) == ("a", None)


async def test_handlers_of_a_topic(store: Store) -> None:
    """Their own declarations win over the topic's policy, so `topics` shows them with it."""
    await store.note_handlers({"a": HandlerInfo(topic="x", backoff="fixed:1"), "b": HandlerInfo(max_attempts=2)})
    assert await store.topics.handlers("x") == [{"name": "a", "backoff": "fixed:1"}]
    assert await store.topics.handlers("default") == [{"name": "b", "max_attempts": 2}]


def test_effective() -> None:
    """The topic's value, else the server's, with its source; a lease shorter than the server's is the server's."""
    server = {**UNSET, "max_attempts": 5, "lease_s": 30.0, "backoff": "quadratic"}
    found = effective({**UNSET, "max_attempts": 3, "lease_s": 10.0, "timeout_s": 2.0}, server)
    assert found["max_attempts"] == {"value": 3, "source": "topic"}
    assert found["timeout_s"] == {"value": 2.0, "source": "topic"}
    assert found["backoff"] == {"value": "quadratic", "source": "server"}
    assert found["stall_s"] == {"value": None, "source": None}
    assert found["lease_s"] == {"value": 30.0, "source": "server"}
    assert effective({**UNSET, "lease_s": 40.0}, server)["lease_s"] == {"value": 40.0, "source": "topic"}
