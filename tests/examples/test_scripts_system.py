"""The scripts in examples: they do what they say, with a pool of examples/app.py."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.support.systems.system_kit import ROOT, Whole, run

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.patient, pytest.mark.rest]


@pytest.fixture(scope="module")
def env(whole: Whole) -> dict[str, str]:
    whole.pool(app="examples.app:app")
    return {**whole.env}


def done(name: str, env: dict[str, str]) -> list[str]:
    made = run(f"examples.{name}", [], env, within_s=60)
    assert made.returncode == 0, made
    return made.stdout.splitlines()


def test_the_producer(env: dict[str, str]) -> None:
    first, second = done("producer", env)
    assert hashlib.sha256(Path(ROOT, "examples/producer.py").read_bytes()).hexdigest() in first
    assert second.startswith("count-down: COMPLETED attempt 1 of ")


def test_the_pause(env: dict[str, str]) -> None:
    gate, paused, resumed = done("pause", env)
    assert "the disk is being exchanged" in gate
    assert (paused, resumed) == ("paused: PENDING", "resumed: COMPLETED")


def test_the_schedules(env: dict[str, str]) -> None:
    said = done("schedules", env)
    assert len(said) == 4
    assert said[-1].startswith("fired: report for 20")
