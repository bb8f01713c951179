"""Requests about limits on the raw wire: set, unset, listed, and declared by code."""

from __future__ import annotations

import json
import os
from typing import Any, Final

import psycopg
import pytest

from tests.support.systems.system import Peer, System
from tests.support.waiting import until

pytestmark = [pytest.mark.postgres, pytest.mark.process, pytest.mark.system]

SETTINGS: Final = {"PULSE_POLL_S": "60"}
OPTIONS: Final = ("concurrency", "rate", "burst", "group_concurrency", "group_rate", "group_burst", "sequence")


def policy_of(row: dict[str, Any]) -> dict[str, Any]:
    return {option: row[option] for option in OPTIONS if row[option] is not None}


def rows_of(client: Peer, name: str) -> dict[str | None, dict[str, Any]]:
    return {row["group_key"]: row for row in client.call("limits.list", name=name)["limits"]}


def test_what_is_set_and_unset(client: Peer, topic: str) -> None:
    """Option by option; a group of which nothing differs any more is listed no longer."""
    client.call("limits.set", name=topic, policy={"concurrency": 5, "rate": 2.0})
    row = client.call("limits.set", name=topic, policy={"rate": None, "sequence": "halt"})["limit"]
    assert (policy_of(row), row["topics"], row["running"]) == ({"concurrency": 5, "sequence": "halt"}, [topic], 0)
    row = client.call("limits.set", name=topic, group_key="g", policy={"concurrency": 0})["limit"]
    assert (row["group_key"], policy_of(row)) == ("g", {"concurrency": 0})
    assert [policy_of(one) for one in rows_of(client, topic).values()] == [
        {"concurrency": 5, "sequence": "halt"}, {"concurrency": 0},
    ]  # fmt: skip
    row = client.call("limits.set", name=topic, group_key="g", policy={"concurrency": None})["limit"]
    assert (row["name"], row["group_key"], policy_of(row)) == (topic, "g", {})
    assert list(rows_of(client, topic)) == [None]
    client.call("limits.set", name=topic, group_key="g", policy={"rate": 1.5})
    assert policy_of(client.call("limits.unset", name=topic, group_key="g")["limit"]) == {"rate": 1.5}
    assert policy_of(client.call("limits.unset", name=topic)["limit"]) == {"concurrency": 5, "sequence": "halt"}
    assert rows_of(client, topic) == {}


def test_a_topic_goes_by_another_limit(system: System, client: Peer, topic: str) -> None:
    limit = f"of {topic}"
    answer = client.call("topics.set", topic=topic, policy={"limit": limit})["topic"]
    assert answer["policy"]["limit"] == {"value": limit, "source": "topic"}
    client.call("limits.set", name=limit, policy={"concurrency": 1})
    assert rows_of(client, limit)[None]["topics"] == [limit, topic]
    client.call("topics.unset", topic=topic, options=["limit"])
    assert rows_of(client, limit)[None]["topics"] == [limit]
    client.call("limits.unset", name=limit)


@pytest.mark.parametrize(("kind", "body", "code", "said"), [
    ("limits.set", {"policy": {}}, "bad_request", "nothing to set for limit"),
    ("limits.set", {"policy": {"tries": 1}}, "bad_request", 'unknown option "tries" of limit'),
    ("limits.set", {"policy": {"burst": 1}}, "bad_request", "has a burst without a rate"),
    ("limits.set", {"policy": {"rate": 1}, "group_key": "*"}, "bad_request", "but not * alone"),
    ("limits.unset", {}, "not_found", "there is no limit"),
    ("limits.unset", {"group_key": "g"}, "not_found", 'that differs for the group "g"'),
    ("limits.list", {"after": "3x"}, "bad_request", "after is '3x'; the cursor of a page is allowed"),
    ("limits.list", {"after": "9:abc"}, "bad_request", "after is '9:abc'; the cursor of a page is allowed"),
    ("limits.list", {"after": "0:abc"}, "bad_request", "after is '0:abc'; the cursor of a page is allowed"),
])  # fmt: skip
def test_what_is_refused(client: Peer, topic: str, kind: str, body: dict[str, Any], code: str, said: str) -> None:
    refused, message = client.refusal(kind, name=topic, **body)
    assert refused == code
    assert said in message
    assert rows_of(client, topic) == {}


def test_pages(client: Peer, topic: str) -> None:
    """Each continues behind the one before, in the middle of a limit's groups, too; names may have any characters."""
    places = [(f"{topic}:1", None), (f"{topic}:1", "1:☃"), (f"{topic}:1", "b"), (f"{topic}:2", None)]
    for name, group in places:
        client.call("limits.set", name=name, group_key=group, policy={"concurrency": 1})
    found: list[tuple[str, str | None]] = []
    after = None
    while True:
        page = client.call("limits.list", limit=1, after=after)
        found += [(row["name"], row["group_key"]) for row in page["limits"]]
        after = page["next"]
        if after is None:
            break
    assert [place for place in found if place[0].startswith(topic)] == places
    for name, group in places:
        if group is None:
            client.call("limits.unset", name=name)


def test_who_it_was(system: System, client: Peer, topic: str) -> None:
    client.call("limits.set", name=topic, group_key="g", policy={"concurrency": 1})
    client.call("limits.unset", name=topic)
    notes = client.call("audit.list", action="limits.", limit=2)["audit"]
    assert [(note["action"], note["uid"], json.loads(note["detail"])) for note in notes] == [
        ("limits.unset", os.getuid(), {"name": topic}),
        ("limits.set", os.getuid(), {"name": topic, "group_key": "g", "concurrency": 1}),
    ]


def test_declared_limits(client: Peer, topic: str) -> None:
    """Made as code says, changed back where operators have changed them, and left alone where they are so already."""
    by, other = f"app{topic}", f"other{topic}"
    one: dict[str, Any] = {"name": f"one{topic}", "policy": {"concurrency": 5, "rate": 2}}
    two: dict[str, Any] = {"name": f"two{topic}", "policy": {"sequence": "halt", "burst": None}}

    def declare(*limits: dict[str, Any], by: str = by) -> tuple[list[str], list[str]]:
        answer = client.call("limits.declare", by=by, limits=list(limits))
        return answer["changed"], answer["not_declared"]

    def standing(limit: dict[str, Any]) -> tuple[Any, ...]:
        row = rows_of(client, limit["name"])[None]
        return policy_of(row), row["declared_by"], row["undeclared_at"] is None

    assert declare(two, one) == ([one["name"], two["name"]], [])
    assert declare(one, two) == ([], [])
    assert declare(one, by=other) == ([], [])  # the same: it stays the first one's
    assert standing(one) == ({"concurrency": 5, "rate": 2.0}, by, True)

    client.call("limits.set", name=one["name"], policy={"concurrency": 1, "group_rate": 3.0})
    client.call("limits.set", name=one["name"], group_key="g", policy={"concurrency": 0})
    assert declare(one) == ([one["name"]], [two["name"]])
    assert standing(one) == ({"concurrency": 5, "rate": 2.0}, by, True)
    assert policy_of(rows_of(client, one["name"])["g"]) == {"concurrency": 0}
    assert standing(two) == ({"sequence": "halt"}, by, False)
    assert declare(one) == ([], [])
    assert declare(two, by=other) == ([two["name"]], [])
    assert standing(two) == ({"sequence": "halt"}, other, True)

    client.call("limits.set", name=f"own{topic}", policy={"rate": 1})
    assert declare({"name": f"own{topic}", "policy": {"rate": 1}}) == ([f"own{topic}"], [one["name"]])
    assert standing({"name": f"own{topic}"}) == ({"rate": 1.0}, by, True)
    for name in ("one", "two", "own"):
        client.call("limits.unset", name=f"{name}{topic}")


def test_what_is_the_same_is_not_noted(client: Peer, topic: str) -> None:
    """A limit that gets its declarer alone has no new policy."""
    client.call("limits.set", name=topic, policy={"rate": 1})
    newest = client.call("audit.list", limit=1)["audit"]
    client.call("limits.declare", by="app", limits=[{"name": topic, "policy": {"rate": 1}}])
    assert client.call("audit.list", limit=1)["audit"] == newest
    client.call("limits.unset", name=topic)


def test_who_declares_what_another_sets_meanwhile_changes_nothing(system: System, client: Peer, topic: str) -> None:
    """All processes of a pool declare the same at once: the first changes it, the others wait, and find it done."""
    client.call("limits.set", name=topic, policy={"rate": 1})
    with psycopg.connect(system.dsn) as first:
        first.execute("SELECT pulse.set_limit(%s, NULL, '{\"rate\": 2}')", (topic,))
        client.send("limits.declare", 1, by="app", limits=[{"name": topic, "policy": {"rate": 2}}])
        waiting = "SELECT FROM pg_stat_activity WHERE $1::int = ANY (pg_blocking_pids(pid))"
        until(lambda: system.rows(waiting, first.info.backend_pid), "it waits for the row")
    client.answer(1)
    notes = client.call("audit.list", action="limits.set", limit=9)["audit"]
    assert [json.loads(note["detail"])["rate"] for note in notes if topic in note["detail"]] == [2, 1]
    client.call("limits.unset", name=topic)


def test_bad_declarations_change_nothing(client: Peer, topic: str) -> None:
    """One bad one spoils all; a repeated name, too."""
    good = {"name": f"a{topic}", "policy": {"rate": 1}}
    for bad, said in (
        ({"name": f"b{topic}", "policy": {"rate": 0}}, f'rate of limit "b{topic}'[:50]),
        (good, f"limit 'a{topic}' is there twice; each is allowed once"),
    ):
        code, message = client.refusal("limits.declare", by=topic, limits=[good, bad])
        assert (code, said in message) == ("bad_request", True), message
    assert rows_of(client, f"a{topic}") == {}
