"""Policies of limits: what is set, unset and refused, and what the audit says of it."""

from __future__ import annotations

import json

import asyncpg
import pytest

from pulse.errors import BadRequestError
from pulse.limit import LIMIT_OPTIONS
from pulse.store.operators.transaction import Operator
from pulse.store.store import Store
from tests.support.store.helpers import NOW, Sql, at, forge


def row(name: str, group: str | None = None, **values: object) -> dict[str, object]:
    """Of a limit that nothing has been counted of."""
    unset = dict.fromkeys((*LIMIT_OPTIONS, "tokens", "declared_by", "undeclared_at"))
    return {
        "name": name, "group_key": group, **unset, "running": 0, "topics": [name] if group is None else None, **values
    }  # fmt: skip


async def test_options_are_set_and_unset_one_by_one(store: Store) -> None:
    """What is not named stays; null unsets; a group has its own row, and other limits are left alone."""
    await store.limits.set("api", {"concurrency": 5, "rate": 2, "burst": 3, "group_concurrency": 1, "group_rate": 0.5})
    await store.limits.set("api", {"group_burst": 4, "sequence": "halt", "burst": None})
    await store.limits.set("api", {"concurrency": 0, "rate": 9.0}, group="g")
    await store.limits.set("beta", {})
    whole = row(
        "api", concurrency=5, rate=2.0, group_concurrency=1, group_rate=0.5, group_burst=4, sequence="halt", tokens=2.0
    )
    group = row("api", "g", concurrency=0, rate=9.0, tokens=9.0)
    other = row("beta")
    assert await store.limits.page(9) == [whole, group, other]
    assert await store.limits.page(9, name="api") == [whole, group]
    assert [await store.limits.get("api"), await store.limits.get("api", group="g")] == [whole, group]
    assert [await store.limits.get("ap"), await store.limits.get("api", group="h")] == [None, None]
    assert await store.limits.page(2) == [whole, group]
    assert await store.limits.page(9, ("api", None)) == [group, other]
    assert await store.limits.page(9, ("api", "g")) == [other]
    assert await store.limits.unset("api", group="g")
    assert await store.limits.page(9) == [whole, other]
    assert await store.limits.unset("api")
    assert await store.limits.page(9) == [other]


@pytest.mark.parametrize("group", ["", "*", "h"])
async def test_only_a_group_that_differs_is_unset(store: Store, group: str) -> None:
    await store.limits.set("api", {"concurrency": 5, "group_concurrency": 2})
    await store.limits.set("api", {"concurrency": 1}, group="g")
    before = await store.limits.page(9)
    assert not await store.limits.unset("api", group=group)
    assert not await store.limits.unset("other")
    assert await store.limits.page(9) == before


@pytest.mark.parametrize(("name", "group", "policy", "says"), [
    ("", None, {}, "the name of a limit is ''; 1 to 200 characters are allowed"),
    ("x" * 201, None, {}, "the name of a limit is 'x+'; 1 to 200"),
    ("l", "", {}, "the group of limit \"l\" is ''; 1 to 200 characters are allowed, but not"),
    ("l", "*", {}, "the group of limit \"l\" is '\\*'; 1 to 200"),
    ("l", "x" * 201, {}, "the group of limit \"l\" is 'x+'; 1 to 200"),
    ("l", None, {"x": 1}, ('unknown option "x" of limit "l"; allowed are concurrency, rate, burst, group_concurrency, '
                          "group_rate, group_burst, sequence$")),
    ("l", "g", {"sequence": "halt"}, ('unknown option "sequence" of group "g" of limit "l"; allowed are concurrency, '
                                     "rate, burst$")),
    ("l", None, {"concurrency": -1}, 'concurrency of limit "l" is -1; a whole number from 0 to 1000000 is allowed'),
    ("l", None, {"group_concurrency": 1000001}, 'group_concurrency of limit "l" is 1000001; a whole number from 0'),
    ("l", None, {"concurrency": 1.5}, 'concurrency of limit "l" is 1.5; a whole'),
    ("l", "g", {"burst": 0, "rate": 1}, 'burst of group "g" of limit "l" is 0; a whole number from 1 to 1000000 is'),
    ("l", None, {"rate": 0}, 'rate of limit "l" is 0; starts per second from 0.000001 to 1000000 are allowed'),
    ("l", None, {"rate": 1e7}, 'rate of limit "l" is 10000000'),
    ("l", None, {"rate": "1"}, 'rate of limit "l" is "1"; starts'),
    ("l", None, {"rate": float("nan")}, 'rate of limit "l" is nan; a finite number is allowed'),
    ("l", None, {"sequence": "stop"}, 'sequence of limit "l" is "stop"; allowed are continue, halt'),
    ("l", None, {"burst": 1}, 'limit "l" has a burst without a rate, or a sequence with a group_concurrency above 1'),
    ("l", None, {"sequence": "halt", "group_concurrency": 2}, 'limit "l" has a burst without a rate, or a sequence'),
])  # fmt: skip
async def test_what_is_refused(
    store: Store, name: str, group: str | None, policy: dict[str, object], says: str
) -> None:
    """With one line that says what is allowed; nothing is stored."""
    with pytest.raises(BadRequestError, match=says):
        await store.limits.set(name, policy, group=group)
    assert await store.limits.page(9) == []


async def test_a_policy_is_an_object(connection: Sql) -> None:
    for given, said in (("'[]'", "array"), ("NULL", "NULL")):
        with pytest.raises(asyncpg.InvalidParameterValueError, match=f"must be a JSON object of options, not {said}"):
            await connection.execute(f"SELECT pulse.set_limit('l', NULL, {given})")
    with pytest.raises(asyncpg.InvalidParameterValueError, match="the name of a limit is NULL"):
        await connection.execute("SELECT pulse.set_limit(NULL, NULL, '{}')")


async def test_the_audit_knows_who_it_was(store: Store) -> None:
    async with store.acting(Operator(uid=7, user="ann")) as session:
        await session.limits.set("api", {"concurrency": 5, "rate": None})
        await session.limits.set("api", {"concurrency": 1}, group="g")
        await session.limits.unset("api", group="g")
        assert not await session.limits.unset("api", group="g")
        await session.limits.unset("api")
    entries, _ = await store.audit.page(9)
    assert [(entry["action"], entry["user_name"], json.loads(str(entry["detail"]))) for entry in entries] == [
        ("limits.unset", "ann", {"name": "api"}),
        ("limits.unset", "ann", {"name": "api", "group_key": "g"}),
        ("limits.set", "ann", {"name": "api", "group_key": "g", "concurrency": 1}),
        ("limits.set", "ann", {"name": "api", "concurrency": 5, "rate": None}),
    ]


async def test_what_runs_is_counted_where_its_topic_goes(store: Store, connection: Sql) -> None:
    """A new limit counts what runs already, and what counted before when its oldest slot was younger."""
    for topic in ("a", "b", "c"):
        await forge(connection, "RUNNING", topic=topic)
    await forge(connection, topic="a")
    counted = "SELECT topic, counted_by FROM pulse.jobs WHERE counted_by IS NOT NULL ORDER BY topic"
    await store.limits.set("a", {"concurrency": 1})
    assert [tuple(row) for row in await connection.fetch(counted)] == [("a", "a")]
    await connection.execute("UPDATE pulse.limits SET oldest_at = 'infinity'")
    await store.topics.set("b", {"limit": "a"})
    await store.topics.set("c", {"limit": "none"})
    assert [tuple(row) for row in await connection.fetch(counted)] == [("a", "a"), ("b", "a")]
    [limit] = await connection.fetch("SELECT oldest_at, claims FROM pulse.limits")
    assert tuple(limit) == (None, 2)
    await store.limits.unset("a")
    assert await connection.fetch(counted) == []


async def test_other_limits_and_groups_stay_as_they_are(store: Store, connection: Sql) -> None:
    """Also how often they were claimed under: a claim that goes by them goes on."""
    for name in ("api", "mail"):
        await store.limits.set(name, {"concurrency": 5})
        for group in ("g", "h"):
            await store.limits.set(name, {"concurrency": 1}, group=group)
    await forge(connection, "RUNNING", topic="api")
    others = "SELECT * FROM pulse.limits WHERE name = 'mail' OR group_key = 'h' ORDER BY name, group_key"
    before = await connection.fetch(others)
    assert await store.limits.unset("api", group="g")
    assert await connection.fetchval("SELECT counted_by FROM pulse.jobs") == "api"
    assert await connection.fetch(others) == before
    assert len(before) == 4


async def test_jobs_that_wait_are_not_locked(store: Store, connection: Sql, other: Sql) -> None:
    """Only those that run are counted."""
    await store.limits.set("a", {})
    waiting = await forge(connection, topic="a")
    await forge(connection, "RUNNING", topic="a")
    async with connection.transaction():
        await connection.execute("SELECT pulse.count_slots()")
        free = await other.fetch("SELECT id FROM pulse.jobs FOR UPDATE SKIP LOCKED")
    assert [row["id"].bytes for row in free] == [waiting]


@pytest.mark.parametrize(("change", "waits"), [
    ("set_limit('new', NULL, '{}')", True),
    ("set_limit('api', NULL, '{}')", False),
    ("set_topic('t', '{\"limit\": \"api\"}')", True),
    ("set_topic('t', '{\"max_attempts\": 3}')", False),
])  # fmt: skip
async def test_which_changes_wait_for_claims(store: Store, connection: Sql, change: str, waits: bool) -> None:
    """Those that say by which limit a topic goes; all others leave the claims alone."""
    await store.limits.set("api", {})
    sql = "SELECT FROM pg_locks WHERE relation = 'pulse.limits'::regclass AND mode = 'AccessExclusiveLock'"
    async with connection.transaction():
        await connection.execute(f"SELECT pulse.{change}")
        assert bool(await connection.fetch(f"{sql} AND pid = pg_backend_pid()")) is waits


async def test_all_hosts_hear_of_it(store: Store, connection: Sql, own_database: str) -> None:
    heard: list[object] = []
    await connection.add_listener("pulse_gate", lambda *told: heard.append(told[-1]))
    await store.limits.set("api", {})
    await store.limits.unset("api")
    await store.topics.set("t", {"limit": "api"})
    await store.topics.set("t", {"max_attempts": 3})
    await connection.execute("SELECT 1")
    assert heard == ["limits", "limits", "topics", "limits", "topics"]


async def test_what_a_page_says_of_the_present(store: Store, connection: Sql) -> None:
    """Slots that are taken, tokens that are left, and which topics go by each limit."""
    await store.limits.set("api", {"rate": 2.0, "burst": 5})
    await store.limits.set("api", {"rate": 0.5}, group="g")
    await store.limits.set("mail", {"concurrency": 1})
    for topic, limit in (("web", "api"), ("app", "api"), ("mail", "none")):
        await store.topics.set(topic, {"limit": limit})
    for topic, group in (("web", "g"), ("app", "g"), ("web", "h"), ("app", None), ("mail", "g")):
        await forge(connection, "RUNNING", topic=topic, group_key=group, counted_by=None if topic == "mail" else "api")
    await forge(connection, topic="web", group_key="g")
    await connection.execute("UPDATE pulse.limits SET tokens = 1, tokens_at = $1 WHERE group_key = ''", NOW)
    [whole, differs, mail] = await store.limits.page(9, now=at(1.25))
    assert [(one["running"], one["topics"]) for one in (whole, differs, mail)] == [
        (4, ["api", "app", "web"]), (2, None), (0, []),
    ]  # fmt: skip
    assert [one["tokens"] for one in (whole, differs, mail)] == [3.5, 1.0, None]
    for moment, tokens in ((at(-9), 1.0), (at(99), 5.0)):  # the clock went back, and there are as many as there can be
        assert (await store.limits.page(1, now=moment))[0]["tokens"] == tokens


async def test_who_declares_a_limit(store: Store, connection: Sql) -> None:
    """Each application's own are marked when it does not declare them any more, once; declared again, they are not."""
    for name, by in (("a", "one:app"), ("b", "one:app"), ("c", "two:app")):
        await store.limits.set(name, {"group_rate": 1})
        await store.limits.declared(name, by)
    await store.limits.set("d", {"concurrency": 1})
    declared = "SELECT group_key FROM pulse.limits WHERE declared_by IS NOT NULL"
    assert [row[0] for row in await connection.fetch(declared)] == [""] * 3  # not what differs for groups
    assert await store.limits.undeclare("one:app", ["b"]) == ["a"]
    assert await store.limits.undeclare("one:app", ["b"]) == []
    marked = {row["name"]: (row["declared_by"], row["undeclared_at"] is not None) for row in await store.limits.page(9)}
    assert marked == {"a": ("one:app", True), "b": ("one:app", False), "c": ("two:app", False), "d": (None, False)}
    await store.limits.declared("a", "two:app")
    again = await store.limits.get("a")
    assert again is not None
    assert (again["declared_by"], again["undeclared_at"]) == ("two:app", None)
