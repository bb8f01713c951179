"""
Frames over a blocking socket, for code without an event loop: async_transport for the blocking client.

Requests and answers are the same; only the waiting differs.
"""

from __future__ import annotations

import contextlib
import socket as sockets
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from os import PathLike
from typing import Any, Final, TypeVar

from pulse.client.discovery import (
    TLS,
    ConnectionLostError,
    LocalSocket,
    Patience,
    Refusal,
    Remote,
    Server,
    find_servers,
    nobody_answers,
    reason_of,
    why_not,
)
from pulse.client.requests import Request, answer_lost, body_of, poll_pauses_s, welcome_of
from pulse.errors import NobodyAnswersError, ProtocolError
from pulse.protocol import MAX_FRAME_BYTES, Frame, FrameReader, encode
from pulse.system.fork import renew_in_children

__all__ = ["Transport"]

_RECEIVE_BYTES: Final = 64 * 1024
AnswerT = TypeVar("AnswerT")


class Transport:
    """
    A connection to the server that is renewed when it breaks. Threads may share it: they take turns; and a fork may
    inherit it: the child makes a connection of its own.

    Args:
        socket: As of ``pulse.Client``.
        timeout_s: Longest wait for one answer, seconds: for reconnects and for other threads, too.
        hello: Body of the first frame.
        patience: How long it waits for a server to be there.

    """

    def __init__(
        self,
        socket: str | PathLike[str] | Remote | None,
        timeout_s: float,
        hello: Mapping[str, object],
        patience: Patience,
    ) -> None:
        self._socket = socket
        self._timeout_s = timeout_s
        self._patience = patience
        self._hello = hello
        self._exchange: BlockingExchange | None = None
        self._lost_s: float | None = None  # when it was noticed that there is no connection; monotonic
        self._turn = threading.Lock()
        renew_in_children(self)

    def open(self) -> None:
        """Connect now, to find out whether a server answers."""
        with self._turn:
            self._connected(time.monotonic() + max(self._timeout_s, self._patience.connect_s))

    def close(self) -> None:
        """Close the connection. The next request opens a new one."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.close()

    def renew(self) -> None:
        """Give up the connection and the lock of the parent, in a forked child."""
        self._turn = threading.Lock()
        if self._exchange is not None:
            self._exchange.close()  # only the child's copy

    def ask(self, request: Request[AnswerT], within_s: float | None = None) -> AnswerT:
        """
        The answer to *request*, within the client's ``timeout_s``, or *within_s* if that is less: waiting for other
        threads included.

        Raises:
            NobodyAnswersError: None came in time, or the connection broke and the request must not be repeated.
            RefusedError: The server refuses.
            ProtocolError: The frame is no answer to this request.

        """
        limit_s = self._timeout_s if within_s is None else min(within_s, self._timeout_s)
        deadline_s = time.monotonic() + limit_s
        if self._turn.acquire(timeout=limit_s):
            try:
                for pause_s in poll_pauses_s():
                    exchange = self._connected(deadline_s)
                    try:
                        return request.understood(exchange.ask(request, deadline_s))
                    except _OverdueError:
                        break
                    except ConnectionLostError:
                        if not request.repeatable:
                            raise answer_lost(request.kind) from None
                        time.sleep(_pause_s(pause_s, deadline_s))
            finally:
                self._turn.release()
        raise NobodyAnswersError(f"{request.kind}: no answer within {limit_s:g} s")

    def _connected(self, deadline_s: float) -> BlockingExchange:
        """The connection; a broken one is renewed until the deadline, or until patience is at its end."""
        old = self._exchange
        if old is not None and not old.broken:
            return old
        now_s = time.monotonic()
        self._lost_s = now_s if self._lost_s is None else self._lost_s
        for pause_s in poll_pauses_s():
            try:
                self._exchange = _dial(find_servers(self._socket), self._hello, deadline_s)
            except NobodyAnswersError as error:
                until_s = self._patience.until_s(error, now_s, None if old is None else self._lost_s)
                until_s = min(until_s, deadline_s)
                if time.monotonic() >= until_s:
                    raise
                time.sleep(_pause_s(pause_s, until_s))
            else:
                self._lost_s = None
                return self._exchange
        raise AssertionError


class _OverdueError(Exception):
    """The deadline has passed."""


class BlockingExchange:
    """Frames over a blocking socket, one request at a time."""

    def __init__(self, connection: sockets.socket) -> None:
        self._connection = connection
        self._reader = FrameReader(MAX_FRAME_BYTES)
        self._number = 0
        self.max_frame_bytes = MAX_FRAME_BYTES
        self.broken = False

    def ask(self, request: Request[Any], deadline_s: float) -> dict[str, object]:
        self._number += 1
        number = self._number
        self.send(request.encode(number, self.max_frame_bytes), deadline_s)
        request.meanwhile()
        while True:
            for frame in self.receive(deadline_s):
                if frame.request == number or (frame.request is None and frame.kind == "error"):
                    return body_of(frame)

    def send(self, data: bytes, deadline_s: float) -> None:
        with self._breaking():
            self._connection.settimeout(_left_s(deadline_s))
            self._connection.sendall(data)

    def receive(self, deadline_s: float) -> list[Frame]:
        with self._breaking():
            while True:
                self._reader.check()
                self._connection.settimeout(_left_s(deadline_s))
                data = self._connection.recv(_RECEIVE_BYTES)
                if not data:
                    raise ConnectionLostError("the other side closed the connection")
                if frames := self._reader.take(data):
                    return frames

    def close(self) -> None:
        self.broken = True
        self._connection.close()

    @contextlib.contextmanager
    def _breaking(self) -> Generator[None, None, None]:
        """Any failure ends the connection: a part of a frame may have been sent, or the answer may come too late."""
        try:
            yield
        except TimeoutError:
            self.close()
            raise _OverdueError from None
        except (ConnectionLostError, ProtocolError):
            self.close()
            raise
        except OSError as error:
            self.close()
            raise ConnectionLostError(f"the connection broke: {reason_of(error)}") from None
        except BaseException:
            self.close()
            raise


def _dial(targets: Sequence[Server], hello: Mapping[str, object], deadline_s: float) -> BlockingExchange:
    refusals: list[Refusal] = []
    for target in targets:
        reason = why_not(target)
        if reason is None:
            try:
                connection = _connect(target, _left_s(deadline_s))
            except OSError as error:
                reason = reason_of(error)
            else:
                return _introduce(BlockingExchange(connection), target, hello, deadline_s)
        refusals.append(Refusal(target, reason))
    raise nobody_answers(refusals)


def _connect(target: Server, timeout_s: float) -> sockets.socket:
    """
    A connection.

    Raises:
        OSError: No server accepts in time, or its certificate is for another name.

    """
    with contextlib.ExitStack() as stack:
        if isinstance(target, LocalSocket):
            connection = stack.enter_context(sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM))
            connection.settimeout(timeout_s)
            connection.connect(str(target.path))
            stack.pop_all()
            return connection
        connection = stack.enter_context(sockets.create_connection((target.host, target.port), timeout_s))
        connection.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)
        if target.scheme == TLS:
            from pulse.security import tls

            context = tls.client_context(target.login.ca, target.login.cert, target.login.key)
            connection = stack.enter_context(context.wrap_socket(connection, server_hostname=target.host))
        stack.pop_all()
        return connection


def _introduce(
    exchange: BlockingExchange, target: Server, hello: Mapping[str, object], deadline_s: float
) -> BlockingExchange:
    if isinstance(target, Remote):
        hello = {**target.login.hello, **hello}
    try:
        exchange.send(encode("hello", 0, hello), deadline_s)
        welcome = welcome_of(exchange.receive(deadline_s)[0])
    except _OverdueError:
        raise nobody_answers([Refusal(target, "no answer to hello")]) from None
    except ConnectionLostError as error:
        raise nobody_answers([Refusal(target, error.message)]) from None
    except BaseException:
        exchange.close()
        raise
    exchange.max_frame_bytes = welcome.max_frame_bytes
    return exchange


def _left_s(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _pause_s(pause_s: float, deadline_s: float) -> float:
    return max(0.0, min(pause_s, deadline_s - time.monotonic()))
