"""What `pulse doctor` makes of the answers of a running system, and how it shows a finding."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from pulse.cli.admin.doctor import RunningSystem, _ask_running, _is_embedded, _of_database, _told
from pulse.cli.system.status_page import finding_lines
from pulse.config import Settings
from pulse.ops.doctor.finding import Finding, State
from pulse.protocol.answers import StatusAnswer, read

STATE_DIR = Path("/var/lib/pulse")


def running(**answer: object) -> RunningSystem:
    return RunningSystem(read(StatusAnswer, answer), {})


def test_without_a_runtime_directory_nobody_is_asked() -> None:
    nobody = "there is no runtime directory"
    assert _ask_running(None).silent == {"supervisor": nobody, "dispatcher": nobody}


@pytest.mark.parametrize(("answer", "state", "text"), [
    ({}, State.SKIPPED, "the dispatcher did not answer"),
    ({"findings": []}, State.OK, "the database carries out what the server asks for"),
    ({"findings": [{"id": "memory"}]}, State.OK, "the database carries out what the server asks for"),
    (
        {"findings": [{"id": "statements", "severity": "wrong", "text": "it refuses claim_jobs"}]},
        State.WRONG,
        "it refuses claim_jobs",
    ),
])  # fmt: skip
def test_statements_are_what_the_server_says(answer: dict[str, Any], state: State, text: str) -> None:
    found = _told(running(**answer), "statements")
    assert (found.state, found.text) == (state, text)


def test_a_database_that_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its DSN, or asyncpg, what the dispatcher has found counts: `status` says the same."""
    answer = {"findings": [{"id": "topics", "severity": "wrong", "text": "nobody serves it"}]}
    monkeypatch.delenv("PULSE_DSN", raising=False)
    nowhere = Settings(state_dir=STATE_DIR / "none")
    without_dsn = list(_of_database(nowhere, running(**answer), 60.0, 1.0))
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    monkeypatch.delitem(sys.modules, "pulse.store.admin.doctor", raising=False)
    for first, *others in (without_dsn, list(_of_database(nowhere, running(**answer), 60.0, 1.0))):
        assert (first.check, first.state) == ("database", State.SKIPPED)
        assert [(one.check, one.text) for one in others if one.state is State.WRONG] == [("topics", "nobody serves it")]


def test_a_module_that_no_extra_brings_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pulse.store.admin.doctor", None)
    with pytest.raises(ModuleNotFoundError, match=r"pulse\.store\.admin\.doctor"):
        list(_of_database(Settings(), running(), 60.0, 1.0))


@pytest.mark.parametrize(("named", "told", "is_embedded"), [
    ("postgresql:///x", None, False),
    (None, None, True),
    (None, "", True),
    (None, f"postgresql:///postgres?host={STATE_DIR}/postgres", True),
    (None, "postgresql:///postgres?host=%2Fsrv%2Fpostgres", True),
    (None, "postgresql://db.example/shop", False),
])  # fmt: skip
def test_whose_database_it_is(named: str | None, told: str | None, is_embedded: bool) -> None:
    answer = {} if told is None else {"database": {"dsn": told}}
    assert _is_embedded(Settings(dsn=named), running(**answer), STATE_DIR) is is_embedded


@pytest.mark.parametrize(("state", "details", "shown"), [
    (State.OK, (), ["good"]), (State.SKIPPED, (), ["good"]), (State.OK, ("more",), ["good", "more", "-> do it"]),
    (State.WRONG, (), ["good", "-> do it"]),
])  # fmt: skip
def test_advice_is_for_what_is_wrong(state: State, details: tuple[str, ...], shown: list[str]) -> None:
    lines = list(finding_lines(Finding("x", state, "good", details=details, advice=("do it",))))
    assert ["".join(cell.text for cell in line[1:]).removeprefix("x: ") for line in lines] == shown
