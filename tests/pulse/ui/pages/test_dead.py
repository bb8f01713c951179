"""Dead letters in groups: how far was looked, and what is the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pulse.protocol import answers
from pulse.protocol.stats import ErrorGroup
from pulse.ui.data.queries import ANSWER_S
from pulse.ui.pages.dead import LOOKED, MOST_LOOKED, MOST_S, group
from tests.support.commandline.cli_answers import error_group
from tests.support.servers.dashboard import Told, browser


def test_groups_of_one_kind_are_one() -> None:
    """The server may hold errors apart that look the same here; the newest of them speaks for all."""
    told = [(2, "no 1", 5.0), (1, "no 2", 9.0), (1, "yes", 7.0)]
    found = [error_group(number=number, error=error, newest=at, oldest=at - 3) for number, error, at in told]
    groups = group([answers.read(ErrorGroup, one) for one in found])
    assert [(one.kin, one.number, one.newest.error, one.oldest_s) for one in groups] == [
        ("no #", 3, "no 2", 2.0), ("yes", 1, "yes", 4.0),
    ]  # fmt: skip


@pytest.mark.anyio
@pytest.mark.parametrize("groups", [[], [error_group(number=3)]])
async def test_how_far_was_looked(groups: list[dict[str, object]]) -> None:
    """A page says that there are older ones, and offers once to look at more; no other number is asked for."""
    asked: list[object] = []

    def answer(body: Mapping[str, Any]) -> dict[str, object]:
        asked.append(body["rows"])
        return {"groups": groups, "is_all": body["rows"] == MOST_LOOKED}

    at = browser(Told(status={}, jobs_errors=answer))
    for look, rows in (("", LOOKED), ("5", LOOKED), ("9" * 5000, LOOKED), (str(MOST_LOOKED), MOST_LOOKED)):
        got = await at.ask("GET", f"/dead?look={look}&topic=a+b")
        assert asked.pop() == rows
        assert (f"/dead?look={MOST_LOOKED}&amp;topic=a%20b" in got.text) == ("among the newest" in got.text)
        assert ("among the newest" in got.text) == (rows == LOOKED)


class Timed(Told):
    """Keeps how long the question for errors may take."""

    async def ask(
        self, kind: str, body: Mapping[str, Any] | None = None, *, within_s: float = ANSWER_S
    ) -> dict[str, object]:
        if kind == "jobs.errors":
            self.known = (within_s, {})
        return await super().ask(kind, body, within_s=within_s)


@pytest.mark.anyio
async def test_more_takes_longer() -> None:
    told = Timed(status={}, jobs_errors={"groups": [], "is_all": True})
    at = browser(told)
    for look, within_s in (("", ANSWER_S), (f"?look={MOST_LOOKED}", MOST_S)):
        await at.ask("GET", f"/dead{look}")
        assert told.known == (within_s, {})
