"""What the pages share: reading forms, carrying out a button's action, and going back with a message."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any
from uuid import UUID

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pulse.errors import ForbiddenError, NobodyAnswersError, NotFoundError, PulseError, UnavailableError
from pulse.protocol import answers
from pulse.protocol.roles import ACCESS_OF, CONTENTS, refusal
from pulse.security.conceal import conceal, is_about_contents
from pulse.ui.auth.rules import own_path
from pulse.ui.auth.sessions import BrowserSession, Flash, Undo, UndoStep
from pulse.ui.data.poller import SystemSnapshot
from pulse.ui.data.queries import ANSWER_S, CHANGE_S
from pulse.ui.rendering import page
from pulse.ui.site import BEGAN, FORM, OLD, SESSION, Site

_STATUS_OF = {
    "bad_request": HTTPStatus.UNPROCESSABLE_ENTITY,
    "not_found": HTTPStatus.NOT_FOUND,
    "conflict": HTTPStatus.CONFLICT,
    "invalid_transition": HTTPStatus.CONFLICT,
    "unavailable": HTTPStatus.SERVICE_UNAVAILABLE,
}


def site_of(request: Request) -> Site:
    """What all pages share."""
    site: Site = request.app.state.site
    return site


async def standing_of(request: Request) -> SystemSnapshot:
    """The newest snapshot of the system."""
    return await site_of(request).standing(request.scope[BEGAN])


def session_of(request: Request) -> BrowserSession:
    """The session of the request; the guard has checked it."""
    session: BrowserSession = request.scope[SESSION]
    return session


def field(request: Request, name: str) -> str | None:
    """The value of a field of the form, None where it is empty."""
    form: Mapping[str, list[str]] = request.scope[FORM]
    value = next(iter(form.get(name, [])), "").strip()
    return value or None


def id_of(text: str) -> bytes:
    """
    The id in a path or form.

    Raises:
        NotFoundError: It is none, so nothing can be there.
    """
    try:
        return UUID(text).bytes
    except ValueError:
        raise NotFoundError(f"{text!r:.80} is no id: a UUID is allowed") from None


async def trouble(request: Request, error: PulseError, template: str = "trouble.html", **context: Any) -> Response:
    """The page that says what went wrong, with the code that belongs to it."""
    return await page(request, template, context, error=error, status=status_of(error))


def status_of(error: PulseError) -> HTTPStatus:
    """The code of a page that says what went wrong."""
    return _STATUS_OF.get(error.code, HTTPStatus.BAD_GATEWAY)


def say_next(request: Request, text: str, undo: Undo | None = None, *, is_error: bool = False) -> None:
    """Let the next page say this."""
    session_of(request).show_next(Flash(text, is_error), undo)


def back(request: Request, otherwise: str) -> Response:
    """To the page that the form names, else to *otherwise*."""
    return RedirectResponse(own_path(field(request, "next"), otherwise), HTTPStatus.SEE_OTHER)


async def found_pages(request: Request, body: Mapping[str, object]) -> AsyncIterator[answers.JobPageAnswer]:
    """Pages of jobs, until the last one or until the time of this page is over: one may be short, or empty."""
    began_s, after = time.monotonic(), None
    while (left_s := ANSWER_S - (time.monotonic() - began_s)) > 0:
        asked = body if after is None else {**body, "after": after}
        try:
            found = answers.read(answers.JobPageAnswer, await ask_now(request, "jobs.list", asked, within_s=left_s))
        except NobodyAnswersError:
            if after is None:
                raise
            return
        yield found
        after = found.next
        if after is None:
            return


async def ask_now(
    request: Request, kind: str, body: Mapping[str, object] | None = None, *, within_s: float = ANSWER_S
) -> Mapping[str, object]:
    """Ask the dispatcher, as far as the user may know."""
    permit(request, kind)
    answer = await site_of(request).questions.ask(kind, body, within_s=within_s)
    return _visible(request, kind, answer)


async def ask(
    request: Request, kind: str, body: Mapping[str, object] | None = None, *, within_s: float = ANSWER_S
) -> Mapping[str, object]:
    """The same for a page that only shows: while the dispatcher is silent it has the last answer, and says so."""
    try:
        return await ask_now(request, kind, body, within_s=within_s)
    except (NobodyAnswersError, UnavailableError):
        last = site_of(request).questions.last(kind, body)
        if last is None:
            raise
    age_s, answer = last
    note_old(request, time.time() - age_s)
    return _visible(request, kind, answer)


def _visible(request: Request, kind: str, answer: Mapping[str, object]) -> Mapping[str, object]:
    sees = CONTENTS in session_of(request).rights or not is_about_contents(kind)
    return answer if sees else conceal(answer)


def note_old(request: Request, at_s: float) -> None:
    """Let the page say that what it shows is of then."""
    request.scope[OLD] = min(at_s, request.scope.get(OLD, at_s))


def last_counted(request: Request, standing: SystemSnapshot) -> SystemSnapshot:
    """*standing*, or the newest one in which the jobs were counted: then the page says so."""
    counted = standing.counted
    if counted is None or counted is standing:
        return standing
    note_old(request, counted.at_s)
    return counted


def permit(request: Request, kind: str) -> None:
    """
    Refuse what takes a role that the user does not have.

    Raises:
        ForbiddenError: It does.
    """
    session = session_of(request)
    if ACCESS_OF[kind] not in session.rights:
        raise ForbiddenError(refusal(kind, ACCESS_OF[kind], session.user, session.rights))


async def do(
    request: Request, kind: str, body: Mapping[str, object], *, within_s: float = CHANGE_S
) -> dict[str, object]:
    """Let the dispatcher do something, for the user."""
    permit(request, kind)
    return await site_of(request).questions.change(kind, body, behalf=session_of(request).user, within_s=within_s)


async def change(
    request: Request,
    kind: str,
    body: Mapping[str, object],
    done: str,
    undo: tuple[str, Sequence[UndoStep]] | None = None,
) -> dict[str, object] | None:
    """
    Do what a button says, and let the next page tell how it went.

    Args:
        request: Whose.
        kind: What is asked of the dispatcher.
        body: Its body.
        done: What is said when it is done.
        undo: What takes it back, and what that is called.

    Returns:
        The answer; None when it failed.
    """
    site = site_of(request)
    try:
        answer = await do(request, kind, body)
    except PulseError as error:
        say_next(request, error.message, is_error=True)
        return None
    finally:
        site.changed()
    say_next(request, done, None if undo is None else Undo(undo[0], undo[1]))
    return answer
