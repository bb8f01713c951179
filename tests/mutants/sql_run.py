"""Tries mutants of the store's statements: with each of them in force, the test that is named for it must fail."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Final

import asyncpg

from pulse.store.admin.schema import schema_sql
from tests.mutants.mutant import SCHEMA, Mutant
from tests.mutants.plugin import NUMBER
from tests.mutants.table import EVERY, MUTANTS
from tests.support.postgres import GIVEN_DSN, Postgres

SIDE_BY_SIDE: Final = 2
TESTS_FAILED: Final = 1  # exit codes of pytest
PASSED: Final = 0
LIMIT_S: Final = 600.0


async def check(mutant: Mutant, dsn: str, expected: int) -> str:
    """Run the tests with *mutant* in force; what is wrong, '' when they ended as expected."""
    killers = [mutant.killer] if mutant.killer else sorted({one.killer.partition("::")[0] for one in MUTANTS})
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "--no-header",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.mutants.plugin",
        *(f"tests/store/{killer}" for killer in killers),
    ]
    environment = {**os.environ, NUMBER: str(EVERY.index(mutant)), GIVEN_DSN: dsn, "HYPOTHESIS_PROFILE": "mutants"}
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(LIMIT_S):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return "not done in time"
    if process.returncode == expected:
        return ""
    if process.returncode == PASSED:
        return "survived"
    return f"pytest ended with {process.returncode}:\n{output.decode(errors='replace')[-3000:]}"


async def misspelt(mutants: list[Mutant], empty_dsn: str) -> list[str]:
    """Those that are no SQL: every test would fail with them, and none of it would prove anything."""
    found = []
    connection = await asyncpg.connect(empty_dsn)
    await connection.execute(schema_sql())
    for mutant in mutants:
        text = mutant.mutated(mutant.original())
        try:
            if mutant.where == SCHEMA:
                await connection.execute(f"BEGIN; DROP SCHEMA pulse CASCADE; {text}; ROLLBACK")
            else:
                await connection.prepare(text)
        except asyncpg.PostgresError as error:
            await connection.execute("ROLLBACK")
            found.append(f"{mutant}: {error}")
    await connection.close()
    return found


async def run(mutants: list[Mutant], newest: Postgres, oldest: Postgres, expected: int) -> list[str]:
    """What went wrong, a paragraph each."""
    free = asyncio.Semaphore(SIDE_BY_SIDE)
    wrong: list[str] = []

    async def one(mutant: Mutant) -> None:
        async with free:
            problem = await check(mutant, (oldest if mutant.old else newest).dsn, expected)
        print("." if not problem else "S", end="", flush=True)  # noqa: T201 - progress
        if problem:
            wrong.append(f"{mutant}\n    {mutant.killer or 'all tests'}: {problem}")

    await asyncio.gather(*(one(mutant) for mutant in mutants))
    print()  # noqa: T201
    return wrong
