"""Addresses of TCP as people write them: host:port, with an IPv6 address in brackets."""

from __future__ import annotations

import ipaddress
from typing import Final

MAX_PORT: Final = 65535
_DIGITS: Final = 5


def split(text: str) -> tuple[str, int] | None:
    """Host, without brackets, and port; None: *text* is no address."""
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if (
        not colon
        or not bare
        or not (port.isascii() and port.isdecimal())
        or len(port) > _DIGITS
        or int(port) > MAX_PORT
    ):
        return None
    if (":" in bare) != (bare != host):
        return None
    return bare, int(port)


def joined(host: str, port: int) -> str:
    """The inverse of ``split``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches *host*; False for names other than localhost."""
    if host.casefold().removesuffix(".") == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
