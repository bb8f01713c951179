"""Why the dashboard knows little."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pulse.protocol.answers import Database, StatusAnswer
from pulse.ui.data.poller import SystemSnapshot


@pytest.mark.parametrize(("database", "silent", "cause"), [
    (Database(ok=False), {}, "the database is away"), (Database(ok=False), {"dispatcher": "x"}, "the database is away"),
    (Database(ok=True), {"dispatcher": "x"}, "the dispatcher does not answer"), (None, {"scheduler": "x"}, None),
])  # fmt: skip
def test_the_cause(database: Database | None, silent: Mapping[str, str], cause: str | None) -> None:
    assert SystemSnapshot(StatusAnswer(database=database), silent, None, 0.0, 1).cause == cause
