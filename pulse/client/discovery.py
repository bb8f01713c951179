"""
Finds the servers that a client or worker tries, in order; and makes the error when none answers.

A server is a Unix socket of this machine (``LocalSocket``), or a TCP address (``Remote``). TCP addresses are used only
if named: by an argument, the environment, or the file that ``pulse ctl login`` wrote.
"""

from __future__ import annotations

import errno
import itertools
import math
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeAlias

from pulse.client.login import Login, logged_in, login_from
from pulse.common.dsn import is_dsn, redact_dsn
from pulse.common.duration import seconds_of
from pulse.errors import ConfigError, NobodyAnswersError, PathError
from pulse.security.schema_name import DEFAULT, schema_of
from pulse.system import directories
from pulse.system.sockets import addresses

__all__ = [
    "ConnectionLostError",
    "LocalSocket",
    "Patience",
    "Refusal",
    "Remote",
    "Server",
    "UnansweredError",
    "find_servers",
    "find_targets",
    "is_absent",
    "is_address",
    "nobody_answers",
    "parse_address",
    "patience",
    "supervisors_beside",
    "why_not",
]

TLS: Final = "tls"
_SCHEMES: Final = (TLS, "tcp")
_UNIX: Final = "unix://"
MEANT: Final = "PULSE_CONNECT_INSECURE"
_FLAGS: Final = {"": False, "0": False, "false": False, "1": True, "true": True}
RESTART_S: Final = 5.0  # for so long the socket may be gone while a server is restarted: a second or two, usually
CONNECT_TIMEOUT: Final = "PULSE_CONNECT_TIMEOUT_S"
_ABSENT: Final = frozenset(os.strerror(number).lower() for number in (errno.ENOENT, errno.ENOTDIR))
_REFUSED: Final = frozenset({os.strerror(errno.ECONNREFUSED).lower()})
_ALLOWED: Final = "tls://HOST:PORT, tcp://HOST:PORT, unix:///PATH or the path of a socket is allowed"


class ConnectionLostError(NobodyAnswersError):
    """The connection broke."""


class UnansweredError(NobodyAnswersError):
    """
    No server answers at any of the places where one is looked for.

    Attributes:
        refusals: The places, each with the reason.

    """

    refusals: Sequence[Refusal] = ()


@dataclass(frozen=True, slots=True)
class LocalSocket:
    """
    One socket to try.

    Attributes:
        path: The socket.
        named: Whether the user named it, or its directory; then it may belong to another user.

    """

    path: Path
    named: bool

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True, slots=True)
class Remote:
    """
    An address of TCP.

    Attributes:
        scheme: ``tls`` or ``tcp``.
        login: The user and password to log in with, and the certificates to trust.

    """

    scheme: str
    host: str
    port: int
    login: Login = Login()

    def __str__(self) -> str:
        return f"{self.scheme}://{addresses.joined(self.host, self.port)}"


Server: TypeAlias = LocalSocket | Remote


@dataclass(frozen=True, slots=True)
class Refusal:
    """A server that was tried, and why it was not used."""

    target: Server
    reason: str


def find_servers(
    named: str | os.PathLike[str] | Remote | None = None, env: Mapping[str, str] | None = None
) -> Sequence[Server]:
    """
    The servers to try, in order.

    Args:
        named: The address or socket that the user named; then no other is tried.
        env: The environment; by default this process's.

    Returns:
        The one in *named*; else in PULSE_CONNECT; else the socket in PULSE_RUNTIME_DIR; else the server of the saved
        login; else the usual sockets.

    Raises:
        ConfigError: An address is malformed, or the login for it cannot be used.
        PathError: As ``find_targets``.

    """
    if isinstance(named, Remote):
        return [named]
    env = os.environ if env is None else env
    text = named if named is not None else env.get("PULSE_CONNECT") or None
    if text is not None:
        if is_address(text):
            return [_remote(os.fspath(text), env)]
        return find_targets(os.fspath(text).removeprefix(_UNIX), env)
    if not env.get("PULSE_RUNTIME_DIR"):
        saved = logged_in(env)
        if saved is not None:
            return [_remote(saved.address, env, saved.login)]
    return find_targets(None, env)


def is_address(text: str | os.PathLike[str]) -> bool:
    """Whether *text* is an address, and not a socket of this machine."""
    scheme, separator, _ = os.fspath(text).partition("://")
    return bool(separator) and f"{scheme}://" != _UNIX


def parse_address(text: str) -> Remote:
    """
    The address in *text*.

    Raises:
        ConfigError: It is malformed, or contains a password, which lists of processes would show.

    """
    scheme, _, rest = text.partition("://")
    user, at, place = rest.rpartition("@")
    where = addresses.split(place.rstrip("/"))
    if scheme not in _SCHEMES or where is None or where[1] == 0 or (at and not user):
        raise ConfigError(f"{_without_password(text)!r:.120} is no address of a server: {_ALLOWED}")
    if ":" in user:
        raise ConfigError(
            f"{_without_password(text)!r:.120} has a password in it, which others can see: PULSE_PASSWORD is the place "
            "for it, or pulse ctl login"
        )
    return Remote(scheme, *where, Login(user or None))


def _remote(text: str, env: Mapping[str, str], saved: Login | None = None) -> Remote:
    """The address with its login: from the environment; else the saved one, if it is for this address."""
    parsed = parse_address(text)
    if saved is None:
        found = logged_in(env)
        saved = found.login if found is not None and found.address == str(replace(parsed, login=Login())) else Login()
    told = login_from(env)
    user = parsed.login.user or told.user or saved.user
    # A password belongs to its user: the saved one is not tried for another user.
    password = told.password or (saved.password if user == saved.user else None)
    login = Login(user, password, told.ca or saved.ca, cert=told.cert or saved.cert, key=told.key or saved.key)
    server = replace(parsed, login=login)
    if password != saved.password and not told_to_show(env):  # a login saved for this address was intended
        refuse_to_show_password(server, f"{MEANT}=1")
    return server


def told_to_show(env: Mapping[str, str]) -> bool:
    """
    Whether the environment says that passwords may go over plain TCP to other machines.

    Raises:
        ConfigError: The value is not allowed.

    """
    said = env.get(MEANT, "")
    if said not in _FLAGS:
        raise ConfigError(f"{MEANT} is {said!r:.60}: 1 or 0 (true or false) is allowed")
    return _FLAGS[said]


def refuse_to_show_password(server: Remote, meant: str) -> None:
    """
    Refuse to send a password where others can read it on the way.

    Args:
        server: The server.
        meant: The setting that allows it.

    Raises:
        ConfigError: Others could read it.

    """
    if server.login.password is not None and server.scheme != TLS and not addresses.is_loopback(server.host):
        raise ConfigError(
            f"{server} is on another machine, and everybody on the way could read the password: "
            f"tls://HOST:PORT is allowed, and {meant} says that this is meant"
        )


def _without_password(text: str) -> str:
    head, at, place = text.rpartition("@")
    scheme, separator, userinfo = head.partition("://")
    user, colon, _ = userinfo.partition(":")
    return f"{scheme}{separator}{user}:***@{place}" if at and colon else text


def find_targets(
    socket: str | os.PathLike[str] | None = None, env: Mapping[str, str] | None = None
) -> list[LocalSocket]:
    """
    The sockets to try, in order.

    Args:
        socket: The socket that the user named; then no other is tried.
        env: The environment; by default this process's.

    Raises:
        PathError: The named path can never be a socket: too long, a directory, or a file of another kind.
    """
    if socket is not None:
        path = Path(socket).absolute()
        directories.check_socket_path(path)
        _refuse_other_kinds(path)
        return [LocalSocket(path, named=True)]
    env = os.environ if env is None else env
    own = env.get("PULSE_RUNTIME_DIR")
    named = Path(own).absolute() if own else None
    candidates = directories.client_candidates(env)
    return [LocalSocket(path / directories.CLIENT_SOCKET, named=path == named) for path in candidates]


def supervisors_beside(servers: Sequence[Server]) -> list[LocalSocket]:
    """
    The sockets of the supervisors of *servers*, each beside the one of its dispatcher.

    Raises:
        NobodyAnswersError: A server is on another machine: a supervisor of this one is that of another queue.
    """
    beside: list[LocalSocket] = []
    for server in servers:
        if isinstance(server, Remote):
            raise NobodyAnswersError(f"the supervisor is asked on its own machine only: {server} leads to jobs")
        beside.append(replace(server, path=server.path.with_name(directories.SUPERVISOR_SOCKET)))
    return beside


def why_not(target: Server) -> str | None:
    """
    Why *target* need not, or must not, be connected to; None when it may be tried.

    A directory that others control is refused: any program could listen there.
    """
    if isinstance(target, Remote):
        return None
    if len(os.fsencode(target.path)) > directories.MAX_SOCKET_PATH_BYTES:
        return f"path has more than {directories.MAX_SOCKET_PATH_BYTES} bytes"
    try:
        target.path.parent.lstat()
    except OSError as error:
        return reason_of(error)
    try:
        directories.check_client_dir(target.path.parent, named=target.named)
    except PathError as error:
        return error.message
    return None


def reason_of(error: OSError) -> str:
    """An OSError in the words of the system, without its number and path."""
    if "ssl" in sys.modules:  # not loaded for a Unix socket
        from pulse.security import tls

        if isinstance(error, tls.SSLError):
            return tls.reason_of(error)
    return (error.strerror or (os.strerror(error.errno) if error.errno else str(error))).lower()


def nobody_answers(refusals: Sequence[Refusal]) -> UnansweredError:
    """The error that lists the places tried, and says how to start a server where there is none."""
    alike = itertools.groupby(refusals, lambda refusal: refusal.reason)
    looked = "; ".join(f"{', '.join(str(one.target) for one in places)} ({reason})" for reason, places in alike)
    start = ""
    if any(refusal.reason in _ABSENT | _REFUSED for refusal in refusals):
        remote = all(isinstance(refusal.target, Remote) for refusal in refusals)
        start = "; pulse-supervisor starts a server" + (" there, with PULSE_LISTEN set" if remote else "")
    error = UnansweredError(f"nobody answers; looked at {looked}{start}")
    error.refusals = tuple(refusals)
    return error


def is_absent(error: NobodyAnswersError) -> bool:
    """Whether there is no socket at all: nobody has started a server, or it was stopped."""
    return isinstance(error, UnansweredError) and all(refusal.reason in _ABSENT for refusal in error.refusals)


@dataclass(frozen=True, slots=True)
class Patience:
    """
    How long a client waits for a server.

    Attributes:
        connect_s: For one to be there, seconds.
        restarts: Whether one that was there is waited for: a restart takes a second or two.
        dsn: The database that submits go to instead, if there is one.
        schema: The schema in it.
    """

    connect_s: float
    restarts: bool = True
    dsn: str | None = None
    schema: str = DEFAULT

    def until_s(self, error: NobodyAnswersError, began_s: float, lost_s: float | None) -> float:
        """
        Until when to try again, by the caller's clock, as the arguments.

        Args:
            error: Why there is no connection.
            began_s: When the first try of this time began.
            lost_s: When it was noticed that the connection is lost; None: there was none yet.
        """
        until_s = began_s + self.connect_s
        if lost_s is None or not self.restarts:
            return until_s
        return max(until_s, lost_s + RESTART_S) if is_absent(error) else math.inf


def patience(
    when_down: str | None, connect_timeout_s: float | None, timeout_s: float, env: Mapping[str, str]
) -> Patience:
    """
    How long a client waits, by what its user chose.

    Args:
        when_down: ``fail``, ``wait`` or a DSN; None: a restart is waited for.
        connect_timeout_s: For a server to be there; None: PULSE_CONNECT_TIMEOUT_S, else not at all.
        timeout_s: For an answer.
        env: The environment.

    Raises:
        ConfigError: A value is not allowed.

    """
    connect_s = _connect_timeout_s(connect_timeout_s, env)
    if when_down is None:
        return Patience(connect_s)
    _check_text(when_down)
    if when_down == "wait":
        return Patience(max(connect_s, timeout_s))
    if when_down == "fail":
        return Patience(connect_s, restarts=False)
    if is_dsn(when_down):
        return Patience(connect_s, restarts=False, dsn=when_down, schema=schema_of(None, env))
    raise ConfigError(
        f"when_down is {redact_dsn(when_down)!r:.120}: 'fail', 'wait' or a DSN (postgresql://USER@HOST/NAME) is allowed"
    )


def _connect_timeout_s(given: float | None, env: Mapping[str, str]) -> float:
    text = env.get(CONNECT_TIMEOUT, "").strip()
    if given is not None or not text:
        return given or 0.0
    try:
        return seconds_of(text, zero=True)
    except ValueError as error:
        raise ConfigError(f"{CONNECT_TIMEOUT} is {text!r:.60}: {error}") from None


def _refuse_other_kinds(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.EACCES}:
            return  # the server may start later
        raise PathError(f"socket {path} cannot be used: {reason_of(error)}") from None
    if stat.S_ISDIR(mode):
        raise PathError(
            f"socket {path} is a directory; name the socket in it, as in {path / directories.CLIENT_SOCKET}"
        )
    if not stat.S_ISSOCK(mode):
        raise PathError(f"socket {path} is not a socket")


def _check_text(when_down: object) -> None:
    if not isinstance(when_down, str):
        raise ConfigError(f"when_down is of type {type(when_down).__name__}: 'fail', 'wait' or a DSN is allowed")
