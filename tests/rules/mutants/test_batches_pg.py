"""Mutants of the schema that are tried in one process: one copy of the template has them, one after the other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import ExitStack

import asyncpg
import pytest

from tests.mutants.judging.databases import Template
from tests.mutants.source import SCHEMA, Mutant, Span, text_of
from tests.support.servers.postgres import GIVEN_DSN, GIVEN_TEMPLATE, Postgres

BEGIN = "CREATE FUNCTION pulse.submit("


@pytest.fixture
def given(server: Postgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[Postgres]:
    """The server, as a fork of the mutants sees it."""
    monkeypatch.setenv(GIVEN_DSN, server.dsn)
    monkeypatch.setenv(GIVEN_TEMPLATE, server.template())
    with contextlib.closing(Postgres(server.dsn)) as made:
        yield made


def test_the_databases_of_a_process_have_its_mutant(given: Postgres) -> None:
    """Those that are made then, and those that there are; not those without the schema; and until it is taken back."""
    with ExitStack() as stack:
        template = Template(stack)
        before = stack.enter_context(given.database())
        stack.enter_context(given.database(installed=False))
        for word in ("one", "two"):
            with ExitStack() as in_force:
                template.change(_mutant(f"-- {word}"), in_force)
                after = stack.enter_context(given.database())
                assert [_is_there(dsn, f"-- {word}") for dsn in (before, after)] == [True, True]
            last = stack.enter_context(given.database())
            assert [_is_there(dsn, f"-- {word}") for dsn in (before, after, last)] == [False, False, False]
        with ExitStack() as in_force, pytest.raises(asyncpg.PostgresSyntaxError):
            template.change(_mutant("no SQL"), in_force)


def _mutant(text: str) -> Mutant:
    """A word in the body of a function."""
    whole = text_of(SCHEMA)
    at = whole.index("BEGIN\n", whole.index(BEGIN)) + len("BEGIN\n")
    return Mutant(SCHEMA, "submit", Span(at, at), f"{text}\n")


def _is_there(dsn: str, text: str) -> bool:
    async def fetch() -> bool:
        connection = await asyncpg.connect(dsn)
        try:
            found: bool = await connection.fetchval(
                "SELECT bool_or(strpos(prosrc, $1) > 0) FROM pg_proc WHERE proname = 'submit'", text
            )
        finally:
            await connection.close()
        return found

    return asyncio.run(fetch())
