"""What a request may do, decided without IO: names of this host, foreign pages, tokens, and what a browser may load."""

from __future__ import annotations

import base64
import contextlib
import hmac
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from pulse.errors import UnauthorizedError

_CONTENT: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; font-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": _CONTENT,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    # Not no-referrer: under that browsers send `Origin: null` with the forms of this very site.
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_HOOK: Final = re.compile(r"/jobs/[^/]+/signals/[^\x00-\x1f\x7f]+")
LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def host_name(host: str) -> str | None:
    """
    The name or address in a Host header, in lower case and without its port; None: it is none.

    The port is not looked at: behind ``ssh -L`` it is another one, and names are what DNS can rebind.
    """
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port  # raises where it is no number
    except ValueError:
        return None
    is_plain = parts.username is None and parts.netloc == host
    return parts.hostname.rstrip(".") if is_plain and parts.hostname else None


def is_own_page(host: str, origin: str | None, fetch_site: str | None) -> bool:
    """
    Whether a request that changes something comes from a page of this server.

    Args:
        host: The Host header.
        origin: The Origin header, if there is one.
        fetch_site: ``Sec-Fetch-Site``, if there is one; browsers send it to this machine and to https.
    """
    if fetch_site is not None and fetch_site != "same-origin":
        return False
    if origin is None:
        return True  # no browser, or an old one: the token decides
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and parts.netloc.lower() == host.lower()


def is_hook(method: str, path: str) -> bool:
    """Whether a request comes from a program, with a user's password in it, and from no page."""
    return method == "POST" and _HOOK.fullmatch(path) is not None


def basic_login(authorization: str) -> tuple[str, str]:
    """
    User and password in an Authorization header.

    Raises:
        UnauthorizedError: There are none.
    """
    scheme, _, text = authorization.partition(" ")
    with contextlib.suppress(ValueError):
        user, colon, password = base64.b64decode(text.strip(), validate=True).decode().partition(":")
        if scheme.lower() == "basic" and colon:
            return user, password
    raise UnauthorizedError("user and password are missing: Authorization: Basic is allowed")


def is_same(expected: str, given: str | None) -> bool:
    """Whether two secrets are equal, in constant time."""
    return given is not None and hmac.compare_digest(expected.encode(), given.encode("utf-8", "surrogatepass"))


def own_path(path: str | None, otherwise: str = "/") -> str:
    """*path* where it leads to a page of this server, else *otherwise*."""
    if path is None or not path.startswith("/") or path.startswith(("//", "/\\")) or not path.isprintable():
        return otherwise
    return path
