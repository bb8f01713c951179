"""
Takes the guards out of the statements and out of the code one by one; for each its own test must fail.

All take some minutes. Exit code 0: no survivor.
"""

from __future__ import annotations

import asyncio
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from contextlib import closing
from typing import TypeVar

from tests.mutants import code_run, sql_run
from tests.mutants.code import CodeMutant
from tests.mutants.code_table import CODE_MUTANTS
from tests.mutants.equivalent import EQUIVALENT
from tests.mutants.mutant import Mutant
from tests.mutants.table import MUTANTS
from tests.support import postgres
from tests.support.postgres import GIVEN_DSN, Servers

M = TypeVar("M", Mutant, CodeMutant)


def chosen(mutants: Sequence[M], words: Sequence[str]) -> list[M]:
    """Those whose description, or test, holds one of *words*; all, if there are none."""
    return [one for one in mutants if not words or any(word in f"{one} {one.killer}" for word in words)]


def try_sql(mutants: list[Mutant], servers: Servers, expected: int) -> list[str]:
    """What is not as it should be."""
    found = postgres.installations()
    newest, oldest = servers.get(found[0]), servers.get(min(found, key=lambda one: one.major))
    with newest.database(installed=False) as empty:
        wrong = asyncio.run(sql_run.misspelt(mutants, empty))
    return wrong or asyncio.run(sql_run.run(mutants, newest, oldest, expected))


def try_code(mutants: list[CodeMutant], servers: Servers) -> list[str]:
    """What is not as it should be."""
    needs_server = any(not mutant.killer.startswith("unit/") for mutant in mutants)
    environment = {GIVEN_DSN: servers.get(postgres.installations()[0]).dsn} if needs_server else {}
    return asyncio.run(code_run.run(mutants, environment))


def main() -> int:
    """Try those that were asked for; 1 if any of them is not as it should be."""
    parser = ArgumentParser(
        prog="python -m tests.mutants", description=__doc__, formatter_class=RawDescriptionHelpFormatter
    )
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--sql", action="store_true", help="only those of the statements and the schema")
    kinds.add_argument("--code", action="store_true", help="only those of the code")
    kinds.add_argument("--equivalent", action="store_true", help="those that cannot be seen: all tests must pass")
    parser.add_argument("words", nargs="*", metavar="TEXT", help="only those whose description, or test, holds one")
    asked = parser.parse_args()
    sql = [] if asked.code else chosen(list(EQUIVALENT) if asked.equivalent else MUTANTS, asked.words)
    code = [] if asked.sql or asked.equivalent else chosen(CODE_MUTANTS, asked.words)
    wrong: list[str] = []
    with closing(Servers()) as servers:
        if code:
            wrong += try_code(code, servers)
        if sql:
            wrong += try_sql(sql, servers, sql_run.PASSED if asked.equivalent else sql_run.TESTS_FAILED)
    print("\n".join(wrong))  # noqa: T201 - the report
    print(f"{len(sql) + len(code)} mutants, {len(wrong)} not as they should be")  # noqa: T201
    return min(len(wrong), 1)


if __name__ == "__main__":
    sys.exit(main())
