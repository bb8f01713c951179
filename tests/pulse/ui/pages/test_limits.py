"""Limits: the list, one of them, and what is sent when a form is saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from pulse.errors import UnavailableError
from tests.support.servers.dashboard import Told, browser

pytestmark = pytest.mark.anyio

API: dict[str, Any] = {
    "name": "api", "concurrency": 50, "rate": 100.0, "group_concurrency": 2, "sequence": "halt", "tokens": 7.9,
    "running": 50, "topics": ["api", "mail"], "declared_by": "shop:app",
}  # fmt: skip
TENANT: dict[str, Any] = {"name": "api", "group_key": "tenant-7", "concurrency": 0, "running": 0}


def listed(body: Mapping[str, Any]) -> dict[str, object]:
    rows = [API, TENANT] if body.get("name") in {None, "api"} else []
    return {"limits": rows, "next": "3:api" if "after" not in body and "name" not in body else None}


async def test_the_list_of_limits() -> None:
    at = browser(Told(status={}, limits_list=listed))
    text = (await at.ask("GET", "/limits")).text
    for said in (
        '">api</a> <span class="pill warn">full</span>', "50 of 50", "100/s", "2 at once, sequence, halt", "shop:app",
        '<a href="/topics/view?topic=mail">mail</a>', '<span class="pill warn">paused</span>', "0 of 0", ">7</td>",
        'href="/limits/view?name=api&amp;group=tenant-7"', 'href="/limits?after=3%3Aapi"',
    ):  # fmt: skip
        assert said in text, said
    assert "next page" not in (await at.ask("GET", "/limits?after=3%3Aapi")).text
    empty = browser(Told(status={}, limits_list={"limits": []}))
    assert "There are no limits" in (await empty.ask("GET", "/limits")).text


async def test_what_is_not_known_is_not_shown_as_none() -> None:
    def away(_body: Mapping[str, Any]) -> dict[str, object]:
        raise UnavailableError("the database is away")

    at = browser(Told(status={}, limits_list=away))
    for path in ("/limits", "/limits/view?name=api"):
        got = await at.ask("GET", path)
        assert (got.status, "the database is away" in got.text) == (503, True)
        assert "There are no limits" not in got.text
    for path in ("save", "unset"):
        got = await at.ask("POST", f"/limits/{path}", {"name": "api"})
        assert got.status == 303
    assert cast("Told", at.site.questions).changed == []


async def test_one_limit() -> None:
    at = browser(Told(status={}, limits_list=listed))
    text = (await at.ask("GET", "/limits/view?name=api")).text
    for said in ('value="100"', '<option value="halt" selected>', "the next worker of shop:app", ">tenant-7</a>"):
        assert said in text, said
    text = (await at.ask("GET", "/limits/view?name=api&group=tenant-7")).text
    assert ('name="concurrency" aria-label="concurrency" value="0"' in text, 'name="sequence"' in text) == (True, False)
    text = (await at.ask("GET", "/limits/view?name=other")).text
    assert ("There is no such limit yet" in text, "Unset the limit" in text) == (True, False)
    assert "Nothing differs for this group yet" in (await at.ask("GET", "/limits/view?name=api&group=g")).text
    got = await at.ask("GET", "/limits/view?name=")
    assert (got.status, got.headers["location"]) == (303, "/limits")


@pytest.mark.parametrize(("form", "policy", "undo"), [
    ({"name": "api", "concurrency": "50", "rate": "100", "group_concurrency": "2", "sequence": "halt"}, None, None),
    ({"name": "api", "concurrency": "60", "rate": "", "group_concurrency": "2", "sequence": "continue"},
     {"concurrency": 60, "rate": None, "sequence": "continue"},
     ("limits.set", {"name": "api", "policy": {"concurrency": 50, "rate": 100.0, "sequence": "halt"}})),
    ({"name": "api", "group": "tenant-7", "concurrency": "0", "rate": "0.5", "sequence": "halt"}, {"rate": 0.5},
     ("limits.set", {"name": "api", "group_key": "tenant-7", "policy": {"rate": None}})),
    ({"name": "new", "burst": "3", "rate": "1.5"}, {"burst": 3, "rate": 1.5}, ("limits.unset", {"name": "new"})),
    ({"name": "api", "group": "g", "concurrency": "9"}, {"concurrency": 9},
     ("limits.unset", {"name": "api", "group_key": "g"})),
])  # fmt: skip
async def test_only_what_was_changed_is_sent(
    form: dict[str, str], policy: dict[str, object] | None, undo: tuple[str, dict[str, object]] | None
) -> None:
    at = browser(Told(status={}, limits_list=listed, limits_set={}))
    got = await at.ask("POST", "/limits/save", form)
    group = f"&group={form['group']}" if "group" in form else ""
    assert (got.status, got.headers["location"]) == (303, f"/limits/view?name={form['name']}{group}")
    sent = cast("Told", at.site.questions).changed
    assert at.session is not None
    undos = [(step.kind, step.body) for one in at.session.undos.values() for step in one.steps]
    if policy is None:
        assert (sent, undos) == ([], [])
    else:
        [(kind, body, _)] = sent
        of_group = {"group_key": form["group"]} if "group" in form else {}
        assert (kind, body) == ("limits.set", {"name": form["name"], **of_group, "policy": policy})
        assert undos == [undo]


@pytest.mark.parametrize(("option", "typed", "said"), [
    ("concurrency", "1.5", "concurrency is '1.5': a whole number is allowed"),
    ("group_rate", "fast", "group_rate is 'fast': a number of starts per second is allowed"),
])  # fmt: skip
async def test_what_is_no_number(option: str, typed: str, said: str) -> None:
    at = browser(Told(status={}, limits_list=listed, limits_set={}))
    await at.ask("POST", "/limits/save", {"name": "api", option: typed})
    assert cast("Told", at.site.questions).changed == []
    assert at.session is not None
    assert [flash.text for flash in at.session.told()] == [said]


@pytest.mark.parametrize(("group", "steps", "leads"), [
    (None, [
        {"name": "api", "policy": {"concurrency": 50, "rate": 100.0, "group_concurrency": 2, "sequence": "halt"}},
        {"name": "api", "group_key": "tenant-7", "policy": {"concurrency": 0}},
    ], "/limits"),
    ("tenant-7", [{"name": "api", "group_key": "tenant-7", "policy": {"concurrency": 0}}], "/limits/view?name=api"),
])  # fmt: skip
async def test_an_undo_sets_all_again(group: str | None, steps: list[dict[str, object]], leads: str) -> None:
    """The limit and what differs for its groups."""
    at = browser(Told(status={}, limits_list=listed, limits_unset={}))
    of_group = {} if group is None else {"group": group}
    got = await at.ask("POST", "/limits/unset", {"name": "api", **of_group})
    assert got.headers["location"] == leads
    [(kind, body, _)] = cast("Told", at.site.questions).changed
    assert (kind, body) == ("limits.unset", {"name": "api"} | ({} if group is None else {"group_key": group}))
    assert at.session is not None
    [undo] = at.session.undos.values()
    assert [(step.kind, step.body) for step in undo.steps] == [("limits.set", step) for step in steps]


async def test_a_limit_without_an_option_comes_back_as_such() -> None:
    at = browser(Told(status={}, limits_list={"limits": [{"name": "bare"}]}, limits_unset={}))
    await at.ask("POST", "/limits/unset", {"name": "bare"})
    assert at.session is not None
    [undo] = at.session.undos.values()
    assert [step.body for step in undo.steps] == [{"name": "bare", "policy": {"concurrency": None}}]
