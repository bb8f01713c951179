"""Tries mutants: which tests judge each, which survive, and whether that is listed."""

from __future__ import annotations

import time
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from tests.mutants import judges
from tests.mutants.judging.batches import Batches
from tests.mutants.judging.court import FIRST_LIMIT_S, LATER_LIMIT_S, OWN_LIMIT_S, Court
from tests.mutants.judging.forks import HUNG, KILLED, SURVIVED, UNFIT
from tests.mutants.judging.warm import NO_TIME, OLDEST, Judges, is_late
from tests.mutants.source import ROOT, SCHEMA, Mutant, is_in_function, path_of
from tests.mutants.tables import tabled

_LISTS: Final = tomllib.loads((Path(__file__).parent / "tables" / "lists.toml").read_text("utf-8"))
EQUIVALENT: Final[dict[str, str]] = _LISTS["equivalent"]
OPEN: Final[dict[str, int]] = _LISTS["open"]
BLIND: Final[dict[str, str]] = _LISTS["blind"]
_FOUND: Final = frozenset({KILLED, HUNG})
_RECORDING: Final = 0.5  # of the time, at most


def is_equivalent(key: str) -> bool:
    return key in EQUIVALENT or key.rpartition(" -> ")[0] in EQUIVALENT


class Trial:
    """
    Judges mutants, and keeps the results.

    Args:
        mutants: In the order in which they are tried.
        until_s: When to end (time.monotonic).
        known: Keys of mutants -> the test that noticed it the last time, with which it is tried at first.
        others: Mutants that are not tried, with the test that noticed each: it may notice those of the same function.
        is_fast: What survives the fast tests is not tried with the others.
    """

    def __init__(
        self,
        mutants: list[Mutant],
        until_s: float,
        known: Mapping[str, str] = MappingProxyType({}),
        others: Sequence[tuple[Mutant, str]] = (),
        *,
        is_fast: bool = False,
    ) -> None:
        self.wrong: list[str] = []
        self._mutants = mutants
        self._until_s = until_s
        self._court: Court | None = None
        self._silent: dict[str, str] = {}
        self._begun_s = time.monotonic()
        self._recording_s = 0.0
        self._is_late = False
        self._is_fast = is_fast
        self._others = others
        self._known = [replace(one, killer=known[one.key]) for one in mutants if one.key in known and not one.killer]
        self._ended: dict[str, tuple[int, str]] = {}
        self._missing: set[str] = set()  # tests that noticed a mutant, and are not here

    def files(self) -> list[str]:
        """The files of tests that may judge them, or the tests themselves, where each mutant names its own."""
        if all(one.killer for one in self._mutants):
            return sorted({_begins(one)[0].partition("[")[0] for one in self._mutants})
        named = {_begins(one)[0].partition("::")[0] for one in [*self._mutants, *self._known] if one.killer}
        there = sorted(file for file in named if (ROOT / file).is_file())
        return list(dict.fromkeys([*_files_for(self._mutants), *there]))

    def work(self, warm: Judges) -> None:
        """
        Try all with the fast tests; then what survives them, and is not listed, with the others, too.

        Before that, each one that is *known* is tried with its test. Of the fast tests and of the slow ones those of
        its own module are first: the others are recorded only if some mutant survives these.
        """
        warm.expect(self._mutants)
        for mutant, test in self._others:
            warm.found(mutant, test)
        self._court = Court(warm)
        slow = {item.nodeid for item in warm.items if is_late(item)}
        noticed, here = {one.killer for one in self._known}, {item.nodeid for item in warm.items}
        named, self._missing = noticed & here, noticed - here
        warm.trust(named)
        self._judge_together(warm, self._known, self._tell_known, LATER_LIMIT_S)
        self._court.forget_what_hung()
        for name in named:  # what it reaches is unknown
            warm.reached.pop(name, None)
        left = self._mutants
        last = self._tell_fast if self._is_fast else self._tell_first
        for begins, tell, limit_s in ((_near, self._tell_known, OWN_LIMIT_S), (_begins, last, FIRST_LIMIT_S)):
            left = [one for one in left if one.key not in self._ended]
            these = tuple({begin for one in left for begin in begins(one)})
            names = {item.nodeid for item in warm.items if item.nodeid.startswith(these)} - slow
            self._record(warm, names - warm.reached.keys(), left)
            self._judge_together(warm, left, tell, limit_s)
        if self._is_fast or time.monotonic() > self._until_s:
            return
        self._is_late = True
        left = [one for one in left if one.key not in self._ended]  # the ways to all modules take a minute
        all_of = {one.key: {name for name in slow if name.startswith(_begins(one))} for one in left}
        own_of = {one.key: {name for name in all_of[one.key] if name.startswith(_own(one))} for one in left}
        for names_of, tell in ((own_of, self._tell_known), (all_of, self._tell)):
            left = [one for one in left if one.key not in self._ended]
            names = set[str]().union(*(names_of[one.key] for one in left))
            self._record(warm, names - warm.reached.keys(), left)
            known = {name.partition("::")[0] for name in warm.reached}
            able = [one for one in left if all(name.partition("::")[0] in known for name in names_of[one.key])]
            self._judge(warm, able, tell, LATER_LIMIT_S, is_last=True)

    def end_of(self, mutant: Mutant) -> tuple[int, str] | None:
        """Its result, and the test that noticed; None: there was no time for it."""
        return self._ended.get(mutant.key)

    def noticed(self) -> tuple[dict[str, str], Collection[str]]:
        """The test that failed with each mutant that names none by itself; and all that were judged."""
        named = {one.key for one in self._mutants if one.killer}
        found = {key: test for key, (end, test) in self._ended.items() if end in _FOUND and test and key not in named}
        return found, self._ended.keys()

    def report(self) -> str:
        """For people; faults come first, and are kept in ``wrong``."""
        counts = Counter(status for status, _ in self._ended.values())
        survived = {key for key, (status, _) in self._ended.items() if status == SURVIVED}
        unlisted = sorted(key for key in survived if not is_equivalent(key))
        of = Counter(_where(key) for key in unlisted)
        for where, number in sorted(of.items()):
            if number > OPEN.get(where, 0):
                keys = "\n    ".join(key for key in unlisted if _where(key) == where)
                self.wrong.append(f"{where}: {number} survived, {OPEN.get(where, 0)} may:\n    {keys}")
        by_hand = {one.key for rows in tabled.mutants().values() for one in rows}
        for key, (status, test) in self._ended.items():
            if status == KILLED and key in EQUIVALENT:
                self.wrong.append(f"listed as equivalent, but {test} sees it: {key}")
            if status == UNFIT and key in by_hand:
                self.wrong.append(f"in the tables, but nothing that runs: {key}")
        told = [
            f"{len(self._ended)} mutants tried in {time.monotonic() - self._begun_s:.0f} s",
            f"{self._recording_s:.0f} s of it to see what the tests reach",
            f"{counts[KILLED]} found",
            f"{counts[HUNG]} hung",
            f"{counts[UNFIT]} unfit",
            f"{len(survived)} survived",
            f"of these {len(survived) - len(unlisted)} cannot be seen",
            f"{len(self._mutants) - len(self._ended)} left out: there was no time, or their tests skip",
        ]
        dismissed = self._court.dismissed if self._court is not None else {}
        silent = self._silent | dismissed
        unheard = [f"{test} judges nothing: {why}" for test, why in sorted(silent.items()) if why != NO_TIME]
        noticed = {one.killer for one in self._known if one.key in unlisted}
        unheard += [f"{test} noticed what survived, and is not here" for test in sorted(noticed & self._missing)]
        unheard += [f"{test} noticed what survived, and judges nothing" for test in sorted(noticed & dismissed.keys())]
        if late := sum(why == NO_TIME for why in silent.values()):
            unheard.append(f"{late} files of tests judge nothing: {NO_TIME}")
        return "\n".join([*unheard, *self.wrong, ", ".join(told)])

    def _record(self, warm: Judges, names: Collection[str], mutants: Sequence[Mutant]) -> None:
        if not names:
            return
        now_s = time.monotonic()
        until_s = now_s + _RECORDING * (self._until_s - now_s)
        paths = {str(path_of(one.where)) for one in mutants if one.is_code and not one.killer}
        said = warm.record([item for item in warm.items if item.nodeid in names], sorted(paths), until_s)
        self._silent |= said
        self._recording_s += time.monotonic() - now_s
        print(f"{len(names)} tests judge {len(mutants)} mutants", flush=True)  # noqa: T201

    def _judge_together(
        self, warm: Judges, mutants: Sequence[Mutant], tell: Callable[[Mutant, int, str], None], limit_s: float
    ) -> None:
        assert self._court is not None
        batches = Batches(self._court, self._until_s, limit_s)
        left = batches.judge(self._with_tests(warm, mutants, is_last=False), tell)
        self._court.judge(left, tell, self._until_s, limit_s)

    def _judge(
        self,
        warm: Judges,
        mutants: Sequence[Mutant],
        tell: Callable[[Mutant, int, str], None],
        limit_s: float,
        *,
        is_last: bool = False,
    ) -> None:
        assert self._court is not None
        self._court.judge(self._with_tests(warm, mutants, is_last=is_last), tell, self._until_s, limit_s)

    def _with_tests(
        self, warm: Judges, mutants: Sequence[Mutant], *, is_last: bool
    ) -> Iterator[tuple[Mutant, list[str]]]:
        """Those that no test judges yet are left for later; in the end they survive, unless their own test skips."""
        good = {name: one.lines for name, one in warm.reached.items() if one.passed}
        for one in mutants:
            if time.monotonic() > self._until_s:  # to find the tests of thousands takes a while, too
                return
            if (tests := self._tests(good, one)) or (is_last and not one.killer):
                yield one, tests

    def _tests(self, good: Mapping[str, Mapping[str, int]], mutant: Mutant) -> list[str]:
        if mutant.killer:
            return [name for name in good if name.startswith(_begins(mutant))]
        if mutant.where == SCHEMA:
            able = [name for name in good if name not in BLIND]
            parts, files = judges.parts_for(mutant.scope), judges.files_about(mutant.scope)
            near = [name for name in able if not parts.isdisjoint(good[name])]
            silent = [name for name in able if not (parts and good[name])]  # what other drivers send is unknown
            return [*near, *(name for name in silent if name.partition("::")[0] in files)] or able
        if not mutant.is_code:
            return [name for name, lines in good.items() if mutant.where in lines]
        path, (first, last) = str(path_of(mutant.where)), mutant.lines
        bits = (1 << (last + 1)) - (1 << first)
        near = [name for name, lines in good.items() if lines.get(path, 0) & bits]
        if not near and (self._is_late or not is_in_function(mutant.where, first)):
            near = [name for name, lines in good.items() if path in lines]
        if self._is_late:  # also in a thread that no trace follows
            near += [name for name in good if name.startswith(_own(mutant))]
        started = judges.processes_for(mutant.where)
        return list(dict.fromkeys([*near, *(name for name in good if name.partition("::")[0] in started)]))

    def _tell_known(self, mutant: Mutant, status: int, test: str) -> None:
        if status in _FOUND:
            self._tell(mutant, status, test)

    def _tell_first(self, mutant: Mutant, status: int, test: str) -> None:
        if status != SURVIVED or is_equivalent(mutant.key):
            self._tell(mutant, status, test)

    def _tell_fast(self, mutant: Mutant, status: int, test: str) -> None:
        if status != SURVIVED or NO_TIME not in self._silent.values():  # else another test may notice it
            self._tell(mutant, status, test)

    def _tell(self, mutant: Mutant, status: int, test: str) -> None:
        self._ended[mutant.key] = status, test
        if status == SURVIVED and not is_equivalent(mutant.key):
            print(f"\nsurvived: {mutant.key}", flush=True)  # noqa: T201


def _begins(mutant: Mutant) -> tuple[str, ...]:
    """How the names of the tests that may judge it begin."""
    return (mutant.killer.removesuffix(OLDEST),) if mutant.killer else tuple(_files_for([mutant]))


def _near(mutant: Mutant) -> tuple[str, ...]:
    """How the names of the fast tests begin that judge it first."""
    return _begins(mutant) if mutant.killer else judges.own_of(mutant.where, mutant.scope)


def _own(mutant: Mutant) -> str:
    """How the names of the tests begin that are about its module; of SQL and where others are named: of all."""
    return judges.begin_of(mutant.where) if mutant.is_code and not mutant.killer else ""


def _files_for(mutants: Sequence[Mutant]) -> list[str]:
    has_sql = any(not one.is_code for one in mutants)
    sql = [file for file in judges.files() if has_sql and file.endswith("_pg.py")]
    return [*judges.files_for({one.where for one in mutants if one.is_code}), *sql]


def _where(key: str) -> str:
    return key.partition(":")[0]
