"""Handlers in memory: no server, no database, and a mail service that says what the test wants."""

from __future__ import annotations

import io
import json
from uuid import uuid4

import httpx2
import pytest
from PIL import Image

import pulse
from pulse.testing import Inline
from shop.mail import Mail, send_mail
from shop.pictures import path_of, thumbnail

MAIL = Mail(to="ada@shop.example", subject="Order 1", text="We have your order.")


def service(pulse_inline: Inline, *answers: httpx2.Response) -> list[httpx2.Request]:
    """Let the mail service give these answers; returns the requests that it will get."""
    asked: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request)
        return answers[len(asked) - 1]

    transport = httpx2.MockTransport(answer)
    pulse_inline.values[httpx2.AsyncClient] = httpx2.AsyncClient(transport=transport, base_url="http://mail")
    return asked


def test_a_mail_is_sent_again_under_the_same_key(pulse_inline: Inline) -> None:
    """The service is busy, then broken, then it takes the e-mail."""
    busy = httpx2.Response(429, headers={"Retry-After": "7"})
    asked = service(pulse_inline, busy, httpx2.Response(500), httpx2.Response(202))
    job = pulse_inline.run(send_mail, MAIL)
    assert (job.status, job.attempts, job.delays_s) == ("COMPLETED", 3, (7, 4))
    assert {one.headers["Idempotency-Key"] for one in asked} == {str(job.id)}
    assert json.loads(asked[-1].content) == MAIL.model_dump()


def test_what_is_given_up_is_told_to_the_staff(pulse_inline: Inline) -> None:
    """An address that does not exist is not tried again."""
    asked = service(pulse_inline, httpx2.Response(422, text="no such address"), httpx2.Response(202))
    job_id = pulse_inline.submit(pulse.call(send_mail, MAIL))
    pulse_inline.run_until_idle()
    assert pulse_inline.job(job_id).last_error == "the mail service refuses it: no such address"
    told = json.loads(asked[-1].content)
    assert (told["to"], told["subject"]) == ("staff@shop.example", "send-mail was given up")


def test_a_thumbnail(pulse_inline: Inline) -> None:
    """It is no larger than was asked for."""
    picture = uuid4()
    Image.new("RGB", (1600, 1200)).save(path_of(picture), "PNG")
    job = pulse_inline.run(thumbnail, picture, width=200)
    assert job.result == path_of(picture, 200).name
    with Image.open(io.BytesIO(path_of(picture, 200).read_bytes())) as made:
        assert (made.format, made.size) == ("WEBP", (200, 150))


def test_what_is_no_picture_is_not_tried_again(pulse_inline: Inline) -> None:
    """It would be none the next time, either."""
    picture = uuid4()
    path_of(picture).write_bytes(b"no picture")
    service(pulse_inline, httpx2.Response(202))
    assert pulse_inline.run(thumbnail, picture, 200).status == "DEAD_LETTERED"


def test_a_wrong_call_fails_where_it_is_written() -> None:
    """Type checkers see it before that."""
    with pytest.raises(pulse.BadRequestError, match=r"thumbnail: width is 'wide'; allowed is a whole number"):
        pulse.call(thumbnail, uuid4(), "wide")  # type: ignore[call-overload]
