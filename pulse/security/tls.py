"""TLS 1.2 and later for both sides: contexts from the files in the settings, with a clear error for each mistake."""

from __future__ import annotations

import contextlib
import functools
import ssl
import time
from pathlib import Path
from ssl import SSLError
from typing import Final

from pulse.errors import ConfigError

__all__ = ["SSLError", "client_context", "handshake_s", "reason_of", "server_context"]

_TOLD_WHEN_CUT: Final = ~ssl.OP_IGNORE_UNEXPECTED_EOF  # Debian 12's Python sets it: a cut would look like an end
_TRIES: Final = 3
_CURVE: Final = "prime256v1"  # clients choose, and of the finite fields that OpenSSL offers the largest takes 100 ms


def server_context(cert: Path, key: Path, client_ca: Path | None) -> ssl.SSLContext:
    """
    The context of a server.

    Args:
        cert: Its certificate with intermediate ones, in PEM.
        key: The certificate's key, without a password.
        client_ca: CA certificates for clients; then each client must have a certificate.

    Raises:
        ConfigError: A file cannot be read, has other contents, or key and certificate do not fit.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options &= _TOLD_WHEN_CUT
    context.set_ecdh_curve(_CURVE)
    _load(context, cert, key)
    if client_ca is not None:
        _trust(context, client_ca, "tls_client_ca")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@functools.lru_cache(maxsize=8)
def client_context(ca: Path | None, cert: Path | None, key: Path | None) -> ssl.SSLContext:
    """
    The context of a client, which verifies the server's certificate and name.

    Args:
        ca: Certificates to trust; None: those of this machine.
        cert: Its own certificate, if servers require one; with its key, unless *key* has that.
        key: Its key.

    Raises:
        ConfigError: A file cannot be read, or has other contents.
    """
    context = ssl.create_default_context() if ca is None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options &= _TOLD_WHEN_CUT
    if ca is not None:
        _trust(context, ca, "PULSE_TLS_CA")
    if cert is not None:
        _load(context, cert, key or cert)
    return context


def handshake_s(context: ssl.SSLContext) -> float:
    """
    How long a handshake takes a server with *context*, seconds of its processor: mostly the key's signature.

    Measured here: the fastest of a few, up to the server's first answer.
    """
    client_side = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_side.check_hostname = False
    client_side.verify_mode = ssl.CERT_NONE
    client_side.set_ecdh_curve(_CURVE)  # else the server first asks for another curve, without a signature
    took_s: list[float] = []
    for _ in range(_TRIES):
        asked, answered = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = client_side.wrap_bio(answered, asked)
        server = context.wrap_bio(asked, answered, server_side=True)
        with contextlib.suppress(ssl.SSLWantReadError):
            client.do_handshake()
        began_s = time.thread_time()
        with contextlib.suppress(ssl.SSLWantReadError):
            server.do_handshake()
        took_s.append(time.thread_time() - began_s)
    return min(took_s)


def reason_of(error: ssl.SSLError) -> str:
    """Why the handshake failed, in a few words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if error.reason == "WRONG_VERSION_NUMBER":
        return "it does not speak TLS"
    return f"TLS failed: {(error.reason or str(error)).lower().replace('_', ' ')}"


def _load(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    def no_password() -> str:
        raise ConfigError(f"the key {key} has a password: one without is allowed, readable by its owner alone")

    for path in (cert, key):
        _check_readable(path)
    try:
        context.load_cert_chain(cert, key, no_password)
    except ssl.SSLError as error:
        why = (error.reason or str(error)).lower().replace("_", " ")
        raise ConfigError(f"certificate {cert} and key {key} cannot be used: {why}") from None


def _trust(context: ssl.SSLContext, ca: Path, name: str) -> None:
    _check_readable(ca)
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError:
        raise ConfigError(f"{name} is {ca}: a file with certificates in PEM is allowed") from None


def _check_readable(path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from None
