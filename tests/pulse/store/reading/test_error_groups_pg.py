"""Dead letters in groups: which errors are the same, and how many are looked at."""

from __future__ import annotations

from collections import Counter
from typing import Final

import pytest

from pulse.store.store import Store
from pulse.ui.view.formatting import kin
from tests.support.store.helpers import Sql, at, forge

TRACE: Final = "\nTraceback (most recent call last):\n  line 3"
ERRORS: Final = (
    "no address a@b.example" + TRACE, "no address c.d@e-f.example", "  user 17 at 0x7fab", "user 4.5 at 0x1",
    "user 17 at deadbeef", "row 0190163d-8694-739b-aea5-966c26f8ad90", "Traceback (most):\n  line 9\nValueError: 5\n",
    "ValueError: 6", "connect fe80::1:2 1f00", "connect fe81::3:2 1f01", "connect cafe",
)  # fmt: skip


async def test_what_differs_from_job_to_job_does_not_count(store: Store, connection: Sql) -> None:
    """As on the page of the dashboard: what it takes for the same is one group here."""
    for second, error in enumerate(ERRORS):
        await forge(connection, status="DEAD_LETTERED", last_error=error, completed_at=at(second))
    groups, is_all = await store.error_groups.read(None, 100)
    assert is_all
    assert {kin(str(one["error"])): one["number"] for one in groups} == Counter(map(kin, ERRORS))
    assert len(groups) == len(set(map(kin, ERRORS)))
    (mails,) = [one for one in groups if "address" in str(one["error"])]
    assert (mails["error"], mails["newest"], mails["oldest"]) == (ERRORS[1], at(1).timestamp(), at(0).timestamp())


async def test_the_newest_are_looked_at(store: Store, connection: Sql) -> None:
    """Of any topic, so that a rare one takes no longer; other jobs are none."""
    made = [
        await forge(connection, status="DEAD_LETTERED", topic=topic, name=name, completed_at=at(0))
        for topic, name in (("t", "old"), ("t", "n"), ("u", "n"), ("t", "n"), ("t", "m"))
    ]
    await forge(connection, status="CANCELED", last_error="boom")
    groups, is_all = await store.error_groups.read(None, 5)
    assert [one["number"] for one in groups] == [2, 1, 1, 1]
    assert not is_all
    groups, is_all = await store.error_groups.read("t", 4)
    assert [(one["name"], one["number"], one["id"]) for one in groups] == [("n", 2, made[3]), ("m", 1, made[4])]
    assert not is_all
    assert await store.error_groups.read("nobody's", 6) == ([], True)


@pytest.mark.parametrize("name", ["ERROR_CHARACTERS", "MOST_GROUPS"])
async def test_an_answer_is_bounded(store: Store, connection: Sql, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(f"pulse.store.reading.error_groups.{name}", 1)
    for job in ("n", "m"):
        await forge(connection, status="DEAD_LETTERED", name=job)
    groups, _ = await store.error_groups.read(None, 10)
    assert [one["error"] for one in groups] == (["b", "b"] if name == "ERROR_CHARACTERS" else ["boom"])
