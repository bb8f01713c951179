"""``pulse ctl limits``, and the limit that a topic goes by: what is asked, and what is shown of the answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.commandline.cli import pulse
from tests.support.servers.fake_dispatcher import FakeDispatcher, RuntimeDir

pytestmark = pytest.mark.process

API: dict[str, Any] = {
    "name": "api", "group_key": None, "concurrency": 50, "rate": 100.0, "burst": 10, "group_concurrency": 2,
    "group_rate": 0.5, "group_burst": None, "sequence": "halt", "tokens": 7.9, "running": 12,
    "topics": ["api", *(f"t{number}" for number in range(6))], "declared_by": "shop:app", "undeclared_at": None,
}  # fmt: skip
TENANT = {**dict.fromkeys(API), "name": "api", "group_key": "tenant-7", "concurrency": 0, "running": 0}
MANY: dict[str, Any] = {
    **dict.fromkeys(API),
    "name": "mail",
    "running": 1000,
    "topics": [],
    "undeclared_at": 1.9e9,
    "declared_by": "x",
}


@pytest.fixture(scope="module")
def server() -> Iterator[FakeDispatcher]:
    script: dict[str, Any] = {
        "limits.list": {"limits": [API, TENANT, MANY], "next": "4:mail"}, "limits.set": {"limit": TENANT},
        "limits.unset": {"limit": API},
    }  # fmt: skip
    with RuntimeDir() as directory, FakeDispatcher(directory.path, script) as made:
        yield made


def test_the_list(server: FakeDispatcher) -> None:
    done = pulse(server.directory, "ctl limits list")
    rows = [line.split("  ") for line in done.out.splitlines()]
    assert [[cell.strip() for cell in row if cell.strip()] for row in rows] == [
        ["limit", "group", "running", "rate", "tokens", "each group", "topics", "declared by"],
        ["api", "12 of 50", "100/s, burst 10", "7", "2 at once, 0.5/s, sequence, halt",
         "api, t0, t1, t2, t3 and 2 more", "shop:app"],
        ["api", "tenant-7", "0 of 0"],
        ["mail", "1,000+", "x, until 2030-03-17T17:46:40Z"],
    ]  # fmt: skip
    assert done.err == "more: repeat with --after 4:mail\n"
    line = "ctl limits list api --limit 5 --after 3:api --json"
    told = [API, TENANT, {**MANY, "undeclared_at": "2030-03-17T17:46:40Z"}]
    assert pulse(server.directory, line).document == {"limits": told, "next": "4:mail"}
    assert server.bodies("limits.list")[-1] == {"name": "api", "limit": 5, "after": "3:api"}


@pytest.mark.parametrize(("line", "body"), [
    ("set api --concurrency 0", {"policy": {"concurrency": 0}}),
    ("set api --rate 0.5 --burst 3 --group-concurrency 1 --group-rate 2 --group-burst 4 --sequence continue",
     {"policy": {"rate": 0.5, "burst": 3, "group_concurrency": 1, "group_rate": 2.0, "group_burst": 4,
                 "sequence": "continue"}}),
    ("set api --group tenant-7 --concurrency 5", {"group_key": "tenant-7", "policy": {"concurrency": 5}}),
    ("unset api sequence group-rate", {"policy": {"group_rate": None, "sequence": None}}),
    ("unset api --group tenant-7 rate", {"group_key": "tenant-7", "policy": {"rate": None}}),
])  # fmt: skip
def test_what_is_set(server: FakeDispatcher, line: str, body: dict[str, object]) -> None:
    done = pulse(server.directory, f"ctl limits {line}")
    assert (done.code, done.out.splitlines()[1].split()) == (0, ["api", "tenant-7", "0", "of", "0"])
    assert server.bodies("limits.set")[-1] == {"name": "api", **body}
    assert pulse(server.directory, f"ctl limits {line} --json").document == TENANT


@pytest.mark.parametrize(("line", "body", "said"), [
    ("unset api", {}, ("unset: api: concurrency 50, rate 100, burst 10, group-concurrency 2, group-rate 0.5, "
                      "sequence halt\n")),
    ("unset api --group 'tenant 7'", {"group_key": "tenant 7"}, "unset of the group 'tenant 7': api: concurrency 50,"),
])  # fmt: skip
def test_what_is_removed(server: FakeDispatcher, line: str, body: dict[str, object], said: str) -> None:
    """A warning says that code will set it again; as JSON there is what there was."""
    done = pulse(server.directory, f"ctl limits {line}")
    assert done.code == 0
    assert done.out.startswith(said)
    assert done.err == "pulse: shop:app declares it: the next of its workers that connects sets it again\n"
    assert server.bodies("limits.unset")[-1] == {"name": "api", **body}
    assert pulse(server.directory, f"ctl limits {line} --json").document == API


@pytest.mark.parametrize(("line", "said"), [
    ("set api", "nothing to set: one or more of --concurrency, --rate, --burst,"),
    ("set api --concurrency 1000001", "1000001 is not in the range 0<=x<=1000000"),
    ("set api --rate 0", "0.0 is not in the range"),
    ("set api --sequence stop", "'stop' is not one of 'continue', 'halt'"),
    ("unset api tries", "'tries' is not one of 'concurrency', 'rate',"),
    ("set '' --rate 1", "1 to 200 characters of UTF-8 are allowed"),
])  # fmt: skip
def test_what_is_not_sent(server: FakeDispatcher, line: str, said: str) -> None:
    before = len(server.bodies("limits.set"))
    done = pulse(server.directory, f"ctl limits {line}")
    assert (done.code, said in done.err) == (2, True), done.err
    assert len(server.bodies("limits.set")) == before


@pytest.mark.rest
@pytest.mark.parametrize(("found", "said"), [
    ([API], ""), ([], "pulse: there is no limit apy yet: until there is, nothing limits the topic\n"),
])  # fmt: skip
def test_a_topic_that_goes_by_a_limit(server: FakeDispatcher, found: list[object], said: str) -> None:
    policy = {"topic": {"topic": "t", "policy": {"limit": {"value": "apy", "source": "topic"}}, "handlers": []}}
    server._script = {**server._script, "topics.set": policy, "limits.list": {"limits": found, "next": None}}
    done = pulse(server.directory, "ctl topics set t --limit apy")
    assert (done.code, done.err) == (0, said)
    assert "limit           apy  (topic)" in done.out
    assert server.bodies("topics.set")[-1] == {"topic": "t", "policy": {"limit": "apy"}}
    assert server.bodies("limits.list")[-1] == {"name": "apy", "limit": 1}
    assert pulse(server.directory, "ctl topics set t --limit apy --json").err == ""
