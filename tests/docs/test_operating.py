"""``docs/operations.md`` and ``docs/operating.md`` held against the code: settings, limits, events, checks."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Final

import msgspec
import pytest

from pulse.config import Settings
from pulse.ops.doctor.checks import CHECKS
from pulse.worker import service
from pulse.worker.pool import parent
from pulse_actors.dispatcher.diagnosis import why, why_limits, why_running
from pulse_actors.runtime import actor
from pulse_supervisor.children import lifecycle
from tests.support.checking.logcalls import LogCall, log_calls
from tests.support.checking.markdown import DOCS, Row, section, table

PAGE: Final = (DOCS / "operations.md").read_text("utf-8")
ROOT: Final = DOCS.parent
PRODUCT: Final = [ROOT / "pulse", ROOT / "actors" / "pulse_actors", ROOT / "supervisor" / "pulse_supervisor"]
FIELDS: Final = {field.name: field for field in msgspec.structs.fields(Settings)}
NO_EFFECT: Final = "–"
FOUND_BEFORE_ANY_IS_READ: Final = "config"
COMPOSED: Final = {"child_*": [f"child_{phase.value}" for phase in lifecycle.ChildPhase]}
IN_TROUBLE: Final = {"child_waiting", "child_failed"}  # of the composed ones: they say why
_GATE: Final = ("paused", "reason", "paused_at", "paused_by", "paused_until", "topics", "changed")
SPREAD: Final = {  # fields that no call names, since they come as a mapping
    "dispatch_paused": _GATE,
    "gate_changed": _GATE,
    "handler_process_died": ("pid", "signal", "exit_code", "stack"),
    "spare_died": ("pid", "signal", "exit_code", "cause"),
    "template_died": ("pid", "signal", "exit_code", "cause"),
    "topics_left_out": ("topics", "schedules", "without_route"),
    "schedules_fired": ("held", "skipped", "replaced", "full", "passed", "passed_over"),
}


def _sources() -> list[Path]:
    return [path for folder in PRODUCT for path in folder.rglob("*.py")]


def _settings() -> list[Row]:
    return table(section(PAGE, "Settings"))


def _calls() -> list[LogCall]:
    return [call for folder in PRODUCT for call in log_calls(folder) if "demo" not in call.path.parts]


def test_settings_are_all_there_with_their_defaults() -> None:
    shown = {name: _shown(field.default) for name, field in FIELDS.items()}
    assert [(row["setting"], row["default"]) for row in _settings()] == list(shown.items())


def _shown(default: object) -> str:
    match default:
        case None:
            return ""
        case bool():
            return str(int(default))
        case float():
            return f"{default:g}"
        case _:
            return str(default)


def test_settings_without_effect_are_told_from_the_others() -> None:
    code = "".join(path.read_text("utf-8") for path in _sources() if path.name != "config.py")
    used = set(re.findall(r"\bsettings\.(\w+)\b", code)) | {FOUND_BEFORE_ANY_IS_READ}
    wrong = [row["setting"] for row in _settings() if (row["used by"] != NO_EFFECT) != (row["setting"] in used)]
    assert wrong == []


def test_limits_have_the_values_of_the_code() -> None:
    (limits,) = re.findall(r"(?:^\| limit .*\n)(?:^\|.*\n)+", PAGE, re.MULTILINE)
    rows = table(limits)
    assert len(rows) >= 10
    for row in rows:
        assert float(row["value"].split()[0]) == _value(row["in the code"]), row


def _value(path: str) -> float:
    owner, _, name = path.rpartition(".")
    module, _, kind = owner.rpartition(".")
    holder = getattr(importlib.import_module(module), kind)() if kind[0].isupper() else importlib.import_module(owner)
    value: float = getattr(holder, name)
    return value


def test_exit_codes_are_those_of_the_code() -> None:
    rows = {row["code"]: row for row in table(section(PAGE, "Exit codes"))}
    assert list(rows) == ["0", "1", "2", "3", "70", "78", "128 + n"]
    assert {lifecycle.EXIT_RESTART_LIMIT, parent.CRASH_LOOP, actor.EXIT_INTERNAL} == {70}
    assert (lifecycle.EXIT_REFUSED, parent.REFUSED) == (1, 1)
    assert (lifecycle.EXIT_CONFIG, lifecycle.CHILD_MEETS_POOLER) == (78, actor.EXIT_POOLER)
    assert {lifecycle.CHILD_REFUSES, actor.EXIT_REFUSED, service.REFUSED} == {78}
    assert "exits with 78" in PAGE


@pytest.mark.rest
def test_log_events_are_all_described_and_no_others() -> None:
    logged: set[str] = set()
    for call in _calls():
        if call.event is not None:
            logged.add(call.event)
        else:
            assert call.text in COMPOSED, call
            logged.update(COMPOSED[call.text])
    described = [row["event"] for row in table(section(PAGE, "Logs"))]
    assert sorted(described) == sorted(logged)


@pytest.mark.rest
def test_log_levels_are_those_of_the_calls() -> None:
    levels = {row["event"]: row["level"].split(", ") for row in table(section(PAGE, "Logs"))}
    for call in _calls():
        if call.event is not None and call.level != "?":
            assert call.level in levels[call.event], call


@pytest.mark.rest
def test_log_fields_are_those_of_the_calls() -> None:
    told: dict[str, set[str]] = {event: set(fields) for event, fields in SPREAD.items()}
    spread: set[str] = set()
    for call in _calls():
        if call.event is not None and call.spread:
            spread.add(call.event)
        if call.event is not None:
            told.setdefault(call.event, set()).update(call.fields)
    assert spread == {*SPREAD}
    for row in table(section(PAGE, "Logs")):
        event = row["event"]
        expected = told.get(event, {"name", "reason" if event in IN_TROUBLE else "pid"})
        assert {*row["fields"].split(", ")} - {""} == expected, event
        assert row["what it means"], row
        assert row["what to do"], row


def test_reasons_why_a_job_does_not_run_are_all_there() -> None:
    source = "".join(map(inspect.getsource, (why_running, why, why_limits)))
    told = set(re.findall(r'Cause\(\s*"(\w+)"', source))
    assert [row["code"] for row in table(section(PAGE, "A job does not run"))] == sorted(told, key=_place_of)


def _place_of(code: str) -> int:
    return PAGE.index(f"| `{code}` |")


def test_the_list_of_findings() -> None:
    """Each check is in the table of docs/operating.md, with its severity and what to do."""
    page = (DOCS / "operating.md").read_text("utf-8")
    rows = [
        f"| `{name}`{'' if one.everywhere else ' *'} | {one.title} | {one.worst.value} | {one.do} |"
        for name, one in CHECKS.items()
    ]
    assert [row for row in rows if row not in page.splitlines()] == []


def test_what_used_to_be_silent_has_tests() -> None:
    rows = table(section((DOCS / "operating.md").read_text("utf-8"), "What used to be silent"))
    assert [row[""] for row in rows] == [str(number) for number in range(1, 14)]
    for row in rows:
        named = re.findall(r"([\w/]+\.py)::(\w+)", row["held by"])
        assert named, row
        assert [name for path, name in named if f"def {name}(" not in (ROOT / "tests" / path).read_text("utf-8")] == []
