"""Why a job does not run, as the clients ask it and read the answer."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from pulse import protocol
from pulse.client import records, requests
from pulse.errors import BadRequestError, ProtocolError
from pulse.job import Status
from pulse.protocol import CLIENT_KINDS, FrameReader, decode_body

JOB = uuid.UUID(int=1)
BODY: dict[str, object] = {
    "id": JOB.bytes,
    "name": "resize",
    "topic": "images",
    "status": "PENDING",
    "reasons": [{"code": "full", "text": "Full.", "advice": "Wait.", "details": {"running": [["a", 1]]}, "more": 1}],
}


def test_the_question() -> None:
    """An id in any form; asking twice does no harm."""
    request = requests.why(str(JOB))
    (frame,) = FrameReader().feed(request.encode(1, protocol.MAX_FRAME_BYTES))
    asked: Any = decode_body(CLIENT_KINDS[frame.kind], frame)
    assert (asked.id, request.repeatable) == (JOB.bytes, True)
    with pytest.raises(BadRequestError, match="not a UUID: 'x'"):
        requests.why("x")


def test_the_answer() -> None:
    """Reasons in the server's order, with what it says; what a newer server adds is ignored."""
    told = records.why(BODY)
    assert told == records.Why(
        JOB,
        "resize",
        "images",
        Status.PENDING,
        (records.Reason("full", "Full.", "Wait.", {"running": [["a", 1]]}),),
    )
    (least,) = records.why({**BODY, "reasons": [{"code": "new", "text": "New."}]}).reasons
    assert (least.advice, least.details) == ("", {})


@pytest.mark.parametrize("wrong", [
    {"id": b"1"}, {"id": None}, {"status": "ASLEEP"}, {"reasons": None}, {"reasons": [1]}, {"reasons": [{"code": "x"}]},
])  # fmt: skip
def test_an_answer_of_another_kind(wrong: dict[str, object]) -> None:
    """It is an error of the server's, whatever is wrong."""
    with pytest.raises(ProtocolError, match=r"answer (is not understood|cannot be read)"):
        requests.why(JOB).understood({**BODY, **wrong})
