"""SQL for a schema of another name: all that means the schema is changed, and nothing else."""

from __future__ import annotations

import re
from typing import Final

import pytest

from pulse.security.schema_name import DEFAULT, derived
from pulse.store.connections.rendering import AUDIT, CHANNELS, ROWS, SESSION_SETTINGS, rendered
from pulse.store.statements import schema_sql, texts

TEXTS: Final = [schema_sql(), *texts("sql"), *texts("admin"), *texts("connections")]
_WORK: Final = derived("pulse_work", "x y")
_AUDIT: Final = derived(AUDIT, "x y")
_ROWS: Final = derived(ROWS, "x y")
_TOKEN: Final = re.compile(r"--[^\n]*|'((?:[^']|'')*)'|\bpulse\w*")


@pytest.mark.parametrize(("sql", "wanted"), [
    ("SELECT FROM pulse.jobs j", 'SELECT FROM "x y".jobs j'),
    ("GRANT USAGE ON SCHEMA pulse TO a", 'GRANT USAGE ON SCHEMA "x y" TO a'),
    ("SELECT 1 -- pulse.jobs\n, 'pulse.jobs'::regclass", "SELECT 1 -- pulse.jobs\n, '\"x y\".jobs'::regclass"),
    ("nspname = 'pulse'", "nspname = 'x y'"),
    ("to_regnamespace('pulse'), 'pulse'::regnamespace", "to_regnamespace('\"x y\"'), '\"x y\"'::regnamespace"),
    ("NOTIFY pulse_work, 'pulse_work'", f"NOTIFY pulse_work, '{_WORK}'"),
    ("CREATE SCHEMA pulse_audit", f"CREATE SCHEMA {_AUDIT}"),
    ("to_regclass('pulse_audit.gates'), 'pulse_audit'", f"to_regclass('{_AUDIT}.gates'), '{_AUDIT}'"),
    ("to_regclass('pulse_rows.jobs'), pulse_rows.jobs", f"to_regclass('{_ROWS}.jobs'), {_ROWS}.jobs"),
    ("CREATE TRIGGER pulse_audit_rows ON pulse.jobs", 'CREATE TRIGGER pulse_audit_rows ON "x y".jobs'),
    ("EXECUTE 'CREATE TABLE pulse.a (b text)'", "EXECUTE 'CREATE TABLE \"x y\".a (b text)'"),
    ("current_setting('pulse.notify', true)", "current_setting('pulse.notify', true)"),
    ("j.args ? '$pulse'", "j.args ? '$pulse'"),
    ("'it is pulse''s', \"pulse\", j.pulse", "'it is pulse''s', \"pulse\", j.pulse"),
    ("AS $$ SELECT 'a' $$", "AS $$ SELECT 'a' $$"),
    (r"E'\n', $1", r"E'\n', $1"),
])  # fmt: skip
def test_what_is_changed(sql: str, wanted: str) -> None:
    assert rendered(sql, "x y") == wanted


def test_the_default_is_sent_as_it_is_in_the_files() -> None:
    assert all(rendered(text, DEFAULT) is text for text in TEXTS)


def test_names_with_quotes_dollars_and_backslashes() -> None:
    """Dollar quotes get a tag that the name has not; what a backslash means depends on no setting."""
    assert rendered("'pulse', pulse.x", "a'b\"c") == "'a''b\"c', \"a'b\"\"c\".x"
    assert rendered("DO $$ pulse.x() $$", "a$b") == 'DO $pulse$ "a$b".x() $pulse$'
    assert rendered("DO $$ $body$ 1 $body$ $$", "$pulse$$body$$body_$") == "DO $pulse_$ $body__$ 1 $body__$ $pulse_$"
    assert rendered("nspname = 'pulse'", "a\\b") == "nspname =  E'a\\\\b'"


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.partition("\n")[0][:40])
def test_nothing_of_pulse_is_left_but_what_all_schemas_share(text: str) -> None:
    """A new statement that names the schema in another way fails here."""
    left = set[str]()
    for found in _TOKEN.finditer(rendered(text, "other")):
        if found[0].startswith("--"):
            continue
        left.add(found[0] if found[1] is None else found[1])
    kept = {f"pulse.{name}" for name in SESSION_SETTINGS}
    names = {derived(name, "other") for name in (*CHANNELS, AUDIT, ROWS)}
    triggers = {"pulse_audit_rows", "pulse_audit_changes", "pulse_audit_gates", "pulse_audit_backoffs"}
    strange = (
        {one for one in left if "pulse" in one}
        - kept
        - names
        - triggers
        - {"$pulse", "pulse %"}
        - {"pulse schema ", "pulse roles"}
    )
    homes = "|".join(derived(name, "other") for name in (AUDIT, ROWS))
    strange = {one for one in strange if not re.fullmatch(rf"({homes})\.\w+", one)}
    assert {one for one in strange if not re.match(r"pulse( job queue|: \w)|.* that is not pulse''s ", one)} == set()


def test_only_the_schema_is_changed() -> None:
    """What was changed, changed back, is the file."""
    former = {derived(name, "Other$"): name for name in (*CHANNELS, AUDIT, ROWS)}
    former |= {'"Other$"': "pulse", "Other$": "pulse", "$pulse$": "$$"}
    for text in TEXTS:
        shown = rendered(text, "Other$")
        for now, then in former.items():
            shown = shown.replace(now, then)
        assert shown == text
