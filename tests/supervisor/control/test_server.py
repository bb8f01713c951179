"""Who gets which answer on supervisor.sock, without a supervisor: a connection at a time."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, Final

import pytest
import trio

from pulse.protocol import FrameReader, decode_any, encode
from pulse.protocol.roles import EVERYTHING, NOTHING, Access, Rights
from pulse.security.grants import Grants
from pulse_supervisor.control.server import (
    MAX_CONNECTIONS,
    MAX_FRAME_BYTES,
    MOST_OF_ONE,
    OWN_SEATS,
    ControlServer,
    Requester,
    _ControlConnection,
)

OWN: Final = 61_000
STRANGER: Final = 61_001
END_S: Final = 10.0
HELLO: Final = encode("hello", 0, {"protocol": 1, "role": "client"})


async def _pong(_request: object) -> dict[str, object]:
    return {}


def _ignore(*_: object, **__: object) -> None:
    """What it has to say interests no test here."""


def made() -> ControlServer:
    return ControlServer({"ping": _pong, "drain": _pong}, {}, _ignore, Grants(OWN), did=_ignore, forbade=_ignore)


def said(
    sent: bytes, uid: int = OWN, rights: Rights = EVERYTHING, server: ControlServer | None = None
) -> list[tuple[str, int | None, Any]]:
    """What the server answers to somebody who sends this, and no more; of errors the code and the message."""

    async def converse() -> bytes:
        ours, theirs = socket.socketpair()
        with theirs:
            async with trio.SocketStream(trio.socket.from_stdlib_socket(ours)) as stream:
                theirs.sendall(sent)
                theirs.shutdown(socket.SHUT_WR)
                peer = _ControlConnection(stream)
                peer.identify(Requester(uid, 1), rights)
                with trio.fail_after(END_S):
                    await (server or made())._converse(peer)
            return theirs.recv(MAX_FRAME_BYTES)

    frames = FrameReader(MAX_FRAME_BYTES).feed(trio.run(converse))
    bodies = [decode_any(frame) for frame in frames]
    return [
        (frame.kind, frame.request, (body["code"], body["message"]) if frame.kind == "error" else None)
        for frame, body in zip(frames, bodies, strict=True)
    ]


def test_who_says_nothing_hears_nothing() -> None:
    assert said(b"") == []


def test_who_may_ask_is_answered() -> None:
    told = said(HELLO + encode("ping", 1, {}))
    assert told == [("welcome", 0, None), ("ok", 1, None)]


@pytest.mark.parametrize(("sent", "number", "code", "message"), [
    (encode("status", 4, {}), 4, "bad_request", "status before hello"),
    (encode("hello", 0, {"protocol": 1, "role": "worker", "worker": "w"}), 0, "bad_request",
     "role worker is not served here: workers connect to pulse.sock"),
    (b"\xff\xff\xff\xff", None, "too_large", f"a frame of 4294967295 bytes; at most {MAX_FRAME_BYTES} are allowed"),
], ids=["no hello", "a worker", "garbage"])  # fmt: skip
def test_who_is_sent_away(sent: bytes, number: int | None, code: str, message: str) -> None:
    assert said(sent) == [("error", number, (code, message))]


@pytest.mark.parametrize("asked", [encode("jobs.list", 1, {}), encode("ping", None, {})], ids=["unknown", "no number"])
def test_what_is_no_request(asked: bytes) -> None:
    (_, told) = said(HELLO + asked)
    assert told[2][0] == "bad_request"
    assert "is no request of this socket; known, with a number: " in told[2][1]


@pytest.mark.parametrize(("rights", "kinds"), [
    (NOTHING, ["error"]), (frozenset({Access.VIEWER}), ["welcome", "ok", "error"]),
])  # fmt: skip
def test_who_lacks_a_role(rights: Rights, kinds: list[str]) -> None:
    told = said(HELLO + encode("ping", 1, {}) + encode("drain", 2, {"all": False}), STRANGER, rights)
    assert [kind for kind, _, _ in told] == kinds
    assert told[-1][2][0] == "forbidden"


def _crowded(server: ControlServer, count: int) -> None:
    server._connections = count


def _crowded_by_one(server: ControlServer, count: int) -> None:
    server._of_account[STRANGER] = server._of_account[OWN] = count


@pytest.mark.parametrize(("uid", "crowded", "most"), [
    (OWN, _crowded, MAX_CONNECTIONS), (STRANGER, _crowded, MAX_CONNECTIONS - OWN_SEATS),
    (STRANGER, _crowded_by_one, MOST_OF_ONE),
])  # fmt: skip
def test_a_crowd_is_turned_away(uid: int, crowded: Callable[[ControlServer, int], None], most: int) -> None:
    """The server's own account later than others, and never for its own connections."""
    told = list[tuple[str, int | None, Any]]()
    for count in (most, most + 1):
        server = made()
        crowded(server, count)
        told += said(HELLO, uid, server=server)
    assert [(kind, reason and reason[0]) for kind, _, reason in told] == [("welcome", None), ("error", "unavailable")]
    server = made()
    _crowded_by_one(server, MOST_OF_ONE + 1)
    assert [told[0] for told in said(HELLO, server=server)] == ["welcome"]
