"""Contexts: what a client believes, which files are refused, and why a handshake failed, in words."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from pulse.errors import ConfigError
from pulse.protocol import encode_error
from pulse.security.tls import client_context, reason_of, server_context
from tests.support.servers.certificates import Authority


@pytest.mark.parametrize(("answer", "told"), [
    (encode_error(None, "bad_request", "not a frame"), "it does not speak TLS"),
    (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it does not speak TLS"),
    (b"\x15\x03\x03\x00\x02\x02\x28", "TLS failed: sslv3 alert handshake failure"),
], ids=["plain", "http", "alert"])  # fmt: skip
def test_why_a_handshake_failed(answer: bytes, told: str) -> None:
    answered = ssl.MemoryBIO()
    client = client_context(None, None, None).wrap_bio(answered, ssl.MemoryBIO(), server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    answered.write(answer)
    with pytest.raises(ssl.SSLError) as caught:
        client.do_handshake()
    assert reason_of(caught.value) == told


def test_a_certificate_that_is_not_accepted_is_told_apart() -> None:
    error = ssl.SSLCertVerificationError()
    error.verify_message = "self-signed certificate"
    assert reason_of(error) == "its certificate is not accepted: self-signed certificate"


def test_a_client_verifies_certificate_and_name_with_an_authority_of_its_own(tmp_path: Path) -> None:
    context = client_context(Authority(tmp_path).file, None, None)
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_a_connection_that_is_cut_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where Python would call that an end, as Debian 12's does."""
    made = ssl.SSLContext.__new__

    def lenient(kind: type[ssl.SSLContext], protocol: int) -> ssl.SSLContext:
        context = made(kind, protocol)
        context.options |= ssl.OP_IGNORE_UNEXPECTED_EOF
        return context

    monkeypatch.setattr(ssl.SSLContext, "__new__", lenient)
    assert ssl.OP_IGNORE_UNEXPECTED_EOF in ssl.create_default_context().options
    ca = Authority(tmp_path)
    mine = ca.issue("mine", "localhost")
    client = client_context.__wrapped__
    for context in (server_context(mine.cert, mine.key, None), client(None, None, None), client(ca.file, None, None)):
        assert ssl.OP_IGNORE_UNEXPECTED_EOF not in context.options


def test_files_that_no_context_is_made_of(tmp_path: Path) -> None:
    ca = Authority(tmp_path)
    one, two = ca.issue("one", "localhost"), ca.issue("two", "localhost")
    junk, missing, locked = tmp_path / "junk", tmp_path / "none", tmp_path / "locked"
    junk.write_text("junk")
    locked.write_bytes(
        load_pem_private_key(one.key.read_bytes(), None).private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"password")
        )
    )
    for cert, key, clients, message in (
        (missing, one.key, ca.file, f"{missing} cannot be read: no such file or directory"),
        (junk, one.key, ca.file, f"certificate {junk} and key {one.key} cannot be used: "),
        (one.cert, two.key, ca.file, f"certificate {one.cert} and key {two.key} cannot be used: key values"),
        (one.cert, locked, ca.file, f"the key {locked} has a password: one without is allowed"),
        (one.cert, one.key, missing, f"{missing} cannot be read: no such file or directory"),
        (one.cert, one.key, junk, f"tls_client_ca is {junk}: a file with certificates in PEM is allowed"),
    ):
        with pytest.raises(ConfigError) as caught:
            server_context(cert, key, clients)
        assert caught.value.message.startswith(message)
