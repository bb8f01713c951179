"""Limits of jobs: what is taken, the policies, and what differs for single groups, which can be changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pulse.errors import BadRequestError, PulseError
from pulse.limit import GROUP_OPTIONS, LIMIT_OPTIONS
from pulse.protocol.answers import read
from pulse.protocol.limits import LimitInfo, LimitPageAnswer
from pulse.ui.auth.sessions import UndoStep
from pulse.ui.pages.common import ask, ask_now, change, field, say_next, trouble
from pulse.ui.rendering import page

_PAGE: Final = 200
_MOST_GROUPS: Final = 1000  # of one limit: all that differ come back with an undo
HELP: Final[Mapping[str, str]] = {
    "concurrency": "most jobs that run at once; 0: none starts",
    "rate": "starts per second",
    "burst": "how many may start together; without it those of a second",
    "group_concurrency": "most jobs of each group that run at once",
    "group_rate": "starts per second of each group",
    "group_burst": "how many of each group may start together",
    "sequence": "jobs of each group run one by one; at a dead letter they go on (continue) or stop (halt)",
}


async def listing(request: Request) -> Response:
    """All limits, each with the groups of which something differs."""
    after = request.query_params.get("after")
    place = {} if after is None else {"after": after}
    try:
        found = read(LimitPageAnswer, await ask(request, "limits.list", {"limit": _PAGE, **place}))
    except PulseError as error:
        return await trouble(request, error, "limits.html", rows=[], next=None)
    follow = None if found.next is None else f"/limits?{urlencode({'after': found.next})}"
    return await page(request, "limits.html", {"rows": found.limits, "next": follow})


async def show(request: Request) -> Response:
    """One limit, or what differs for one group: also one that is not there yet."""
    name, group = request.query_params.get("name", "").strip(), request.query_params.get("group", "").strip() or None
    if not name:
        return RedirectResponse("/limits", HTTPStatus.SEE_OTHER)
    try:
        rows = await _rows(request, name)
    except PulseError as error:
        return await trouble(request, error)
    found = _of(rows, group)
    limit = found or LimitInfo(name=name, group_key=group)
    allowed = LIMIT_OPTIONS if group is None else GROUP_OPTIONS
    context = {
        "limit": limit,
        "is_new": found is None,
        "options": [(option, getattr(limit, option), HELP[option]) for option in allowed],
        "groups": [row for row in rows if row.group_key is not None] if group is None else [],
    }
    return await page(request, "limit.html", context)


async def save(request: Request) -> Response:
    """Set what was typed, unset what was emptied; what is unchanged is left alone."""
    name, group = field(request, "name") or "", field(request, "group")
    here = _address(name, group)
    allowed = LIMIT_OPTIONS if group is None else GROUP_OPTIONS
    try:
        before = _of(await _rows(request, name), group)
        own = LimitInfo() if before is None else before
        wanted = {option: _value(option, field(request, option)) for option in allowed}
    except PulseError as error:
        say_next(request, error.message, is_error=True)
        return RedirectResponse(here, HTTPStatus.SEE_OTHER)
    policy = {option: value for option, value in wanted.items() if value != getattr(own, option)}
    if not policy:
        say_next(request, "Nothing was changed: all values are the same.")
        return RedirectResponse(here, HTTPStatus.SEE_OTHER)
    undo = UndoStep("limits.unset", _body(name, group))
    if before is not None:
        undo = UndoStep("limits.set", _body(name, group, {option: getattr(own, option) for option in policy}))
    said = ", ".join(f"{option} {'unset' if value is None else value}" for option, value in policy.items())
    body = _body(name, group, policy)
    await change(request, "limits.set", body, f"{_who(name, group)}: {said}.", ("Undo", [undo]))
    return RedirectResponse(here, HTTPStatus.SEE_OTHER)


async def unset(request: Request) -> Response:
    """Remove a limit with all that differs for groups, or what differs for one; an undo sets all of it again."""
    name, group = field(request, "name") or "", field(request, "group")
    try:
        rows = await _rows(request, name)
    except PulseError as error:
        say_next(request, error.message, is_error=True)
        return RedirectResponse("/limits", HTTPStatus.SEE_OTHER)
    gone = [row for row in rows if group in (None, row.group_key)]
    steps = [UndoStep("limits.set", _body(name, row.group_key, _policy_of(row))) for row in gone]
    done = f"{_who(name, group)} is unset."
    await change(request, "limits.unset", _body(name, group), done, ("Undo", steps))
    return RedirectResponse("/limits" if group is None else _address(name, None), HTTPStatus.SEE_OTHER)


async def _rows(request: Request, name: str) -> list[LimitInfo]:
    body = {"name": name, "limit": _MOST_GROUPS}
    return read(LimitPageAnswer, await ask_now(request, "limits.list", body)).limits


def _of(rows: Sequence[LimitInfo], group: str | None) -> LimitInfo | None:
    return next((row for row in rows if row.group_key == group), None)


def _policy_of(row: LimitInfo) -> dict[str, object]:
    """All that it takes to make it again: a limit without any option has one that is unset."""
    given = {option: value for option in LIMIT_OPTIONS if (value := getattr(row, option)) is not None}
    return given or {"concurrency": None}


def _body(name: str, group: str | None, policy: Mapping[str, object] | None = None) -> dict[str, object]:
    body: dict[str, object] = {"name": name} if group is None else {"name": name, "group_key": group}
    return body if policy is None else {**body, "policy": policy}


def _address(name: str, group: str | None) -> str:
    return f"/limits/view?{urlencode({'name': name} if group is None else {'name': name, 'group': group})}"


def _who(name: str, group: str | None) -> str:
    return f"Limit “{name}”" if group is None else f"Group “{group}” of limit “{name}”"


def _value(option: str, text: str | None) -> int | float | str | None:
    if text is None or option == "sequence":
        return text
    is_rate = option.endswith("rate")
    try:
        return float(text) if is_rate else int(text)
    except ValueError:
        what = "a number of starts per second" if is_rate else "a whole number"
        raise BadRequestError(f"{option} is {text!r:.60}: {what} is allowed") from None
