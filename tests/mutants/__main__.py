"""
Takes the guards of the product away, one at a time; for each a test must fail.

A guard is a condition that ends a function or the turn of a loop, one of a statement that writes, or one of a table of
mutants (``tables/code.toml``, ``tables/sql.toml``). ``--fine`` changes all other conditions, bounds, operands and
calls, as well. ``--repairs`` undoes the repairs of ``tables/repairs.toml`` instead.

Each is tried first with the test that noticed it the last time (``tables/killers.py``). What
``tables/lists.toml`` lists as equivalent is left out without ``--equivalent``.

Exit code 0: no mutant survived but those that ``tables/lists.toml`` names.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

from tests.mutants import operators, repairs, sql_operators
from tests.mutants.judging.databases import PREPARED_IN
from tests.mutants.judging.forks import Forks
from tests.mutants.judging.warm import Judges, start
from tests.mutants.source import ROOT, Mutant, modules, numbered, path_of, statements
from tests.mutants.tables import killers, tabled
from tests.mutants.trial import Trial, is_equivalent
from tests.plugins.turns import TURN_VARIABLE
from tests.support.servers import postgres
from tests.support.servers.postgres import GIVEN_DSN, GIVEN_TEMPLATE, Servers

SIDE_BY_SIDE: Final = 2 * len(os.sched_getaffinity(0))  # half of them wait for something
FOREVER_S: Final = 1e9
ENDING_S: Final = 5.0  # of the time: to start, to end what runs, and to stop the servers


def changed_since(revision: str) -> list[str]:
    git = ["git", "diff", "--name-only", revision, "--"]
    said = subprocess.run(git, cwd=ROOT, check=True, capture_output=True, text=True)
    changed = {ROOT / line for line in said.stdout.splitlines()}
    return [one for one in [*modules(), *statements()] if (statements().get(one) or path_of(one)) in changed]


def mutants_of(where: Sequence[str], *, fine: bool) -> list[Mutant]:
    """Those of these modules and statements, in a fixed order, without a system."""
    found = []
    for one in where:
        made = (sql_operators if one in statements() else operators).mutants_of(one, fine=fine)
        found += [kept for kept in numbered([*tabled.mutants().get(one, []), *made]) if fine or kept.is_guard]
    random.Random(1).shuffle(found)
    return found


def noticed_of_others(mutants: Sequence[Mutant]) -> list[tuple[Mutant, str]]:
    """Those of the same modules and statements that are not tried, with the test that noticed each."""
    tried = {one.key for one in mutants}
    others = [one for one in mutants_of(sorted({one.where for one in mutants}), fine=False) if one.key not in tried]
    known = killers.known(one.key for one in others)
    return [(one, known[one.key]) for one in others if one.key in known]


def parser() -> ArgumentParser:
    made = ArgumentParser(
        prog="python -m tests.mutants", description=__doc__, formatter_class=RawDescriptionHelpFormatter
    )
    made.add_argument("--since", metavar="REVISION", help="only those of files that have changed since")
    made.add_argument("--seconds", type=float, default=FOREVER_S, help="end by then; the rest is counted, and left out")
    made.add_argument("--unknown", action="store_true", help="only those that no test is known to notice")
    made.add_argument("--every", type=int, default=1, metavar="N", help="only each N-th: a sample")
    made.add_argument("--fine", action="store_true", help="all mutants, not only those that take a guard away")
    made.add_argument(
        "--equivalent", action="store_true", help="those that are listed as equivalent, too: no test may see them"
    )
    made.add_argument("--repairs", action="store_true", help="undo the latest repairs of faults, one at a time")
    made.add_argument("--again", metavar="REPORT", type=Path, help="only those that survived in an earlier report")
    made.add_argument("--fast", action="store_true", help="only with the fast tests, and a few seconds for each mutant")
    made.add_argument("--judges", metavar="FILE", nargs="+", help="only with the tests of these files")
    made.add_argument(
        "--note",
        action="store_true",
        help="write what is known of runs here into tables/killers.txt",
    )
    made.add_argument("words", nargs="*", metavar="NAME", help="only those of modules and statements that begin so")
    return made


def chosen(asked: Namespace) -> list[Mutant]:
    """Those that are tried, in this order."""
    where = changed_since(asked.since) if asked.since else [*modules(), *statements()]
    where = [one for one in where if not asked.words or one.startswith(tuple(asked.words))]
    mutants = repairs.reversals_of(where) if asked.repairs else mutants_of(where, fine=asked.fine)
    if not asked.equivalent and not asked.repairs:
        mutants = [one for one in mutants if not is_equivalent(one.key)]
    if asked.again:
        survived = set(asked.again.read_text("utf-8").splitlines())
        mutants = [one for one in mutants if f"survived: {one.key}" in survived]
    if asked.unknown:
        known = killers.known(one.key for one in mutants)
        mutants = [one for one in mutants if one.key not in known]
    return mutants[:: asked.every]


def main() -> int:
    """Try the chosen mutants; 1 if one of them is wrong."""
    begun_s = time.monotonic()
    asked = parser().parse_args()
    mutants = chosen(asked)
    if not mutants:
        print("nothing that has mutants was changed")  # noqa: T201
        return 0
    found = postgres.to_test_on()
    with ExitStack() as stack:
        servers = stack.enter_context(closing(Servers()))
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="pulse-mutants-"))
        server, oldest = servers.get(found[0]), servers.get(found[-1])
        known = {} if asked.fast else killers.known(one.key for one in mutants)
        until_s = begun_s + asked.seconds - ENDING_S
        trial = Trial(mutants, until_s, known, noticed_of_others(mutants), is_fast=asked.fast)
        os.environ.pop(TURN_VARIABLE, None)
        os.environ |= {GIVEN_DSN: server.dsn, GIVEN_TEMPLATE: server.template(), "HYPOTHESIS_PROFILE": "mutants"}
        os.environ[PREPARED_IN] = stack.enter_context(server.database())
        forks = Forks(Path(directory), SIDE_BY_SIDE, server, until_s)
        code = start(Judges(trial.work, forks, oldest.dsn), asked.judges or trial.files())
    noticed, tried = trial.noticed()
    killers.keep(noticed, tried)
    if asked.note:
        killers.note(killers.last(), tried, (one.key for one in mutants_of([*modules(), *statements()], fine=True)))
    wrong, told = repairs.report(trial) if asked.repairs else (trial.wrong, trial.report())
    print(told)  # noqa: T201
    return 1 if wrong or code else 0


if __name__ == "__main__":
    sys.exit(main())
