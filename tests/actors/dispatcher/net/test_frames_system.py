"""Bytes and bodies that are no requests: each costs its sender one error, and at most its connection."""

from __future__ import annotations

import resource
from typing import Final

import pytest

from pulse.protocol import encode
from tests.support.systems.system import Body, Peer, System, new_job

pytestmark = [pytest.mark.postgres, pytest.mark.process, pytest.mark.system]

SETTINGS: Final = {"PULSE_POLL_S": "60"}


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\1\x05"], ids=["too large", "no array"])
def test_a_broken_frame_ends_its_connection_only(system: System, client: Peer, data: bytes) -> None:
    with system.client() as peer:
        peer.send_bytes(encode("ping", 7, {}) + data)
        assert peer.answer(7) == {}
        error = peer.take(lambda got: got.kind == "error", "error")
        assert error.request is None
        assert error.body["code"] in {"bad_request", "too_large"}
        assert peer.expect_end() == []
    assert client.call("ping") == {}


def test_who_stops_sending_still_gets_its_answers(system: System, topic: str) -> None:
    with system.client() as peer:
        job = new_job(topic=topic)
        asked = {peer.ask("submit", jobs=[job]), peer.ask("jobs.list", topic=topic), peer.ask("ping")}
        peer.stop_sending()
        assert {got.request for got in peer.expect_end() if got.kind == "ok"} == asked
    assert system.row(job["id"])["status"] == "PENDING"


@pytest.mark.parametrize(("kind", "body"), [
    *((kind, {}) for kind in ("fly", "hello", "report", "actors.restart", "submit")),
    ("jobs.get", {"id": b"short"}),
    ("dispatch.pause", {"topic": "\0"}),
    ("jobs.list", {"topic": "\0"}),
])  # fmt: skip
def test_a_wrong_request_costs_nobody_the_connection(client: Peer, kind: str, body: Body) -> None:
    code, message = client.refusal(kind, **body)
    assert code == "bad_request"
    assert kind in message
    assert client.call("ping") == {}


def test_no_core_files(system: System) -> None:
    """The DSN would be in it; an administrator may raise the limit."""
    assert {resource.prlimit(pid, resource.RLIMIT_CORE)[0] for pid in system.pids().values()} == {0}
