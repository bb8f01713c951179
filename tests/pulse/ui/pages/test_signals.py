"""Signals to a job: what its page shows of them, the form that sends one, and the answers to programs."""

from __future__ import annotations

import base64
import json
import re
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from pulse.errors import BadRequestError, ConflictError, NotFoundError, PulseError, UnavailableError
from pulse.protocol.roles import Access, rights_of
from pulse.security.credentials import parse_users
from pulse.ui.app import make_app
from tests.support.commandline.cli_answers import job
from tests.support.confidential import confidential
from tests.support.servers.dashboard import Browser, Got, Told, browser, site_of

pytestmark = pytest.mark.anyio
JOB = uuid.UUID(int=7)
RIGHT = confidential("r1ght-words", "password of ann and vic")
HIDDEN = confidential("hidden-from-vic", "payload of a signal")
YEAR_S = 365 * 86400.0


def told(**more: Any) -> Told:
    now_s = time.time()
    waits = {"awaited_signal": "paid <b>", "next_run_at": now_s + 3600, "completed_at": None}
    signals = [
        {"signal": "paid <b>", "key": "evt-1", "payload": json.dumps({"by": HIDDEN}), "sent_at": now_s},
        {"signal": "approved", "key": "k", "payload": json.dumps("y" * 5000), "sent_at": now_s},
        {"signal": "nothing", "key": "k", "sent_at": now_s},
    ]
    row = job(id=JOB.bytes, **{"status": "PENDING", **waits, "signals": signals, "signals_total": 120, **more})
    return Told(status={}, jobs_get={"job": row}, jobs_why={}, jobs_signal={"new": True})


def refusing(error: PulseError) -> Callable[[object], Mapping[str, object]]:
    def refuse(_body: object) -> Mapping[str, object]:
        raise error

    return refuse


async def test_the_page_of_a_job_shows_its_signals() -> None:
    got = await browser(told()).ask("GET", f"/jobs/{JOB}")
    said = " ".join(re.sub("<.*?>", " ", got.text).split())
    assert re.search(r"the signal “paid &lt;b&gt;” until 20\d\d-\S+ \S+ \(in (60|59) min\)", said), said
    assert f"{{&#34;by&#34;: &#34;{HIDDEN}&#34;}}" in got.text
    assert "payload, 4.9 KiB" in said
    assert "Signals 120" in said
    assert "and 117 later ones" in said
    assert len(got.text) < 20_000
    assert f'href="/jobs/{JOB}/signal"' in got.text
    at = browser(told(next_run_at=time.time() + 31 * YEAR_S))
    assert "” without end" in (await at.ask("GET", f"/jobs/{JOB}")).text


async def test_a_viewer_sees_no_payload_and_sends_nothing() -> None:
    at = browser(told())
    assert at.session is not None
    at.session.rights = rights_of({Access.VIEWER})
    got = await at.ask("GET", f"/jobs/{JOB}")
    assert "evt-1" in got.text
    assert HIDDEN not in got.text
    assert "/signal" not in got.text
    assert '<button class="primary" disabled' in (await at.ask("GET", f"/jobs/{JOB}/signal")).text
    got = await at.ask("POST", f"/jobs/{JOB}/signal", {"name": "paid", "payload": ""})
    assert "needs the role client" in got.text
    assert at.site.questions.changed == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("status", ["COMPLETED", "CANCELED"])
async def test_a_job_that_has_ended_gets_none(status: str) -> None:
    at = browser(told(status=status, awaited_signal=None, completed_at=time.time()))
    assert f'"/jobs/{JOB}/signal"' not in (await at.ask("GET", f"/jobs/{JOB}")).text


async def test_the_form() -> None:
    """It names the signal that the job waits for; sent twice, as by a reload, it is the same signal."""
    questions = told()
    at = browser(questions)
    page = await at.ask("GET", f"/jobs/{JOB}/signal")
    assert 'name="name" value="paid &lt;b&gt;"' in page.text
    found = re.search(r'name="key" value="([^"]+)"', page.text)
    assert found is not None
    form = {"name": " paid ", "payload": ' {"a": 1e400}\n', "key": found[1]}
    for _ in range(2):
        got = await at.ask("POST", f"/jobs/{JOB}/signal", form)
        assert (got.status, got.headers["location"]) == (303, f"/jobs/{JOB}")
    sent = {"id": JOB.bytes, "name": " paid ", "payload": '{"a": 1e400}', "key": found[1]}
    assert questions.changed == [("jobs.signal", sent, "ann")] * 2
    assert "Signal “paid” is sent." in (await at.ask("GET", f"/jobs/{JOB}")).text


@pytest.mark.parametrize("payload", ["{", "NaN", '"\\u0000"', "[" * 60_000, "1 2", '"\\ud800"'])
async def test_a_payload_that_is_no_json(payload: str) -> None:
    """The form shows it again, with the reason; nothing is sent."""
    at = browser(questions := told())
    got = await at.ask("POST", f"/jobs/{JOB}/signal", {"name": "paid", "payload": payload, "key": "k1"})
    assert got.status == 422
    assert re.search('role="alert">the payload is .', got.text)
    assert 'name="name" value="paid"' in got.text
    assert 'value="k1"' in got.text
    assert questions.changed == []
    got = await program(questions, payload.encode())
    assert (got.status, json.loads(got.text)["error"][:15]) == (400, "the payload is ")
    assert questions.changed == []


async def test_a_form_that_is_refused() -> None:
    questions = told()
    questions.replies["jobs.signal"] = refusing(ConflictError("job 7 is COMPLETED"))
    got = await browser(questions).ask("POST", f"/jobs/{JOB}/signal", {"name": "paid", "payload": "17"})
    assert (got.status, "job 7 is COMPLETED" in got.text, ">17</textarea>" in got.text) == (409, True, True)
    assert (await browser(questions).ask("GET", "/jobs/x/signal")).status == 404
    assert (await browser(questions).ask("POST", "/jobs/x/signal", {"name": "paid"})).status == 404


async def program(
    questions: Told, body: bytes = b"", user: str = "ann", name: str = "paid", of: object = JOB, **headers: str
) -> Got:
    site = site_of(questions, credentials=parse_users(f"ann:{RIGHT},vic:{RIGHT}:viewer,app:{RIGHT}:client"))
    login = {"authorization": f"Basic {base64.b64encode(f'{user}:{RIGHT}'.encode()).decode()}"}
    more = {key.replace("_", "-"): value for key, value in headers.items()}
    return await Browser(make_app(site), site).ask("POST", f"/jobs/{of}/signals/{name}", body, {**login, **more})


async def test_a_program_sends_a_signal() -> None:
    """The name is the rest of the path, whatever it has; the payload and the key are as they are given."""
    questions = told()
    questions.replies["jobs.signal"] = lambda body: {"new": body["key"] != "again"}
    got = await program(questions, b' {"n": 1.50}\n', "app", "a/b c", idempotency_key="evt 1")
    assert (got.status, json.loads(got.text), got.headers["cache-control"]) == (200, {"new": True}, "no-store")
    assert "set-cookie" not in got.headers
    got = await program(questions, idempotency_key="again")
    assert (got.status, json.loads(got.text)) == (200, {"new": False})
    assert (await program(questions)).status == 200
    assert questions.changed == [
        ("jobs.signal", {"id": JOB.bytes, "name": "a/b c", "payload": '{"n": 1.50}', "key": "evt 1"}, "app"),
        ("jobs.signal", {"id": JOB.bytes, "name": "paid", "payload": "null", "key": "again"}, "ann"),
        ("jobs.signal", {"id": JOB.bytes, "name": "paid", "payload": "null", "key": None}, "ann"),
    ]


async def test_what_a_program_is_told() -> None:
    questions = told()
    for error, status in (
        (NotFoundError("there is no job"), 404),
        (ConflictError("it is COMPLETED"), 409),
        (BadRequestError("the payload has too many bytes"), 400),
        (UnavailableError("the database is away"), 503),
    ):
        questions.replies["jobs.signal"] = refusing(error)
        got = await program(questions)
        assert (got.status, json.loads(got.text)) == (status, {"error": error.message})
    del questions.replies["jobs.signal"]  # nobody answers
    assert (await program(questions)).status == 503
    assert (await program(questions, of="x")).status == 404
    questions.changed.clear()
    got = await program(questions, user="vic")
    assert (got.status, "needs the role client" in got.text, questions.changed) == (403, True, [])
