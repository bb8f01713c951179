"""``docs/state-machine.md`` held against the table of transitions, the statements and the texts in the code."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Final

import pytest

from pulse.job import TERMINAL, TRANSITIONS, Status
from pulse.store.statements import STATEMENTS
from tests.support.checking.markdown import DOCS, blocks, section, table

PAGE: Final = (DOCS / "state-machine.md").read_text("utf-8")
ROOT: Final = DOCS.parent
EDGE: Final = re.compile(r"^ *(\S+) --> (\S+): .+$", re.MULTILINE)
SCHEMA: Final = (ROOT / "schema.sql").read_text("utf-8")


@pytest.mark.parametrize("page", ["state-machine.md", "concepts.md"])
def test_diagram_draws_exactly_the_transitions(page: str) -> None:
    (diagram,) = blocks((DOCS / page).read_text("utf-8"), "mermaid")
    legal = {(source.value, target.value) for source, targets in TRANSITIONS.items() for target in targets}
    drawn = EDGE.findall(diagram)
    assert set(drawn) == legal | {("[*]", "PENDING"), ("[*]", "RUNNING")}
    assert len(drawn) == len(set(drawn))


def test_statuses_are_all_described() -> None:
    assert [row["status"] for row in table(section(PAGE, "Statuses"))] == [
        status.value for status in (Status.PENDING, Status.RUNNING, Status.RETRYING, *_terminal())
    ]
    assert f"{', '.join(_terminal()[:-1])} or {_terminal()[-1]}" in " ".join(PAGE.split())


def _terminal() -> list[Status]:
    return [status for status in (Status.COMPLETED, Status.DEAD_LETTERED, Status.CANCELED) if status in TERMINAL]


def test_moves_are_those_of_the_statements() -> None:
    moved = defaultdict[str, set[tuple[str, str]]](set)
    for row in table(section(PAGE, "Moves")):
        moved[row["statement"]] |= {(source, target) for source in _words(row["from"]) for target in _words(row["to"])}
    expected = {name: set(statement.moves) - {("RUNNING", "RUNNING")} for name, statement in STATEMENTS.items()}
    assert moved == {name: moves for name, moves in expected.items() if moves}


def test_outcomes_are_ones_that_the_history_takes() -> None:
    rows = table(section(PAGE, "How an attempt ends"))
    outcomes = [row["outcome"] for row in rows if row["outcome"] != "ok"]
    check = re.search(r"outcome IN \((.+?)\)", SCHEMA, re.DOTALL)
    assert check is not None
    assert set(outcomes) <= set(re.findall(r"'(\w+)'", check[1]))
    uncharged = re.search(r"outcome IN \(([^)]+)\) AS uncharged", STATEMENTS["end_attempts"].sql)
    assert uncharged is not None
    told = set(re.findall(r"'(\w+)'", uncharged[1])) - {"unassigned"}  # that one leaves no history
    assert {row["outcome"] for row in rows if row["charged"] == "no"} == told


def test_texts_of_last_error_are_in_the_code() -> None:
    code = "\n".join(path.read_text("utf-8") for path in _product())
    for row in table(section(PAGE, "What `last_error` says")):
        parts = [part.strip() for part in re.split(r'…|\bN\b|"x"|"t"', row["text"]) if part.strip()]
        assert all(part in code for part in parts), row["text"]


def _product() -> list[Path]:
    code = [path for folder in ("pulse", "actors", "supervisor") for path in (ROOT / folder).rglob("*.py")]
    return [*code, *(ROOT / "pulse" / "store" / "sql").glob("*.sql")]


def _words(cell: str) -> list[str]:
    return [word.strip() for word in cell.split(",")]
