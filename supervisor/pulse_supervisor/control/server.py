"""
``supervisor.sock``: status and control, also while the dispatcher or the database is down.

Every account that can open the socket may send frames, so an error costs at most the connection: each has limits of
time, bytes and requests under way, each error is answered, and the supervisor goes on. Roles decide what an account may
ask.
"""

from __future__ import annotations

import errno
import socket
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias

import msgspec
import trio
from msgspec import Struct
from msgspec.structs import replace

from pulse.errors import (
    BadRequestError,
    ForbiddenError,
    ProtocolError,
    PulseError,
    RefusedError,
    UnavailableError,
    UnsupportedVersionError,
)
from pulse.protocol import (
    PROTOCOL_VERSION,
    SUPERVISOR_KINDS,
    BrokenStreamError,
    Frame,
    FrameReader,
    Hello,
    Role,
    decode_body,
    encode,
    encode_error,
)
from pulse.protocol.roles import ACCESS_OF, NOTHING, Access, Rights, refusal
from pulse.security.grants import Grants
from pulse.system.sockets.peer_credentials import credentials_of, shown, user_name

MAX_FRAME_BYTES: Final = 64 * 1024  # the longest request names an actor
MAX_CONNECTIONS: Final = 64  # one `pulse ctl top` per operator; a leaking script must not use up our descriptors
MOST_OF_ONE: Final = 16  # of one account, except the server's own and root: others must get in, too
OWN_SEATS: Final = 16  # kept for the server's own account and root
_HELLO_S: Final = 5.0
_NOBODY: Final = 65534  # until the kernel has named the peer
_FRAME_S: Final = 5.0  # from the first byte of a frame to its last
_SEND_S: Final = 5.0  # a client that reads nothing for so long is gone
_READ_BYTES: Final = 16 * 1024
_NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_NO_ROOM_PAUSE_S: Final = 0.5  # accept fails at once while no descriptor is free: without a pause it would spin

Answer: TypeAlias = Callable[[Struct], Awaitable[dict[str, object]]]


class Requester(msgspec.Struct, frozen=True):
    """The requester: uid and pid of the process, from the kernel; and the user that it names."""

    uid: int
    pid: int
    behalf: str | None = None


class ControlServer:
    """
    The server of ``supervisor.sock``.

    Args:
        answers: Functions by kind of request, of ``SUPERVISOR_KINDS``.
        welcome: The body of the answer to hello, without the protocol's own fields.
        log: Called with an event and fields.
        grants: The roles of accounts.
        did: Called with each request that was carried out, and the requester.
        forbade: Called with a refused kind, the role that it needs, and the requester.
    """

    def __init__(
        self,
        answers: Mapping[str, Answer],
        welcome: Mapping[str, object],
        log: Callable[..., object],
        grants: Grants,
        did: Callable[[Struct, Requester], None],
        forbade: Callable[[str, Access, Requester], None],
    ) -> None:
        self._answers = answers
        self._grants = grants
        self._did = did
        self._forbade = forbade
        self._welcome = encode(
            "welcome", 0, {**welcome, "protocol": PROTOCOL_VERSION, "max_frame_bytes": MAX_FRAME_BYTES}
        )
        self._log = log
        self._connections = 0
        self._of_account: Counter[int] = Counter()

    async def serve(self, listener: socket.socket) -> None:
        """Accept and answer until cancelled; *listener* stays open."""
        listener.setblocking(False)
        async with trio.open_nursery() as nursery:
            while True:
                await trio.lowlevel.wait_readable(listener)
                try:
                    sock, _ = listener.accept()
                except OSError as error:
                    if error.errno in _NO_ROOM:
                        self._log("accept_failed", reason=error.strerror)
                        await trio.sleep(_NO_ROOM_PAUSE_S)
                    continue  # any other error is the peer's: it left before it was accepted
                self._connections += 1
                stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
                nursery.start_soon(self._attend, _ControlConnection(stream), sock)

    async def _attend(self, peer: _ControlConnection, sock: socket.socket) -> None:
        """One connection, from its first byte to its last; every error ends here."""
        try:
            async with peer.stream:
                pid, uid, _ = credentials_of(sock)
                peer.identify(Requester(uid, pid), self._grants.of(sock))
                self._of_account[uid] += 1
                await self._converse(peer)
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError, OSError):
            pass
        except Exception as error:  # noqa: BLE001 - a bug in one answer must not stop the others
            self._log("connection_failed", error=repr(error))
        finally:
            self._connections -= 1
            self._of_account[peer.requester.uid] -= 1
            self._of_account += Counter()  # without counts of 0

    async def _converse(self, peer: _ControlConnection) -> None:
        try:
            uid = peer.requester.uid
            is_own = self._grants.is_own(uid)
            most = MAX_CONNECTIONS if is_own else MAX_CONNECTIONS - OWN_SEATS
            if self._connections > most:
                raise UnavailableError(f"{most} connections are open already, more are not accepted")
            if self._of_account[uid] > MOST_OF_ONE and not is_own:
                raise UnavailableError(
                    f"{MOST_OF_ONE} connections of uid {uid} are open already, more are not accepted"
                )
            frame = await peer.receive(_HELLO_S)
            if frame is None:
                return
            peer.speak_for(_checked(frame).behalf)
            self._check_right(peer, frame, Access.VIEWER)
            await peer.send(self._welcome)
            while (frame := await peer.receive(None)) is not None:
                await peer.send(await self._answer(frame, peer))
        except ProtocolError as error:
            await peer.send(encode_error(error.request, error.code, error.message))
        except RefusedError as error:
            await peer.send(encode_error(None, error.code, error.message))

    async def _answer(self, frame: Frame, peer: _ControlConnection) -> bytes:
        """The answer to one request; a request's error leaves the connection open."""
        try:
            request = _decode_request(frame)
            self._check_right(peer, frame, ACCESS_OF[frame.kind])
            answer = await self._answers[frame.kind](request)
            self._did(request, peer.requester)
            return encode("ok", frame.request, answer)
        except (RefusedError, ProtocolError) as error:
            return encode_error(frame.request, error.code, error.message)
        except Exception as error:  # noqa: BLE001 - the requester gets an error, the log says why, the others go on
            self._log("request_failed", kind=frame.kind, error=repr(error))
            return encode_error(frame.request, PulseError.code, f"{frame.kind} failed; the supervisor's log says why")

    def _check_right(self, peer: _ControlConnection, frame: Frame, needed: Access) -> None:
        if needed not in peer.rights:
            self._forbade(frame.kind, needed, peer.requester)
            who = shown(peer.requester.uid, user_name(peer.requester.uid))
            raise ProtocolError(refusal(frame.kind, needed, who, peer.rights), ForbiddenError.code, frame.request)


def _checked(frame: Frame) -> Hello:
    if frame.kind != "hello":
        raise ProtocolError(f"{frame.kind} before hello", request=frame.request)
    hello = decode_body(Hello, frame)
    if hello.protocol != PROTOCOL_VERSION:
        message = f"protocol {hello.protocol} is not spoken here, {PROTOCOL_VERSION} is"
        raise ProtocolError(message, UnsupportedVersionError.code, frame.request)
    if hello.role is not Role.CLIENT:
        raise ProtocolError(
            f"role {hello.role} is not served here: workers connect to pulse.sock", request=frame.request
        )
    return hello


def _decode_request(frame: Frame) -> Struct:
    kind = SUPERVISOR_KINDS.get(frame.kind)
    if kind is None or frame.request is None:
        known = ", ".join(sorted(SUPERVISOR_KINDS))
        raise BadRequestError(f"{frame.kind} is no request of this socket; known, with a number: {known}")
    return decode_body(kind, frame)


class _ControlConnection:
    """A stream of frames with deadlines."""

    __slots__ = ("_broken", "_frames", "_reader", "requester", "rights", "stream")

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.requester = Requester(_NOBODY, 0)
        self.rights: Rights = NOTHING
        self._reader = FrameReader(MAX_FRAME_BYTES)
        self._frames: deque[Frame] = deque()
        self._broken: BrokenStreamError | None = None

    def identify(self, requester: Requester, rights: Rights) -> None:
        """Store the peer's account and its rights."""
        self.requester, self.rights = requester, rights

    def speak_for(self, behalf: str | None) -> None:
        """Store the user that the peer names."""
        self.requester = replace(self.requester, behalf=behalf)

    async def receive(self, first_byte_s: float | None) -> Frame | None:
        """
        The next frame, None at the end of the stream.

        Args:
            first_byte_s: How long the peer may be silent; None: for ever.

        Raises:
            ProtocolError: The protocol is broken, or a frame was not finished in time.
        """
        scope = trio.CancelScope(deadline=_in(first_byte_s))
        with scope:
            while not self._frames:
                if self._broken is not None:
                    raise self._broken
                if self._reader.buffered_bytes and first_byte_s is None:
                    first_byte_s, scope.deadline = _FRAME_S, _in(_FRAME_S)
                data = await self.stream.receive_some(_READ_BYTES)
                if not data:
                    return None
                self._feed(data)
        if scope.cancelled_caught:
            raise ProtocolError(f"no whole frame within {first_byte_s:g} s")
        return self._frames.popleft()

    async def send(self, data: bytes) -> None:
        """
        Send a frame.

        Raises:
            trio.TooSlowError: The peer does not read.
        """
        with trio.fail_after(_SEND_S):
            await self.stream.send_all(data)

    def _feed(self, data: bytes) -> None:
        try:
            self._frames.extend(self._reader.feed(data))
        except BrokenStreamError as error:
            self._frames.extend(error.frames)
            self._broken = error


def _in(seconds: float | None) -> float:
    return float("inf") if seconds is None else trio.current_time() + seconds
