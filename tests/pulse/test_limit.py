"""Policies of limits as SDK and apps check them: what is refused, and that it is what the server refuses."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import pulse
from pulse import protocol
from pulse.client import control_requests
from pulse.errors import BadRequestError, HandlerError
from pulse.limit import LIMIT_OPTIONS, problem_of

FULL: dict[str, Any] = {
    "concurrency": 0, "rate": 1e-6, "burst": 1_000_000, "group_concurrency": 1, "group_rate": 1e6, "group_burst": 1,
    "sequence": "halt",
}  # fmt: skip
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tries": 3}, f'unknown option "tries" of limit "api"; allowed are {", ".join(LIMIT_OPTIONS)}'),
    ({"concurrency": -1}, 'concurrency of limit "api" is -1; a whole number from 0 to 1000000 is allowed'),
    ({"concurrency": 1_000_001}, 'concurrency of limit "api" is 1000001; a whole number from 0 to 1000000 is allowed'),
    ({"group_concurrency": True}, 'group_concurrency of limit "api" is True; a whole number from 0 to 1000000 is'),
    ({"burst": 0, "rate": 1}, 'burst of limit "api" is 0; a whole number from 1 to 1000000 is allowed'),
    ({"group_burst": 1.5}, 'group_burst of limit "api" is 1.5; a whole number from 1 to 1000000 is allowed'),
    ({"rate": 0.9e-6}, 'rate of limit "api" is 9e-07; starts per second from 0.000001 to 1000000 are allowed'),
    ({"group_rate": 1.1e6}, 'group_rate of limit "api" is 1100000.0; starts per second from 0.000001 to 1000000'),
    ({"rate": float("nan")}, 'rate of limit "api" is nan; starts per second from 0.000001 to 1000000 are allowed'),
    ({"rate": True}, 'rate of limit "api" is True; starts per second from 0.000001 to 1000000 are allowed'),
    ({"sequence": "stop"}, "sequence of limit \"api\" is 'stop'; continue or halt is allowed"),
]


@pytest.mark.parametrize(("policy", "said"), REFUSED)
def test_what_is_refused(policy: dict[str, Any], said: str) -> None:
    """One line with the option, the value and what is allowed: before anything is sent, and where code declares it."""
    with pytest.raises(BadRequestError) as caught:
        control_requests.set_limit("api", None, policy)  # type: ignore[arg-type]
    assert caught.value.message.startswith(said)
    app = pulse.App()
    with pytest.raises(HandlerError) as declared:
        app.limit("api", **policy)
    assert declared.value.message == caught.value.message
    assert dict(app.limits) == {}


@pytest.mark.parametrize(("name", "group", "policy", "said"), [
    ("", None, {}, "the name of a limit is ''; 1 to 200 characters are allowed"),
    ("x" * 201, None, {}, f"the name of a limit is '{'x' * 59}; 1 to 200 characters are allowed"),
    (5, None, {}, "the name of a limit is 5; 1 to 200 characters are allowed"),
    ("api", "", {}, "the group of limit \"api\" is ''; 1 to 200 characters are allowed, but not * alone"),
    ("api", "*", {}, "the group of limit \"api\" is '*'; 1 to 200 characters are allowed, but not * alone"),
    ("api", "g", {"sequence": "halt"}, ('unknown option "sequence" of group "g" of limit "api"; allowed are '
                                       "concurrency, rate, burst")),
    ("api", "g", {"burst": 0}, 'burst of group "g" of limit "api" is 0; a whole number from 1 to 1000000 is allowed'),
])  # fmt: skip
def test_names_and_groups(name: Any, group: str | None, policy: dict[str, Any], said: str) -> None:
    assert problem_of(name, policy, group) == said


def test_all_that_is_allowed() -> None:
    """None unsets an option; what is not given is not sent, so it stays."""
    for policy in (FULL, dict.fromkeys(LIMIT_OPTIONS), {}):
        assert problem_of("*" * 200, policy) is None
    assert problem_of("api", {"concurrency": 1_000_000, "rate": 1}, "g" * 200) is None
    sent: Any = control_requests.set_limit("api", None, {"rate": None, "concurrency": 5}).body
    assert msgspec.convert(sent, protocol.LimitSet).policy == {"rate": None, "concurrency": 5}


def test_an_app_declares_limits() -> None:
    app = pulse.App()
    app.limit("api", concurrency=50, rate=100, burst=10, sequence="continue", group_concurrency=1)
    app.limit("mail", group_rate=0.5, group_burst=2)
    assert {name: dict(policy) for name, policy in app.limits.items()} == {
        "api": {"concurrency": 50, "rate": 100, "burst": 10, "sequence": "continue", "group_concurrency": 1},
        "mail": {"group_rate": 0.5, "group_burst": 2},
    }


@pytest.mark.parametrize(("policy", "said"), [
    ({}, f'limit "api" has no option; one or more of {", ".join(LIMIT_OPTIONS)} are needed'),
    ({"rate": None}, 'limit "api" has no option; one or more of'),
    ({"burst": 5}, 'limit "api" has burst without rate; it is allowed together with that'),
    ({"rate": 1, "group_burst": 5}, 'limit "api" has group_burst without group_rate; it is allowed together with that'),
    ({"sequence": "halt", "group_concurrency": 2}, ('limit "api" has a sequence, and group_concurrency 2; 1 at most is '
                                                   "allowed then")),
])  # fmt: skip
def test_what_is_declared_is_all_there_is(policy: dict[str, Any], said: str) -> None:
    with pytest.raises(HandlerError) as caught:
        pulse.App().limit("api", **policy)
    assert caught.value.message.startswith(said)


def test_a_limit_is_declared_once() -> None:
    app = pulse.App()
    app.limit("api", concurrency=5)
    with pytest.raises(HandlerError, match=r'^limit "api" is declared twice$'):
        app.limit("api", concurrency=6)
    assert app.limits == {"api": {"concurrency": 5}}
