"""Signals to a job: the page that sends one, and the answer to programs that send one."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final
from uuid import UUID, uuid4

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from pulse.errors import PulseError
from pulse.ops.json_input import decoded_payload
from pulse.protocol import answers
from pulse.protocol.answers import JobInfo
from pulse.protocol.workflows import SignalAnswer
from pulse.ui.pages.common import ask, do, field, id_of, say_next, site_of, status_of, trouble
from pulse.ui.rendering import page
from pulse.ui.site import BODY, FORM
from pulse.ui.view.formatting import foreign

# A program repeats its request after 503, where the server is away, and after none of these.
_STATUS_OF: Final = {
    "bad_request": HTTPStatus.BAD_REQUEST,
    "forbidden": HTTPStatus.FORBIDDEN,
    "not_found": HTTPStatus.NOT_FOUND,
    "conflict": HTTPStatus.CONFLICT,
}


async def form(request: Request) -> Response:
    """The form, with the name of the signal that the job waits for."""
    try:
        key = id_of(request.path_params["id"])
        found = answers.read(JobInfo, answers.part(await ask(request, "jobs.get", {"id": key}), "job"))
    except PulseError as error:
        return await trouble(request, error)
    given = {"name": found.awaited_signal or "", "payload": "", "key": str(uuid4())}
    return await page(request, "signal.html", {"id": str(UUID(bytes=key)), "given": given, "wrong": None})


async def send(request: Request) -> Response:
    """Send it; the key is of the form: what is posted twice is sent once."""
    given = {name: request.scope[FORM].get(name, [""])[0] for name in ("name", "payload")}
    given["key"] = field(request, "key") or str(uuid4())
    text = request.path_params["id"]
    try:
        body = {"id": id_of(text), **given, "payload": _payload(given["payload"].encode())}
        await do(request, "jobs.signal", body)
    except PulseError as error:
        context = {"id": text, "given": given, "wrong": error.message}
        return await page(request, "signal.html", context, status=status_of(error))
    finally:
        site_of(request).changed()
    say_next(request, f"Signal “{foreign(given['name'], 80)}” is sent.")
    return RedirectResponse(f"/jobs/{text}", HTTPStatus.SEE_OTHER)


async def hook(request: Request) -> Response:
    """The same for a program: the body is the payload, the header Idempotency-Key the key."""
    try:
        body = {
            "id": id_of(request.path_params["id"]),
            "name": request.path_params["name"],
            "payload": _payload(request.scope[BODY]),
            "key": request.headers.get("idempotency-key"),
        }
        sent = answers.read(SignalAnswer, await do(request, "jobs.signal", body))
    except PulseError as error:
        status = _STATUS_OF.get(error.code, HTTPStatus.SERVICE_UNAVAILABLE)
        return JSONResponse({"error": error.message}, status)
    return JSONResponse({"new": sent.new})


def _payload(text: bytes) -> str:
    """The payload that it is; nothing at all is null."""
    return decoded_payload(text.strip() or b"null")
