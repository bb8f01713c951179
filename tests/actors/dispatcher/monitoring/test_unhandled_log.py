"""What is logged of jobs without a handler: each name at once, then once a minute with how many came back."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from pulse.store.rows import Claim
from pulse_actors.dispatcher.monitoring import unhandled_log
from pulse_actors.dispatcher.monitoring.unhandled_log import EVERY_S, UnhandledLog
from pulse_actors.dispatcher.workers.registry import WorkerRegistry
from tests.support.store.helpers import TOPIC
from tests.support.store.recovery_kit import new_worker


def claims(name: str, count: int = 1, topic: str = "mail") -> list[Claim]:
    return [Claim(bytes(16), 1, name, topic, "{}", None, 0, 0.0, 0, 0)] * count


def logged(noted: UnhandledLog, now_s: float, *what: Claim) -> list[tuple[str, str, int]]:
    with capture_logs() as lines:
        noted.note(what, now_s)
    assert all(line["event"] == "job_unhandled" and line["log_level"] == "warning" for line in lines)
    return [(line["topic"], line["name"], line["times"]) for line in lines]


def test_each_name_at_once_then_once_a_minute() -> None:
    noted = UnhandledLog(WorkerRegistry())
    assert logged(noted, 0.0, *claims("a", 3), *claims("b"), *claims("a", 1, "other")) == [
        ("mail", "a", 3), ("mail", "b", 1), ("other", "a", 1),
    ]  # fmt: skip
    assert logged(noted, EVERY_S - 1.0, *claims("a", 2)) == []
    assert logged(noted, EVERY_S, *claims("a")) == [("mail", "a", 3)]
    assert logged(noted, EVERY_S + 1.0, *claims("a")) == []


def test_names_that_are_remembered_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unhandled_log, "MOST_NAMES", 2)
    noted = UnhandledLog(WorkerRegistry())
    logged(noted, 0.0, *claims("a"), *claims("b"))
    logged(noted, 1.0, *claims("a"))
    logged(noted, 2.0, *claims("c"))
    assert logged(noted, 3.0, *claims("b"), *claims("a")) == [("mail", "a", 1)]


def test_handlers_with_a_similar_name() -> None:
    registry = WorkerRegistry()
    registry.join(new_worker("w"))
    with capture_logs() as lines:
        UnhandledLog(registry).note([*claims("nn", topic=TOPIC), *claims("nn", topic="other")], 0.0)
    assert [line["similar"] for line in lines] == [["n"], []]
