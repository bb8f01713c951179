"""
Accepts connections until a ``PeerSession`` takes over: on the Unix socket, where the kernel names the peer, and by TLS.

Each connection costs only a bounded time, and each source has only a bounded number of connections. Those beyond are
closed at once, before anything is read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import ssl
import sys
import time
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from typing import Any, Final, TypeAlias

import anyio
import anyio.abc
import structlog
from anyio.streams.tls import TLSStream

from pulse import protocol
from pulse.config import Settings
from pulse.errors import ConfigError
from pulse.security import tls
from pulse.security.credentials import parse_users
from pulse.security.grants import read_grants
from pulse.security.log_throttle import Refused
from pulse.security.password_login import Logins, source_of
from pulse.system.sockets.addresses import joined
from pulse.system.sockets.unix_stream import of_unix_socket
from pulse_actors.dispatcher.admission.connection_limits import (
    MOST_BEFORE_HELLO_OF_ALL,
    ConnectionLimits,
    ConnectionSlot,
)
from pulse_actors.dispatcher.admission.memory_budget import incoming_budget_of
from pulse_actors.dispatcher.admission.tls_limits import TlsHandshakes
from pulse_actors.dispatcher.context import PeerServices
from pulse_actors.dispatcher.net.connection import PeerConnection
from pulse_actors.dispatcher.net.peer import LocalPeerAuth, PeerAuth, RemotePeerAuth
from pulse_actors.dispatcher.net.session import HELLO_DEADLINE_S, PeerSession
from pulse_actors.shared import identity as identities

OWN_DESCRIPTORS: Final = 16  # reserved for the dispatcher itself
ACCEPT_PAUSE_S: Final = 0.5  # accept fails at once while no descriptor is free: without a pause it would spin
REMOTE_HELLO_MAX_FRAME_BYTES: Final = 256 * 1024  # before any login; 10 000 running jobs fit
# A peer whose machine is gone is silent: the kernel probes after 30 s, and gives up after as long again.
_TCP_OPTIONS: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),  # frames are written whole: waiting to merge packets gains nothing
)
Attend: TypeAlias = Callable[[anyio.abc.SocketStream, int], Coroutine[Any, Any, None]]

log = structlog.get_logger()


class Listener:
    """
    Accepts peers.

    Raises:
        ConfigError: The settings name an account, or a certificate, that cannot be used.
    """

    def __init__(self, services: PeerServices, settings: Settings) -> None:
        self._services = services
        self._host = services.host
        self._settings = settings
        self._grants = read_grants(settings.allow_users, settings.allow_groups)
        self._logins = None if settings.auth_users is None else Logins(parse_users(settings.auth_users))
        self._limits = ConnectionLimits()
        self._own_limits = ConnectionLimits(sys.maxsize, sys.maxsize, sys.maxsize)  # the server's own account, and root
        # Limits of its own: remote peers must not keep the accounts of this machine out.
        self._remote_limits = ConnectionLimits()
        self._handshakes = TlsHandshakes()
        self._refused = Refused()
        self._accepted = 0
        self._tls: ssl.SSLContext | None = None
        if settings.listen is not None and settings.tls_cert is not None and settings.tls_key is not None:
            self._tls = self._context(settings.tls_cert, settings.tls_key)

    def reload(self) -> None:
        """Read the certificate again; an invalid one changes nothing."""
        cert, key = self._settings.tls_cert, self._settings.tls_key
        if self._tls is None or cert is None or key is None:
            return
        try:
            self._tls = self._context(cert, key)
        except ConfigError as error:
            log.warning("certificate_not_reloaded", error=error.message)
        else:
            log.info("certificate_reloaded", path=str(cert))

    def _context(self, cert: Path, key: Path) -> ssl.SSLContext:
        context = tls.server_context(cert, key, self._settings.tls_client_ca)
        self._handshakes.each_s = tls.handshake_s(context)
        return context

    async def serve(self, listener: anyio.abc.SocketListener, *, remote: bool = False) -> None:
        """Accept peers until cancelled."""
        attend: Attend = self._attend_remote if remote else self._attend_local
        async with anyio.create_task_group() as sessions:
            while True:
                try:
                    check_descriptors()
                    stream = await listener.accept()
                except (OSError, anyio.BrokenResourceError) as error:  # anyio converts one into the other
                    # No descriptor is free: connected peers go on, the others wait in the backlog.
                    log.warning("accept_failed", error=str(error.__cause__ or error))
                    await anyio.sleep(ACCEPT_PAUSE_S)
                else:
                    self._accepted += 1
                    sessions.start_soon(attend, stream, self._accepted)

    async def _attend_local(self, stream: anyio.abc.SocketStream, number: int) -> None:
        try:
            raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)
            peer = identities.peer_of(raw)
            if identities.is_gone(peer):  # it has ended, and will not read an answer
                await stream.aclose()
                return
            source, rights = f"uid {peer.uid}", self._grants.of(raw)
            limits = self._own_limits if self._grants.is_own(peer.uid) else self._limits
            if self._is_full(limits, source):
                await stream.aclose()
                return
            pidfd = identities.pidfd_of(raw, peer) if self._knows(peer) else None
        except OSError:  # gone already
            await stream.aclose()
            return
        with self._entered(limits, source) as slot:
            entry = LocalPeerAuth(peer, rights, self._host.id, greeted=slot.greeted)
            await self._serve_peer(of_unix_socket(stream), entry, source, pidfd, number)

    async def _attend_remote(self, stream: anyio.abc.SocketStream, number: int) -> None:
        try:
            raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)
            host, port, *_ = raw.getpeername()
            for option in _TCP_OPTIONS:
                raw.setsockopt(*option)
        except OSError:
            await stream.aclose()
            return
        source = source_of(host)
        if self._is_full(self._remote_limits, source):
            await stream.aclose()
            return
        with self._entered(self._remote_limits, source) as slot:
            secured = await self._secured(stream, source, slot.network)
            if secured is not None:
                entry = RemotePeerAuth(
                    joined(host, port), source, self._logins, host=self._host.id, greeted=slot.greeted
                )
                await self._serve_peer(secured, entry, source, None, number)

    async def _secured(self, stream: anyio.abc.SocketStream, source: str, network: str) -> anyio.abc.ByteStream | None:
        """The stream, behind TLS if that is in use; None: the handshake failed, and the stream is closed."""
        if self._tls is None:
            return stream
        try:
            with anyio.fail_after(HELLO_DEADLINE_S):
                await self._handshakes.wait(source, network)
            with anyio.fail_after(HELLO_DEADLINE_S):  # again: behind a long queue each one has waited for long
                return await TLSStream.wrap(
                    stream, server_side=True, ssl_context=self._tls, standard_compatible=False
                )  # frames have a length: a forged end of the stream is noticed
        except (ssl.SSLError, anyio.BrokenResourceError, anyio.EndOfStream, OSError) as error:  # also TimeoutError
            times = self._count("tls", source)
            if times is not None:
                reason = str(error.__cause__ or error) or type(error).__name__
                log.warning("tls_failed", source=source, reason=reason, times=times)
            await anyio.aclose_forcefully(stream)
            return None
        except BaseException:  # it was closed to make room for another one
            await anyio.aclose_forcefully(stream)
            raise

    async def _serve_peer(
        self, stream: anyio.abc.ByteStream, entry: PeerAuth, source: str, pidfd: int | None, number: int
    ) -> None:
        longest = REMOTE_HELLO_MAX_FRAME_BYTES if isinstance(entry, RemotePeerAuth) else protocol.HELLO_MAX_FRAME_BYTES
        connection = PeerConnection(stream, protocol.MAX_FRAME_BYTES, longest, begun=incoming_budget_of(source))
        try:
            await PeerSession(self._services, connection, entry, pidfd=pidfd, number=number).run()
        except Exception:
            log.exception("visit_failed", entry=repr(entry))  # affects only this peer
        if connection.is_cut and isinstance(entry, RemotePeerAuth):
            times = self._count("cut", source)
            if times is not None:
                log.info("peer_cut", address=entry.address, times=times)

    @contextlib.contextmanager
    def _entered(self, limits: ConnectionLimits, source: str) -> Generator[ConnectionSlot]:
        """A place in *limits*; the block is cancelled when another connection needs the place."""
        with anyio.CancelScope() as scope:

            def evict() -> None:
                reason = f"{MOST_BEFORE_HELLO_OF_ALL} connections have not said hello yet: this one made room"
                self._tell(source, reason)
                scope.cancel()

            slot = limits.enter(source, evict)
            try:
                yield slot
            finally:
                slot.free()

    def _is_full(self, limits: ConnectionLimits, source: str) -> bool:
        """Whether there are too many; then that is logged."""
        reason = limits.refusal(source)
        if reason is not None:
            self._tell(source, reason)
        return reason is not None

    def _tell(self, source: str, reason: str) -> None:
        """Log, once a minute, that a connection of *source* was refused or closed."""
        times = self._count("connections", source)
        if times is not None:
            log.warning("connection_refused", source=source, reason=reason, times=times)

    def _count(self, what: str, source: str) -> int | None:
        return self._refused.count((what, source), time.monotonic())

    def _knows(self, peer: identities.Peer) -> bool:
        """Whether the kernel can report the end of this very process."""
        return self._services.process_watch is not None and peer.pid != 0 and peer.pidns == self._host.pidns


def check_descriptors() -> None:
    """
    Check that enough descriptors stay free for what the dispatcher itself opens: /proc, pidfds, the database.

    The lowest free number stands for how many are in use; if there are holes below others, a few more connections fit.

    Raises:
        OSError: Too few are free (EMFILE).
    """
    lowest_free = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.close(lowest_free)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if lowest_free + OWN_DESCRIPTORS > soft != resource.RLIM_INFINITY:
        raise OSError(errno.EMFILE, f"{OWN_DESCRIPTORS} of {soft} open files are kept for the dispatcher itself")
