"""
What a PostgreSQL connection string looks like, and how to show one to people without its password.

Two forms exist, as in libpq: a URL (``postgresql://user@host/name``) and keywords (``host=/run/postgresql user=u``).
This module knows their shape only; whether the server exists is found out by connecting.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import quote, unquote, unquote_plus, urlencode

_MASK: Final = "***"
_MAX_PORT: Final = 65535
_USUAL_PORT: Final = "5432"
_SCHEMES: Final = ("postgresql://", "postgres://")
_SECRETS: Final = frozenset({"password", "sslpassword"})
_LOCATING: Final = frozenset({"dbname", "host", "hostaddr", "port", "service", "user"})  # one at least says where to go
# A value is quoted or ends at white space; in both a backslash takes the next character as it is.
_KEYWORD: Final = re.compile(
    r"(?P<key>\w+)\s*=\s*(?P<value>'(?:[^'\\]|\\.)*'|(?!')(?:[^\s\\]|\\.)*)(?:\s+|\Z)", re.DOTALL
)
# Not urlsplit: newer ones refuse brackets that do not open the host part, and several hosts are libpq's own invention.
_URL: Final = re.compile(
    r"postgres(?:ql)?://(?:[^/?#\[\]\s]*@)?(?P<hosts>[^/?#\s@]*)(?:/[^?#\s]*)?(?:\?(?P<query>[^#\s]*))?"
)
_HOST: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]+(?:%\w+)?\]|[^\s:\[\]@/?#]*)(?::(?P<port>[0-9]*))?")
# To hide is not to parse: these two take all that a slip of the pen may have left of a password.
_SECRET_PAIR: Final = re.compile(
    r"(password\s*=\s*)('(?:[^'\\]|\\.)*'\S*|'.*|(?:[^\s\\]|\\.)+)", re.DOTALL | re.IGNORECASE
)
_ANY_USERINFO: Final = re.compile(r"([^\s:/@]*):\S*@")


def is_dsn(text: str) -> bool:
    """Whether *text* has the form of a URL (several hosts allowed) or of libpq's keywords."""
    if not text.isprintable():
        return False
    return _is_url(text) if text.startswith(_SCHEMES) else not _LOCATING.isdisjoint(_keywords(text))


def as_url(dsn: str) -> str:
    """
    The URL that means the same as *dsn*, for drivers that do not read keywords.

    Args:
        dsn: A string that ``is_dsn`` accepts; a URL comes back as it is.

    Returns:
        A URL with every keyword in its query.
    """
    return dsn if dsn.startswith(_SCHEMES) else "postgresql:///?" + urlencode(_keywords(dsn), quote_via=quote)


class _Parts(NamedTuple):
    """
    A URL, taken apart.

    Attributes:
        base: The text between ``://`` and ``?``.
        userinfo: With its ``@``, or "".
        hosts: With their ports, as they are written.
        path: With its ``/``, or "".
        query: As it is written, without ``?``.
        named: The plain values of the query.
    """

    base: str
    userinfo: str
    hosts: str
    path: str
    query: str
    named: dict[str, str]


def _parts(dsn: str) -> _Parts:
    """Of a string that ``is_dsn`` accepts."""
    base, _, query = as_url(dsn).split("://", 1)[1].partition("?")
    authority, slash, path = base.partition("/")
    userinfo, at, hosts = authority.rpartition("@")
    pairs = (pair.split("=", 1) for pair in query.split("&") if "=" in pair)
    named = {key: unquote_plus(value) for key, value in pairs}
    return _Parts(base, userinfo + at, hosts, path=slash + path, query=query, named=named)


def hosts_of(dsn: str) -> list[str]:
    """A URL for each host of *dsn*, a string that ``is_dsn`` accepts; one alone where it names none, or one."""
    url = as_url(dsn)
    scheme = url.split("://", 1)[0]
    parts = _parts(dsn)
    if "," in parts.hosts:
        behind = parts.path + ("?" if parts.query else "") + parts.query
        return [f"{scheme}://{parts.userinfo}{host}{behind}" for host in parts.hosts.split(",")]
    several = parts.named.get("host", "").split(",")
    if len(several) == 1:
        return [url]
    ports = parts.named.get("port", "").split(",")
    others = [pair for pair in parts.query.split("&") if pair.partition("=")[0] not in {"host", "port"}]
    found: list[str] = []
    for place, host in enumerate(several):
        port = ports[place if len(ports) == len(several) else 0]
        of_host = urlencode({"host": host, **({"port": port} if port else {})}, quote_via=quote)
        found.append(f"{scheme}://{parts.base}?{'&'.join([of_host, *others])}")
    return found


def database_of(dsn: str) -> str:
    """
    Which database *dsn* names, without user and password, and the same for every way to write it.

    Returns:
        Its hosts with their ports, and its name, as ``a:5432,b:5432/pulse``; "" for what is no DSN.
    """
    if not is_dsn(dsn):
        return ""
    parts = _parts(dsn)
    hosts = unquote(parts.hosts) or parts.named.get("host", "")
    ports, several = parts.named.get("port", "").split(","), hosts.split(",")
    if len(ports) != len(several):
        ports = ports[:1] * len(several)
    places = ",".join(sorted(map(_with_port, several, ports)))
    service = parts.named.get("service")  # it may say where the database is
    name = unquote(parts.path[1:]) or parts.named.get("dbname") or parts.named.get("database", "")
    return f"{places}/{name}" + ("" if service is None else f"?service={service}")


def may_be_same(one: str, other: str) -> bool:
    """Whether these, as of ``database_of``, have a name and one of their hosts in common."""
    places, _, name = one.rpartition("/")
    others, _, its = other.rpartition("/")
    return bool(places) and name == its and not {*places.split(",")}.isdisjoint(others.split(","))


def _with_port(host: str, port: str) -> str:
    match = _HOST.fullmatch(host)
    return host if match is not None and match["port"] else f"{host.removesuffix(':')}:{port or _USUAL_PORT}"


def redact_dsn(dsn: str) -> str:
    """
    *dsn* with every password replaced by ``***``; for logs, messages and listings.

    A string that is no DSN is redacted too, as far as something in it looks like a password: most often it is a DSN
    with a slip in it. Where in doubt, too much is hidden.
    """
    if not dsn.startswith(_SCHEMES):
        return _ANY_USERINFO.sub(rf"\1:{_MASK}@", _SECRET_PAIR.sub(rf"\1{_MASK}", dsn))
    scheme, rest = dsn.split("://", 1)
    # Up to the last @ of all, not of the authority: a password pasted in without encoding may hold / ? # and @.
    userinfo, at, behind = rest.rpartition("@")
    if ":" in userinfo:
        rest = f"{userinfo.split(':', 1)[0]}:{_MASK}{at}{behind}"
    return f"{scheme}://{_redact_query(rest)}"


def _redact_query(text: str) -> str:
    base, mark, query = text.partition("?")
    return base + mark + "&".join(map(_redact_pair, query.split("&")))


def _redact_pair(pair: str) -> str:
    key, equals, _ = pair.partition("=")
    return f"{key}={_MASK}" if equals and unquote_plus(key).strip().lower() in _SECRETS else pair


def _is_url(text: str) -> bool:
    match = _URL.fullmatch(text)
    if match is None or not all(map(_is_host, match["hosts"].split(","))):
        return False
    return not match["query"] or all("=" in pair for pair in match["query"].split("&"))


def _is_host(text: str) -> bool:
    match = _HOST.fullmatch(text)
    return match is not None and (not match["port"] or 1 <= int(match["port"]) <= _MAX_PORT)


def _keywords(text: str) -> dict[str, str]:
    """The keywords of *text* with their plain values; empty when anything in it is not a keyword with a value."""
    found: dict[str, str] = {}
    position = len(text) - len(text.lstrip())
    while position < len(text):
        match = _KEYWORD.match(text, position)
        if match is None:
            return {}
        value = match["value"]
        found[match["key"]] = re.sub(r"\\(.)", r"\1", value[1:-1] if value.startswith("'") else value, flags=re.DOTALL)
        position = match.end()
    return found
