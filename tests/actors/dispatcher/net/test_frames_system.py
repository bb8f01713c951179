"""Bytes and bodies that are no requests: each costs its sender one error, and at most its connection."""

from __future__ import annotations

from typing import Final

import pytest

from pulse.protocol import encode
from tests.support.systems.system import Body, Peer, System, new_job

pytestmark = [pytest.mark.postgres, pytest.mark.process, pytest.mark.system]

SETTINGS: Final = {"PULSE_POLL_S": "60"}


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\0",
        b"\xff\xff\xff\xff",
        b"\0\0\0\1\xc1",
        b"\0\0\0\1\x05",
        b"\0\0\0\5\x93\xa1x\x01\x90",
        b"\0\0\0\5\x93\xa1x\xff\x80",
        b"\0\0\0\6\x93\xa1\xff\x01\x80\xc0",
        b"\0\0\x4e\x20" + b"\x91" * 20_000,
    ],
    ids=[
        "HTTP",
        "length 0",
        "length 2^32-1",
        "no msgpack",
        "no array",
        "body no map",
        "number negative",
        "bad UTF-8",
        "bomb",
    ],
)
def test_a_broken_frame_ends_its_connection_only(system: System, client: Peer, data: bytes) -> None:
    """After what came before it was answered: an error with nil, then the end; nobody else notices."""
    with system.client() as peer:
        peer.send_bytes(encode("ping", 7, {}) + data)
        assert peer.answer(7) == {}
        error = peer.take(lambda got: got.kind == "error", "error")
        assert error.request is None
        assert error.body["code"] in {"bad_request", "too_large"}
        assert peer.expect_end() == []
    assert client.call("ping") == {}


def test_who_stops_sending_still_gets_its_answers(system: System, topic: str) -> None:
    """A client that sends its requests, closes its side and reads has each answer before the end."""
    with system.client() as peer:
        job = new_job(topic=topic)
        asked = {peer.ask("submit", jobs=[job]), peer.ask("jobs.list", topic=topic), peer.ask("ping")}
        peer.stop_sending()
        assert {got.request for got in peer.expect_end() if got.kind == "ok"} == asked
    assert system.row(job["id"])["status"] == "PENDING"


@pytest.mark.parametrize("kind", ["fly", "hello", "started", "report", "heartbeat", "capacity", "actors.restart"])
def test_unknown_kinds_are_refused(client: Peer, kind: str) -> None:
    """A kind that is not a client's is an error of that request; the connection goes on."""
    code, message = client.refusal(kind)
    assert code == "bad_request"
    assert kind in message
    assert client.call("ping") == {}


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("submit", {}),
        ("jobs.get", {"id": b"short"}),
        ("jobs.cancel", {"ids": []}),
        ("dispatch.pause", {"topic": "\0"}),
        ("jobs.list", {"topic": "\0"}),
    ],
)
def test_wrong_bodies_are_refused(client: Peer, kind: str, body: Body) -> None:
    """A body that does not fit is an error of that request; the connection goes on."""
    assert client.refusal(kind, **body)[0] == "bad_request"
    assert client.call("ping") == {}
