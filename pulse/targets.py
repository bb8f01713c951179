"""Which sockets a client or worker tries, in which order, and what to say when none answers."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pulse import places
from pulse.errors import NobodyAnswersError, PlaceError

__all__ = ["ConnectionLostError", "Refusal", "Target", "find_targets", "nobody_answers", "why_not"]


class ConnectionLostError(NobodyAnswersError):
    """The connection broke."""


@dataclass(frozen=True, slots=True)
class Target:
    """
    One socket to try.

    Attributes:
        path: The socket.
        named: Whether the user named it, or its directory; then it may belong to another user.

    """

    path: Path
    named: bool


@dataclass(frozen=True, slots=True)
class Refusal:
    """A socket that was tried, and what it answered."""

    target: Target
    reason: str


def find_targets(
    socket: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    name: str = places.CLIENT_SOCKET,
) -> list[Target]:
    """
    The sockets to try, in order.

    Args:
        socket: The socket that the user named: then the only one.
        env: The environment; by default this process's.
        name: File name of the socket in a runtime directory.

    Raises:
        PlaceError: The named path can never be a socket: too long, a directory, or a file of another kind.

    """
    if socket is not None:
        path = Path(socket).absolute()
        places.check_socket_path(path)
        _refuse_other_kinds(path, name)
        return [Target(path, named=True)]
    env = os.environ if env is None else env
    own = env.get("PULSE_RUNTIME_DIR")
    named = Path(own).absolute() if own else None
    return [Target(path / name, named=path == named) for path in places.client_candidates(env)]


def why_not(target: Target) -> str | None:
    """
    Why *target* need not, or must not, be connected to; None when it may be tried.

    A directory that others control is refused: whoever listens there could be anybody.
    """
    if len(os.fsencode(target.path)) > places.MAX_SOCKET_PATH_BYTES:
        return f"path has more than {places.MAX_SOCKET_PATH_BYTES} bytes"
    try:
        target.path.parent.lstat()
    except OSError as error:
        return reason_of(error)
    try:
        places.check_client_dir(target.path.parent, named=target.named)
    except PlaceError as error:
        return error.message
    return None


def reason_of(error: OSError) -> str:
    """An OSError in the words of the system, without its number and path."""
    return (error.strerror or (os.strerror(error.errno) if error.errno else str(error))).lower()


def nobody_answers(refusals: Sequence[Refusal]) -> NobodyAnswersError:
    """The error that lists where was looked."""
    looked = "; ".join(f"{refusal.target.path} ({refusal.reason})" for refusal in refusals)
    return NobodyAnswersError(f"nobody answers; looked at {looked}")


def _refuse_other_kinds(path: Path, name: str) -> None:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.EACCES}:
            return  # the server may come later; connecting tells
        raise PlaceError(f"socket {path} cannot be used: {reason_of(error)}") from None
    if stat.S_ISDIR(mode):
        raise PlaceError(f"socket {path} is a directory; name the socket in it, as in {path / name}")
    if not stat.S_ISSOCK(mode):
        raise PlaceError(f"socket {path} is not a socket")
