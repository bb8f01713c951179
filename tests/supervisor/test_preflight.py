"""The server says so where every account of the machine may read its secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulse import config
from pulse_supervisor.preflight import readable_secrets


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('auth_users = "ann:secret"', ["auth_users"]),
        ('dsn = "postgresql://ann:secret@localhost/db"', ["dsn"]),
        ('dsn = "postgresql://ann@localhost/db"', []),
        ('listen = "127.0.0.1:0"', []),
    ],
)
def test_a_config_file(text: str, told: list[str], tmp_path: Path) -> None:
    """Only where something in it is secret, and others may read it: a group may, it was made for that."""
    path = tmp_path / "pulse.toml"
    path.write_text(text)
    for mode, expected in ((0o644, told), (0o604, told), (0o640, []), (0o600, [])):
        path.chmod(mode)
        assert list(readable_secrets(config.load({}, path))) == [(path, name) for name in expected]


def test_a_key(tmp_path: Path) -> None:
    """That of the certificate."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    for path in (cert, key):
        path.write_text("")
        path.chmod(0o644)
    settings = config.load({}, None, {"listen": "127.0.0.1:0", "tls_cert": cert, "tls_key": key})
    assert list(readable_secrets(settings)) == [(key, "tls_key")]
    key.chmod(0o640)
    assert list(readable_secrets(settings)) == []
