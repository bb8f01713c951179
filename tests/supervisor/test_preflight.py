"""The server warns where every account of the machine may read its secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulse import config
from pulse_supervisor.preflight import readable_secrets


@pytest.mark.parametrize(("text", "told"), [
    ('auth_users = "ann:secret"', ["auth_users"]), ('dsn = "postgresql://ann:secret@localhost/db"', ["dsn"]),
    ('dsn = "postgresql://ann@localhost/db"', []), ('listen = "127.0.0.1:0"', []),
])  # fmt: skip
def test_a_config_file(text: str, told: list[str], tmp_path: Path) -> None:
    """Only with a secret in it, and readable for others: for a group is fine, it was made for that."""
    path = tmp_path / "pulse.toml"
    path.write_text(text)
    for mode, expected in ((0o644, told), (0o604, told), (0o640, []), (0o600, [])):
        path.chmod(mode)
        assert list(readable_secrets(config.load({}, path))) == [(path, name) for name in expected]


def test_a_key(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    for path in (cert, key):
        path.write_text("")
        path.chmod(0o644)
    settings = config.load({}, None, {"listen": "127.0.0.1:0", "tls_cert": cert, "tls_key": key})
    assert list(readable_secrets(settings)) == [(key, "tls_key")]
    key.chmod(0o640)
    assert list(readable_secrets(settings)) == []
