"""
The identity of a peer: an account of this machine, as the kernel names it, or a user who logged in over TCP.

The hello decides. Over TCP it has user and password, which may take a bcrypt check; on the Unix socket the kernel has
named the account before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from pulse.errors import UnauthorizedError
from pulse.protocol import Hello
from pulse.protocol.roles import EVERYTHING, NOTHING, Rights
from pulse.security.password_login import Logins
from pulse.store.operators.transaction import Operator
from pulse_actors.shared import identity as identities
from pulse_actors.shared.audit import operator_of

ANYBODY: Final = "anybody"  # the user of a server that requires no login


@dataclass(frozen=True, slots=True)
class AuthenticatedPeer:
    """
    A peer with a verified identity.

    Attributes:
        operator: Its identity, for audit and messages.
        rights: Its rights.
        peer: Its process; None: on another machine.
        source: Its address; None: on this machine.
        counted_as: What its address is counted as, see ``source_of``.
    """

    operator: Operator
    rights: Rights
    peer: identities.Peer | None = None
    source: str | None = None
    counted_as: str | None = None

    @property
    def uid(self) -> int | None:
        """User id of its process."""
        return None if self.peer is None else self.peer.uid

    @property
    def pid(self) -> int:
        """Its process id; 0 on another machine."""
        return 0 if self.peer is None else self.peer.pid

    @property
    def asker(self) -> int | str | None:
        """The process or address that its requests count for, over all of its connections; None: unknown."""
        return self.counted_as or self.pid or None

    def worker(self, host: identities.Host, name: str, session: bytes | None) -> tuple[str, bytes]:
        """
        Its identity as the worker *name*, and its session.

        Args:
            name: The name from its hello.
            session: The session that it says it was given before.
        """
        if self.peer is not None:
            identity = identities.compose(host, self.peer, name)
            return identity, identities.session_of(host, identity)
        mine = session if session is not None and identities.is_session(session) else identities.new_session()
        return identities.compose_remote(self.operator.user or ANYBODY, mine, name), mine


ANONYMOUS: Final = AuthenticatedPeer(Operator(), NOTHING)  # before its hello


class PeerAuth(Protocol):
    """How a peer connected."""

    async def admit(self, hello: Hello) -> AuthenticatedPeer:
        """
        Verify the peer that says *hello*.

        Raises:
            UnauthorizedError: The credentials are missing or wrong.
        """
        ...


@dataclass(frozen=True, slots=True)
class LocalPeerAuth:
    """
    A Unix socket: the kernel names the peer's account, and nothing that the peer sends changes that.

    Attributes:
        peer: The process.
        rights: Rights of its account.
        host: This host.
        greeted: Called after its hello.
    """

    peer: identities.Peer
    rights: Rights
    host: str
    greeted: Callable[[], None]

    async def admit(self, hello: Hello) -> AuthenticatedPeer:
        """Accept it at once."""
        del hello
        self.greeted()
        return AuthenticatedPeer(operator_of(self.peer.uid, self.peer.pid, self.host), self.rights, self.peer)


@dataclass(frozen=True, slots=True)
class RemotePeerAuth:
    """
    TCP.

    Attributes:
        address: Its address.
        source: The same, for counting guesses of passwords.
        logins: The users who may log in; None: no login is required.
        host: This host.
        greeted: Called after its hello.
    """

    address: str
    source: str
    logins: Logins | None
    host: str
    greeted: Callable[[], None]

    async def admit(self, hello: Hello) -> AuthenticatedPeer:
        """Verify user and password."""
        user, rights = ANYBODY, EVERYTHING
        if self.logins is not None:
            if hello.user is None or hello.password is None:
                raise UnauthorizedError("this server asks for a user and a password: pulse ctl login, or PULSE_USER")
            user, rights = hello.user, await self.logins.check(self.source, hello.user, hello.password)
        self.greeted()
        return AuthenticatedPeer(Operator(None, user, self.host), rights, source=self.address, counted_as=self.source)
