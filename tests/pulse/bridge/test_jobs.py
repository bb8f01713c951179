"""The job of a message: which id, which args, and what is refused."""

from __future__ import annotations

from typing import Any, cast
from uuid import UUID

import pytest

from pulse.app.call import Call
from pulse.bridge.broker import BrokerMessage
from pulse.bridge.jobs import BridgeOptions, job_of, refused_job
from pulse.client.requests import NewJob
from pulse.errors import BadRequestError

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def message(data: bytes, key: str = "nats/S/1", **headers: str) -> BrokerMessage:
    return BrokerMessage(key, f"S/{key[-1]}", "s.new", headers, data, deliveries=1, receipt=None)


def args(job: NewJob) -> str:
    return cast("Call[Any]", job["name"]).args


class TestId:
    def test_it_never_changes(self) -> None:
        """Else messages that are delivered again across an upgrade would become second jobs."""
        job = job_of(message(b"{}"), BridgeOptions("ship"))
        assert job.get("id") == UUID("96988f7d-b02b-5ee3-8ef5-93acd8026091")

    def test_each_message_and_each_handler_has_another(self) -> None:
        made = [
            job_of(message(b"{}", key), BridgeOptions(handler)).get("id")
            for key in ("nats/S/1", "nats/S/2")
            for handler in ("ship", "bill")
        ]
        refused = [refused_job(message(b"{}", key), "ship", "x").get("id") for key in ("nats/S/1", "nats/S/2")]
        assert len({*made, *refused}) == 6

    def test_neither_args_nor_topic_matter(self) -> None:
        one = job_of(message(b"{}"), BridgeOptions("ship"))
        other = job_of(message(b'{"n": 1}'), BridgeOptions("ship", topic="t", as_message=True))
        assert (one.get("id"), one.get("topic"), other.get("topic")) == (other.get("id"), None, "t")


class TestArgs:
    def test_the_text_stays_as_it_is(self) -> None:
        assert args(job_of(message(b' {"n": 1.10, "m": 1e400}'), BridgeOptions("ship"))) == ' {"n": 1.10, "m": 1e400}'

    @pytest.mark.parametrize(("data", "said"), [
        (b"", "args are not JSON: Expecting value at character 1"),
        (b"[]", "args must be a JSON object of keyword arguments, not an array"),
        (b"\xff{}", "args are not UTF-8 text"),
        (b'{"x": "\\u0000"}', "args are not storable: it contains a NUL character"),
    ])  # fmt: skip
    def test_what_cannot_be_args(self, data: bytes, said: str) -> None:
        with pytest.raises(BadRequestError, match=f"^{said}$"):
            job_of(message(data), BridgeOptions("ship"))
        job_of(message(data), BridgeOptions("ship", as_message=True))

    def test_the_message_itself(self) -> None:
        made = args(job_of(message(b'{"n": 1.10}', colour="red"), BridgeOptions("ship", as_message=True)))
        assert made == '{"subject":"s.new","headers":{"colour":"red"},"data":"{\\"n\\": 1.10}","base64":false}'

    @pytest.mark.parametrize(("data", "text"), [(b"\xff", "/w=="), (b"a\x00", "YQA=")])
    def test_bytes_that_are_no_text(self, data: bytes, text: str) -> None:
        made = args(job_of(message(data), BridgeOptions("ship", as_message=True)))
        assert made == f'{{"subject":"s.new","headers":{{}},"data":"{text}","base64":true}}'

    def test_a_header_that_cannot_be_stored(self) -> None:
        with pytest.raises(BadRequestError, match=r"^args are not storable: it contains a NUL character$"):
            job_of(message(b"{}", colour="\x00"), BridgeOptions("ship", as_message=True))

    def test_a_refused_message(self) -> None:
        assert args(refused_job(message(b"[]"), "look", "no object")) == (
            '{"subject":"s.new","headers":{},"data":"[]","base64":false,"position":"S/1","error":"no object"}'
        )


@pytest.mark.parametrize(
    ("headers", "expected"), [({}, None), ({"traceparent": TRACE}, TRACE), ({"traceparent": "x"}, None)]
)
def test_its_trace(headers: dict[str, str], expected: str | None) -> None:
    assert job_of(message(b"{}", **headers), BridgeOptions("ship")).get("traceparent") == expected
