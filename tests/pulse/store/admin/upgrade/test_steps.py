"""How steps are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulse.store.admin import schema
from pulse.store.admin.upgrade.steps import STRONG_LOCKS, WEAK_LOCKS, StepKind, parse_steps, steps_of
from tests.support.admin.upgrade_kit import step


def test_what_a_step_says(tmp_path: Path) -> None:
    """Comments are for people; the SQL goes to the server as it is."""
    sql = "-- why\nALTER TABLE pulse.jobs ADD COLUMN x int"
    (tmp_path / "7.sql").write_text("-- The seventh.\n\n" + step("add-x", sql, table="pulse.jobs", lock="EXCLUSIVE"))
    (found,) = steps_of(7, tmp_path)
    assert (found.version, found.name, found.what, found.kind) == (7, "add-x", "add-x", StepKind.BRIEF)
    assert (found.table, found.lock, found.locks_out, found.index) == ("pulse.jobs", "EXCLUSIVE", True, None)
    assert found.sql == "ALTER TABLE pulse.jobs ADD COLUMN x int;"


def test_what_locks_nobody_out() -> None:
    (found,) = parse_steps(2, step("f", "SELECT 1"))
    assert (found.table, found.locks_out) == (None, False)
    assert not set(STRONG_LOCKS) & set(WEAK_LOCKS)


def test_the_index_that_a_step_makes() -> None:
    sql = "CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS later ON pulse.jobs (id)"
    (made,) = parse_steps(2, step("index", sql, kind="concurrent", lock="SHARE UPDATE EXCLUSIVE"))
    assert made.index == "later"


@pytest.mark.parametrize(("text", "said"), [
    ("SELECT 1;", "version 2: SQL before the first step"),
    (step("a", "SELECT 1") * 2, "version 2: two steps are called a"),
    (step("a", "SELECT 1").replace("Lock:", "Look:"), "step a: the header lacks Lock"),
    (step("a", "SELECT 1", kind="slow"), "step a: its kind is slow; brief, long, concurrent, batches are allowed"),
    (step("a", "SELECT 1", lock="SOME"), "step a: it locks SOME; if it is brief, none, ACCESS SHARE, "),
    (step("a", "SELECT 1", kind="long", lock="SHARE"), "step a: it locks SHARE; if it is long, none, ACCESS SHARE, "),
    (step("a", "SELECT 1", kind="batches", key="id"), "step a: the header of batches needs Table and Key"),
    (step("a", "SELECT 1", kind="batches", table="t"), "step a: the header of batches needs Table and Key"),
    (step("a", "SELECT $1, $2", kind="batches", table="t", key="id"), r"step a: the SQL of batches needs \$3"),
    (step("a", "SELECT 1", key="id"), "step a: it has a Key, which only batches have"),
])  # fmt: skip
def test_what_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_steps(2, text)


def test_each_version_has_its_steps() -> None:
    """Of each release that brought a version of the schema."""
    for version in range(2, schema.SCHEMA_VERSION + 1):
        assert steps_of(version, schema.VERSIONS)
