"""The doctor's verdicts on replication: commits that wait, and standbys that may lack something."""

from __future__ import annotations

from typing import Any, Final

import pytest

from pulse.ops.doctor.database import HANGS_S, commits, standbys
from pulse.ops.doctor.finding import State
from pulse.store.admin.doctor import look
from tests.support.admin.doctor_kit import WITHIN_S

OK, WARNING, WRONG = State.OK, State.WARNING, State.WRONG
ROW: Final = {
    "in_recovery": False, "awaited": "b", "waits": "on", "standbys": 2, "synchronous": 1, "hidden": 0, "waiting": 0,
    "waited_s": 0.0,
}  # fmt: skip


@pytest.mark.parametrize(("changed", "state", "words"), [
    ({}, OK, "no commit waits"),
    ({"awaited": "", "synchronous": 0}, OK, "no commit waits"),
    ({"synchronous": 0}, WRONG, "0 of 1 synchronous standbys are connected"),
    ({"awaited": "*", "synchronous": 0}, WRONG, "0 of 1"),
    ({"awaited": "ANY 2 (b, c)"}, WRONG, "1 of 2"), ({"awaited": "first 2(b, c)"}, WRONG, "1 of 2"),
    ({"awaited": "2 (b, c)"}, WRONG, "1 of 2"), ({"awaited": "ANY 2 (b, c)", "synchronous": 2}, OK, ""),
    ({"synchronous": 0, "waits": "local"}, OK, ""), ({"synchronous": 0, "waits": "off"}, OK, ""),
    ({"synchronous": 0, "waits": "remote_write"}, WRONG, "0 of 1"),
    ({"synchronous": 0, "in_recovery": True}, OK, ""),
    ({"synchronous": 0, "hidden": 1}, OK, ""),  # who may not see it need not be right
    ({"waiting": 1, "waited_s": HANGS_S}, WRONG, "1 commit has waited for a synchronous standby for 5 s"),
    ({"waiting": 3, "waited_s": 90.0}, WRONG, "3 commits have waited for a synchronous standby for 90 s"),
    ({"waiting": 3, "waited_s": HANGS_S - 0.1}, OK, ""),
])  # fmt: skip
def test_commits_that_wait(changed: dict[str, Any], state: State, words: str) -> None:
    found = commits([{**ROW, **changed}], 60.0)
    assert found.state is state
    assert words in found.text


@pytest.mark.parametrize(("changed", "state", "words"), [
    ({}, OK, "2 standbys replicate what was acknowledged"),
    ({"standbys": 0, "awaited": ""}, OK, "no standby is connected"),
    ({"awaited": ""}, WARNING, "2 standbys replicate asynchronously: a failover can lose"),
    ({"awaited": "", "standbys": 1}, WARNING, "1 standby replicates asynchronously"),
    ({"waits": "local"}, WARNING, "synchronous_commit is local: no commit waits for the standbys b"),
    ({"waits": "remote_write"}, OK, ""),
    ({"awaited": "", "in_recovery": True}, OK, ""), ({"waits": "local", "in_recovery": True}, OK, ""),
])  # fmt: skip
def test_standbys_that_may_lack_something(changed: dict[str, Any], state: State, words: str) -> None:
    found = standbys([{**ROW, **changed}], 60.0)
    assert found.state is state
    assert words in found.text


async def test_a_server_without_standbys(dsn: str) -> None:
    seen = await look(dsn, WITHIN_S)
    (row,) = seen.rows["replication"]
    assert row == {**ROW, "awaited": "", "standbys": 0, "synchronous": 0}
