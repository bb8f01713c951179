"""What a line of the audit says of its origin, and what programs get of it."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest
from click.testing import CliRunner

from pulse.cli.system import audit as module
from pulse.cli.system.audit import _user, audit
from pulse.protocol.answers import Action


@pytest.mark.parametrize(("action", "user"), [
    (Action(uid=7, user_name="ann"), "ann"), (Action(uid=7), "uid 7"), (Action(user_name="ann"), "ann (SQL)"),
    (Action(), "?"),
])  # fmt: skip
def test_users(action: Action, user: str) -> None:
    assert _user(action) == user


def test_as_a_document(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that the server has said, and the detail as JSON, not as a text with JSON."""
    row = {"id": 1, "at": 0.0, "action": "drain", "detail": '{"all": true}'}
    server = SimpleNamespace(ask=lambda *_, **__: {"audit": [row], "next": None})
    monkeypatch.setattr(module, "current_server", lambda: server)
    done = CliRunner().invoke(audit, ["--json"])
    assert msgspec.json.decode(done.stdout) == {
        "audit": [{**row, "at": "1970-01-01T00:00:00Z", "detail": {"all": True}}],
        "next": None,
    }
