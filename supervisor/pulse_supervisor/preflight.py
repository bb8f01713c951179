"""Checks users and certificates before anything starts, so that a mistake is one message and no restart loop."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from pulse.common.extras import require
from pulse.config import Settings, secrets_in
from pulse.errors import ConfigError
from pulse.security import tls
from pulse.security.credentials import parse_users
from pulse.system.sockets import addresses


def check_edge(settings: Settings) -> None:
    """
    Refuse users and certificates that cannot be used.

    Raises:
        ConfigError: What is wrong, in one line.
    """
    if exposed := "\n".join(_exposed(settings)):
        raise ConfigError(exposed)
    if settings.auth_users is not None and parse_users(settings.auth_users).has_hashes:
        require("auth_users has bcrypt entries; this", ["bcrypt"])
    if settings.tls_cert is not None and settings.tls_key is not None:
        tls.server_context(settings.tls_cert, settings.tls_key, settings.tls_client_ca)


def readable_secrets(settings: Settings) -> Iterator[tuple[Path, str]]:
    """Files with secrets that every account of this machine may read."""
    if settings.config is not None:
        for name in secrets_in(settings.config):
            yield from _if_readable(settings.config, name)
    if settings.tls_key is not None:
        yield from _if_readable(settings.tls_key, "tls_key")


def _if_readable(path: Path, what: str) -> Iterator[tuple[Path, str]]:
    if path.stat().st_mode & stat.S_IROTH:
        yield path, what


def _exposed(settings: Settings) -> Iterator[str]:
    """What other machines could do at the listening address, unless the settings allow it."""
    where = None if settings.listen is None else addresses.split(settings.listen)
    if where is None or addresses.is_loopback(where[0]) or settings.listen_insecure:
        return
    reached = f"listen is {settings.listen}, which other machines reach"
    meant = "a loopback address is allowed, and listen_insecure = 1 says that this is meant"
    if settings.tls_cert is None:
        yield f"{reached}, without TLS: set tls_cert and tls_key; {meant}"
    if settings.auth_users is None and settings.tls_client_ca is None:
        yield f"{reached}, and nobody has to log in: set auth_users or tls_client_ca; {meant}"
