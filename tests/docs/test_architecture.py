"""``docs/architecture.md`` held against the code: what it names exists, and a job passes what it says."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

import pytest

from tests.docs.way import (
    AFTERWARDS,
    AT_ONCE,
    HELPERS,
    LATER,
    MAX_HELPERS,
    MAX_STATIONS,
    PAGE,
    Stop,
    Way,
    faults_of,
    measure,
    parts_of,
    purpose_of,
    said_on,
    shown_on,
)
from tests.support.checking.every import every
from tests.support.checking.markdown import blocks, section
from tests.support.servers.postgres import Postgres
from tests.support.systems.system_kit import ROOT

TEXT: Final = PAGE.read_text("utf-8")
HOMES: Final = (ROOT, ROOT / "actors" / "pulse_actors")
MAX_LINES: Final = 250
_PATH: Final = re.compile(r"`([\w./]+/[\w.]*)(?:::([\w.]+))?`")
_WORD: Final = re.compile(r"\b(?:writes|claims|net)(?:/\w+)?")


def file_of(path: str) -> Path | None:
    return next((home / path for home in HOMES if (home / path).exists()), None)


def names_in(path: Path) -> set[str]:
    text = path.read_text("utf-8")
    if path.suffix == ".sql":
        return set(re.findall(r"^-- name: (\w+)", text, re.MULTILINE))
    return {name for node in ast.parse(text).body for name in _defined(node)}


def _defined(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return [node.name]
        case ast.ClassDef():
            return [node.name, *(f"{node.name}.{name}" for inner in node.body for name in _defined(inner))]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case ast.Assign():
            return [target.id for target in node.targets if isinstance(target, ast.Name)]
        case _:
            return []


def test_what_the_page_names_exists() -> None:
    def check(named: tuple[str, str]) -> None:
        path, name = named
        found = file_of(path)
        assert found is not None, "there is no such file"
        assert not name or name in names_in(found), f"it has no {name}"

    named = _PATH.findall(TEXT)
    assert len(named) > 100, "the page names little; or it is not read as it is written"
    every(named, check)


def test_what_the_drawing_names_exists() -> None:
    (drawing,) = blocks(section(TEXT, "The way of a job"), "text")
    named = _WORD.findall(drawing)
    assert len(named) > 3
    every(named, lambda word: _assert_is_part(str(word)))


def _assert_is_part(word: str) -> None:
    assert file_of(f"dispatcher/{word}") or file_of(f"dispatcher/{word}.py"), "there is no such part"


def test_the_table_says_what_the_packages_say() -> None:
    lines = parts_of(TEXT)[1].splitlines()
    every(shown_on(TEXT), lambda shown: _assert_told(lines, shown[0].path))
    assert len(TEXT.splitlines()) <= MAX_LINES


def _assert_told(lines: list[str], path: str) -> None:
    assert any(line.endswith(f"| {purpose_of(path)} |") for line in lines), "python -m tests.docs.way"


def test_the_way_is_short() -> None:
    shown = shown_on(TEXT)
    at_once, all_ = {stop.path for stop, waits in shown if not waits}, {stop.path for stop, _ in shown}
    assert said_on(TEXT) == (len(at_once), len(all_))
    assert len(all_) <= MAX_STATIONS
    assert all_.isdisjoint(HELPERS)
    assert len(HELPERS) <= MAX_HELPERS
    every(HELPERS.items(), _assert_is_helper)


def _assert_is_helper(helper: tuple[str, str]) -> None:
    path, reason = helper
    assert (ROOT / path).is_file(), "there is no such module"
    assert reason


def test_a_table_that_lies_is_found() -> None:
    shown = shown_on(TEXT)
    at_once, later = {stop for stop, waits in shown if not waits}, {stop for stop, _ in shown}
    (lost, *_), missing = at_once, Stop("client", "pulse/errors.py")
    calls = dict.fromkeys(AT_ONCE, at_once) | dict.fromkeys(LATER, later)
    assert faults_of(Way(calls, set()), TEXT) == []
    for wrong_at_once, wrong_later, path in (
        (at_once - {lost}, later, lost.path),
        (at_once, later | {missing}, missing.path),
    ):
        wrong = Way(dict.fromkeys(AT_ONCE, wrong_at_once) | dict.fromkeys(LATER, wrong_later), set())
        (fault,) = faults_of(wrong, TEXT)
        assert fault.startswith(path)
    (fault,) = faults_of(
        Way(calls, set()), TEXT.replace("writes/submit.py` | dispatcher |", "writes/submit.py` | dispatcher, later |")
    )
    assert fault.startswith("actors/pulse_actors/dispatcher/writes/submit.py")


@pytest.mark.process
@pytest.mark.postgres
@pytest.mark.system
@pytest.mark.rest
def test_a_job_passes_what_the_page_says(newest_server: Postgres) -> None:
    """From submit to COMPLETED, the modules of the table are called, and the functions that the walk names."""
    with newest_server.database() as dsn:
        way = measure(dsn)
    assert faults_of(way, TEXT) == [], "python -m tests.docs.way"
    assert AFTERWARDS.keys() <= {stop.path for stop in way.ever(AT_ONCE)}, "a module is left out that nothing calls"
    assert way.helpers() == HELPERS.keys(), "a helper that no job calls"
    called = {(path, name) for path, name in way.functions}
    walk = section(TEXT, "The way of a job").partition("### ")[0]

    def check(named: tuple[str, str]) -> None:
        path, name = named
        found = file_of(path)
        assert found is not None
        whole = found.relative_to(ROOT).as_posix()
        assert any(one == whole and (f"{of}.").startswith(f"{name}.") for one, of in called), "no job calls it"

    named = [(path, name) for path, name in _PATH.findall(walk) if name]
    assert len(named) > 15
    every(named, check)
