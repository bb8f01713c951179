"""The server warns where every account may read its secrets, and refuses what would let every machine in."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from pulse import config
from pulse.config import Settings
from pulse.errors import PulseError
from pulse.security.credentials import hash_password
from pulse_supervisor.preflight import check_edge, readable_secrets
from tests.support.confidential import confidential
from tests.support.servers.certificates import Authority


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


def test_what_other_machines_reach(tmp_path: Path) -> None:
    where, tls, users = (
        "0.0.0.0:7420",
        "without TLS: set tls_cert and tls_key",
        "nobody has to log in: set auth_users",
    )
    for settings, messages in (
        (Settings(listen=where), [tls, users]),
        (Settings(listen=where, auth_users="a:b"), [tls]),
        (Settings(listen=where, tls_cert=Path("/c"), tls_key=Path("/k")), [users]),
    ):
        with pytest.raises(PulseError) as caught:
            check_edge(settings)
        lines = caught.value.message.splitlines()
        assert [message in line for message, line in zip(messages, lines, strict=True)] == [True] * len(messages)
    check_edge(Settings(listen="0.0.0.0:7420", listen_insecure=True))
    check_edge(Settings(listen="localhost:7420"))
    check_edge(Settings(listen="[::1]:7420", auth_users="a:b"))
    check_edge(Settings(auth_users="a:b"))
    ca = Authority(tmp_path)
    served = ca.issue("served", "localhost")
    behind_tls = Settings(listen=where, tls_cert=served.cert, tls_key=served.key)
    check_edge(msgspec.structs.replace(behind_tls, auth_users="a:b"))
    check_edge(msgspec.structs.replace(behind_tls, tls_client_ca=ca.file))


def test_hashes_without_bcrypt(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = hash_password(confidential("Sehr-geheim-vic", "password of vic"))
    monkeypatch.setitem(sys.modules, "bcrypt", None)
    with pytest.raises(PulseError, match=r"^auth_users has bcrypt entries; this needs bcrypt: pip install "):
        check_edge(Settings(auth_users=f"vic:{entry}:viewer"))
    check_edge(Settings(auth_users="a:b"))
    check_edge(Settings())
