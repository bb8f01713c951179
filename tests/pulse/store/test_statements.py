"""The statements held against their own headers, the state machine, and the code that uses them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import pulse.store
from pulse.job import TRANSITIONS, Status
from pulse.store import statements
from pulse.store.statements import STATEMENTS, Statement, parse, schema_sql
from tests.mutants import sql_operators
from tests.mutants.tables import tabled
from tests.support.checking.every import every

LEGAL: Final = {(source.value, target.value) for source, targets in TRANSITIONS.items() for target in targets}
MOVING: Final = sorted(name for name, statement in STATEMENTS.items() if statement.moves)
# Cancelling is an operator's move, or a schedule's: it ends whatever attempt there is, so it has no token to match.
FENCED: Final = sorted(
    {name for name in MOVING if ("RUNNING") in {move[0] for move in STATEMENTS[name].moves}}
    - {"cancel_jobs", "fire_schedules"}
)
SET_STATUS: Final = re.compile(r"SET status = (.*?)(?:,\s+\w+ =|\n\s+\w+ =)", re.DOTALL)
STORE: Final = Path(str(pulse.store.__file__)).parent
GOOD: Final = "-- name: a :one\n-- What: x. Args: none. Guard: none. Returns: one.\nSELECT 1;\n"
SHARED: Final = "-- fragment: f\n-- What: two\nx,\n-- why\ny\n"
SHARING: Final = GOOD.replace("SELECT 1;", "SELECT\n    -- :include f\n;")


def test_moves_are_legal() -> None:
    """Every move that a header claims is in the table of transitions; a new job is PENDING, or claimed at once."""

    def check(name: str) -> None:
        for source, target in STATEMENTS[name].moves:
            if source == "none":
                assert target == "PENDING" or (name, target) == ("submit_and_claim", "RUNNING")
            elif (source, target) != ("RUNNING", "RUNNING"):  # a lease that moves is no change of status
                assert (source, target) in LEGAL

    every(MOVING, check)


def test_headers_tell_each_change_of_status() -> None:
    every(STATEMENTS.values(), _tells_each_change)


def _tells_each_change(statement: Statement) -> None:
    targets = {target for _, target in statement.moves}
    assigned = SET_STATUS.search(statement.sql)
    inserted = {"PENDING"} if "INSERT INTO pulse.jobs" in statement.sql else set[str]()
    if assigned:
        assert set(re.findall(r"'([A-Z_]+)'", assigned[1])) | inserted == targets
    elif "INSERT INTO pulse.jobs" in statement.sql:
        inserted |= {"RUNNING"} if "'RUNNING'" in statement.sql else set()
        assert statement.moves == {("none", target) for target in inserted}
    else:
        assert targets <= {"RUNNING"}
        assert targets == set() or "UPDATE pulse.jobs" in statement.sql


def test_all_transitions_of_the_table_are_written_by_somebody() -> None:
    written = {move for statement in STATEMENTS.values() for move in statement.moves}
    assert written & LEGAL == LEGAL


def test_writes_to_running_jobs_match_the_whole_fence() -> None:
    """A write by a worker names id, status, locked_by and attempts in its SQL and in its header."""
    every((STATEMENTS[name] for name in FENCED), _matches_the_fence)


def _matches_the_fence(statement: Statement) -> None:
    for column in (
        r"id BETWEEN (\w+)\.id AND \1\.id",
        r"status::text = 'RUNNING'",
        r"locked_by = \w+\.worker",
        r"attempts = \w+\.attempt\b",
    ):
        assert re.search(rf"\bj\.{column}", statement.sql), column
    guard = statement.header.split("Guard:")[1]
    assert (
        guard.split()[:4] == ["id,", "status,", "locked_by,", "attempts."] or "id, status, locked_by, attempts" in guard
    )


def test_the_fenced_statements_are_these() -> None:
    """A new statement that writes to RUNNING jobs is noticed here."""
    assert FENCED == [
        "complete_jobs", "complete_parents", "end_attempts", "end_epoch", "extend_leases", "move_claims",
        "save_checkpoints",
    ]  # fmt: skip


def test_every_statement_is_used() -> None:
    users = [*STORE.rglob("*.py"), *(STORE.parent / "contrib" / "django").rglob("*.py")]
    trees = [ast.parse(path.read_text("utf-8")) for path in users]
    asked = {name for tree in trees for node in ast.walk(tree) for name in _asked_for(node)}
    assert sorted(STATEMENTS.keys() - asked) == []


def _asked_for(node: ast.AST) -> Iterator[object]:
    match node:
        case (
            ast.Subscript(value=ast.Name(id="STATEMENTS"), slice=name)
            | ast.Call(args=[ast.Constant() as name, *_])
            | ast.Call(args=[*_, ast.IfExp() as name])
        ):
            yield from (one.value for one in ast.walk(name) if isinstance(one, ast.Constant))


def test_no_sql_elsewhere() -> None:
    root = STORE.parents[1]
    sources = [path for package in ("pulse", "supervisor", "actors") for path in (root / package).rglob("*.py")]
    assert sources
    touching = re.compile(r"\b(?:FROM|INTO|UPDATE|JOIN)\s+pulse\.\w+")
    assert [path.name for path in sources if touching.search(path.read_text("utf-8"))] == []


def test_every_guard_has_a_mutant() -> None:
    guarded = {name for name, one in STATEMENTS.items() if "Guard: none" not in " ".join(one.header.split())}
    tried = {name for name in guarded if sql_operators.mutants_of(name)}
    assert guarded - tried - tabled.mutants().keys() == set()


def test_what_ends_jobs_settles_what_waits_for_them() -> None:
    """Each statement and function that ends jobs; or it leaves those alone that others wait for."""
    ended = {Status.COMPLETED, Status.DEAD_LETTERED, Status.CANCELED}
    ending = {name: one.sql for name, one in STATEMENTS.items() if ended & {after for _, after in one.moves}}
    bodies = {found[1]: found[0] for found in sql_operators.FUNCTION.finditer(schema_sql())}
    ending |= {name: body for name, body in bodies.items() if "completed_at = " in body and name != "settle"}
    settled = {name for name, sql in ending.items() if "pulse.settle(" in sql or "is_parent IS NULL" in sql}
    assert "complete_attempt" in settled
    assert ending.keys() - settled == set()


def test_moves_of_a_header() -> None:
    """Sources and targets are combined; a statement without From/to moves nothing."""
    header = "What: x.   From/to: PENDING, RUNNING -> CANCELED, RETRYING\nArgs: none"
    moved = Statement("a", "one", header, "SELECT 1").moves
    assert moved == {(a, b) for a in (Status.PENDING, Status.RUNNING) for b in (Status.CANCELED, Status.RETRYING)}
    assert Statement("a", "one", "What: x.", "SELECT 1").moves == frozenset()


def test_parse_reads_name_result_header_and_sql() -> None:
    parsed = parse(
        "-- preface\n\n" + GOOD + "\n-- name: b :many\n-- What: Args: Guard: Returns:\nSELECT 2\n-- why\n, 3;"
    )
    assert parsed["a"] == Statement("a", "one", "What: x. Args: none. Guard: none. Returns: one.", "SELECT 1")
    assert (parsed["b"].result, parsed["b"].sql) == ("many", "SELECT 2\n, 3")


def test_parse_includes_fragments() -> None:
    assert parse(SHARING, SHARED)["a"].sql == "SELECT\n    x,\n    y"
    inner = SHARED.replace(": f", ": g")
    outer = "-- fragment: f\n-- What: nested\n(\n  -- :include g\n)\n"
    assert parse(outer + SHARING, inner)["a"].sql == "SELECT\n    (\n      x,\n      y\n    )"


def test_parse_takes_one_set_of_names() -> None:
    with pytest.raises(ValueError, match="statement a is there twice"):
        parse(GOOD, GOOD)


@pytest.mark.parametrize(("text", "reason"), [
    ("SELECT 1;\n" + GOOD, "without a name"),
    ("SELECT 1;\n", "without a name"),
    (GOOD + "SELECT 2;\n", "exactly one"),
    (GOOD.replace(":one", ":some"), "without a name"),
    (GOOD + GOOD.replace(": a :one", ": b :some"), "exactly one"),
    (GOOD + GOOD, "there twice"),
    (SHARED + SHARING + SHARED, "there twice"),
    (SHARED + SHARING + GOOD.replace(" a ", " f "), "there twice"),
    (SHARED + GOOD, "no statement includes the fragment f"),
    (SHARING, "no fragment f"),
    (SHARED.replace("y", "-- :include f") + SHARING, "includes itself"),
    (SHARED.replace("What:", "Why:") + SHARING, "lacks What:"),
    (GOOD.replace("SELECT 1;", "SELECT 1"), "exactly one"),
    (GOOD.replace("SELECT 1;", ""), "exactly one"),
    *((GOOD.replace(f"{word}:", ""), f"lacks {word}:") for word in ("What", "Args", "Guard", "Returns")),
])  # fmt: skip
def test_parse_refuses(text: str, reason: str) -> None:
    """A statement or fragment that is malformed, has a taken name, or is not alone in its block is refused."""
    with pytest.raises(ValueError, match=reason):
        parse(text)


def test_schema_sql_of_an_installation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In an installation the file is inside the package, and wins over one beside it."""
    (tmp_path / "pulse").mkdir()
    (tmp_path / "schema.sql").write_text("-- beside")
    monkeypatch.setattr(statements, "_PULSE", tmp_path / "pulse")
    assert schema_sql() == "-- beside"
    (tmp_path / "pulse" / "schema.sql").write_text("-- inside")
    assert schema_sql() == "-- inside"
