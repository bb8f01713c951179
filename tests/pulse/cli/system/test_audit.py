"""What a line of the audit says of its origin."""

from __future__ import annotations

import pytest

from pulse.cli.system.audit import _user
from pulse.protocol.answers import Action


@pytest.mark.parametrize(("action", "user"), [
    (Action(uid=7, user_name="ann"), "ann"), (Action(uid=7), "uid 7"), (Action(user_name="ann"), "ann (SQL)"),
    (Action(), "?"),
])  # fmt: skip
def test_users(action: Action, user: str) -> None:
    assert _user(action) == user
