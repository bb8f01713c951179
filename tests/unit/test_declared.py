"""Schedules that code declares: what is sent of them, and what is refused before a server is asked."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

import pulse
from pulse import protocol
from pulse.errors import HandlerError


def test_what_is_declared() -> None:
    """A schedule has its key, its handler's name and its rules, in the words of the wire; one handler may have two."""
    app = pulse.App()

    @app.schedule("often", {"n": 1}, every_s=5, overlap="skip", jitter_s=1.5)
    @app.schedule("nightly", cron="30 2 * * *", timezone="Europe/Berlin", starts_at=datetime(2030, 1, 1, tzinfo=UTC))
    @app.handler("report")
    def report(n: int = 0) -> None:
        del n

    assert list(app.schedules) == ["nightly", "often"]
    sent = [msgspec.convert(one.body, protocol.ScheduleDeclared) for one in app.schedules.values()]
    nightly = protocol.ScheduleDeclared(
        "report", cron="30 2 * * *", timezone="Europe/Berlin", starts_at=1893456000.0, key="nightly"
    )
    often = protocol.ScheduleDeclared("report", every=5.0, args='{"n":1}', overlap="skip", jitter_s=1.5, key="often")
    assert sent == [nightly, often]
    assert callable(report)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({}, "give exactly one of cron, every_s, run_at, not none"),
        ({"cron": "@daily", "every_s": 5}, "give exactly one of cron, every_s, run_at, not cron, every_s"),
        ({"every_s": -5}, "every_s is -5; seconds are allowed, not negative"),
        ({"every_s": 5, "jitter_s": -0.5}, "jitter_s is -0.5; seconds are allowed, not negative"),
        ({"every_s": 5, "catch_up": "none"}, "catch_up is 'none'; allowed are skip, latest, all"),
        ({"every_s": 5, "overlap": "none"}, "overlap is 'none'; allowed are allow, skip, queue, cancel"),
        ({"every_s": 5, "often": 1}, "unknown option 'often'; allowed are catch_up, cron, ends_at"),
        ({"run_at": datetime(2030, 1, 1)}, "run_at has no time zone: 2030-01-01T00:00:00"),  # noqa: DTZ001
        ({"every_s": 5, "ends_at": "soon"}, "ends_at must be an aware datetime or Unix seconds, not 'soon'"),
    ],
)
def test_bad_rules(rules: dict[str, Any], message: str) -> None:
    """One line that names the schedule, the rule, the value and what is allowed."""
    app = pulse.App()
    app.handler("report")(report := lambda: None)
    with pytest.raises(HandlerError) as refused:
        app.schedule("key", **rules)(report)
    assert refused.value.message.startswith(f"schedule 'key': {message}")
    assert dict(app.schedules) == {}


def test_bad_keys_and_functions() -> None:
    """A key is text and there once; what is scheduled is a handler; its arguments are JSON."""
    app = pulse.App()
    app.handler("report")(report := lambda: None)
    app.schedule("key", every_s=1)(report)
    for key, function, args in (
        ("key", report, None),
        ("", report, None),
        ("k" * 201, report, None),
        ("b", print, None),
    ):
        with pytest.raises(HandlerError, match=r"^schedule|is not a handler"):
            app.schedule(key, args, every_s=1)(function)
    with pytest.raises(HandlerError, match="args are not JSON"):
        app.schedule("c", {"a": object()}, every_s=1)(report)
    assert list(app.schedules) == ["key"]
