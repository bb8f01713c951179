"""A schema has a name that is surely one schema's own, and SQL has it quoted."""

from __future__ import annotations

import hashlib

import pytest

from pulse.errors import ConfigError
from pulse.security.schema_name import ALLOWED, DEFAULT, derived, is_allowed, quoted, schema_of
from tests.support.hostile import HOSTILE


@pytest.mark.parametrize("name", [
    "pulse", "x", "Orders", "a b", "1", "select", "pulse_2", "xpg_", "é" * 31 + "x", "n" * 63, HOSTILE,
])  # fmt: skip
def test_allowed(name: str) -> None:
    assert is_allowed(name)


@pytest.mark.parametrize("name", [
    "", " ", " x", "x ", "n" * 64, "é" * 32, "a\0b", "a\nb", "a\tb", "\udcff", "pg_", "pg_catalog", "pg_mine",
    "public", "information_schema", "pulse_audit", "pulse_audit_0123456789abcdef",
])  # fmt: skip
def test_refused(name: str) -> None:
    assert not is_allowed(name)


def test_the_hostile_name_is_as_long_as_may_be() -> None:
    assert len(HOSTILE.encode()) == 63


def test_quoted() -> None:
    """The default is as it is in the files; every other name is in quotes, also one that is a word of SQL."""
    assert [quoted(name) for name in (DEFAULT, "select", 'a"b', "Pulse")] == ["pulse", '"select"', '"a""b"', '"Pulse"']


def test_derived() -> None:
    """What SQL users can compute: a part of SHA-256, in hexadecimal digits."""
    assert derived("pulse_work", DEFAULT) == "pulse_work"
    assert derived("pulse_work", "orders") == f"pulse_work_{hashlib.sha256(b'orders').hexdigest()[:16]}"
    assert derived("pulse_schedules", HOSTILE).encode().isascii()
    assert len(derived("pulse_schedules", HOSTILE)) < 63


def test_which_schema_a_program_means() -> None:
    env = {"PULSE_SCHEMA": " orders "}
    assert [schema_of(None, {}), schema_of(None, env), schema_of("mine", env)] == ["pulse", "orders", "mine"]
    assert schema_of(None, {"PULSE_SCHEMA": ""}) == "pulse"
    wrong = {"PULSE_SCHEMA": "pg_x"}
    for given, environment, label in (("", env, "schema is ''"), (None, wrong, "PULSE_SCHEMA is 'pg_x'")):
        with pytest.raises(ConfigError) as caught:
            schema_of(given, environment)
        assert str(caught.value) == f"{label}: {ALLOWED}"
