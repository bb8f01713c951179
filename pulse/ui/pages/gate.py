"""The gate: what is paused, who did that and until when; pausing and resuming, of everything or of a topic."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from pulse.errors import PulseError
from pulse.protocol import answers
from pulse.ui.auth.sessions import UndoStep
from pulse.ui.data.filters import seconds
from pulse.ui.pages.common import ask, back, change, field, say_next, standing_of, trouble
from pulse.ui.rendering import page
from pulse.ui.site import FORM
from pulse.ui.view.formatting import foreign


async def show(request: Request) -> Response:
    """What is paused."""
    try:
        gate = answers.read(answers.Gate, await ask(request, "dispatch.status"))
    except PulseError as error:
        last = (await standing_of(request)).status.gate
        return await trouble(request, error, "gate.html", gate=last)
    return await page(request, "gate.html", {"gate": gate})


async def pause(request: Request) -> Response:
    """Close the gate, of a topic or of all."""
    topic = _topic(request)
    try:
        for_s = None if (text := field(request, "for")) is None else seconds("for", text)
    except PulseError as error:
        say_next(request, error.message, is_error=True)
        return back(request, "/gate")
    given = {"reason": field(request, "reason"), "for_s": for_s}
    body = {"topic": topic, **{key: value for key, value in given.items() if value is not None}}
    undo: Sequence[UndoStep] = [UndoStep("dispatch.resume", {"topic": topic})]
    await change(request, "dispatch.pause", body, f"{_who(topic)} paused: no more jobs start.", ("Undo: resume", undo))
    return back(request, "/gate")


async def resume(request: Request) -> Response:
    """Open it again."""
    topic = _topic(request)
    undo = [UndoStep("dispatch.pause", {"topic": topic})]
    await change(request, "dispatch.resume", {"topic": topic}, f"{_who(topic)} resumed.", ("Undo: pause", undo))
    return back(request, "/gate")


def _topic(request: Request) -> str:
    """Not stripped: a topic may begin with a space."""
    return str(request.scope[FORM].get("topic", [""])[0])


def _who(topic: str) -> str:
    return f"Topic “{foreign(topic, 80)}” is" if topic else "Everything is"
