"""Why a handshake failed, in words."""

from __future__ import annotations

import contextlib
import ssl

import pytest

from pulse.protocol import encode_error
from pulse.security.tls import client_context, reason_of


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
