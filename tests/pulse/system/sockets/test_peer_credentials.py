"""How messages name a user."""

from __future__ import annotations

import pytest

from pulse.system.sockets.peer_credentials import shown


@pytest.mark.parametrize(("uid", "user", "said"), [
    (None, "ann", "user ann"), (7, None, "uid 7"), (7, "ann", "user ann (uid 7)"),
])  # fmt: skip
def test_shown(uid: int | None, user: str | None, said: str) -> None:
    assert shown(uid, user) == said
