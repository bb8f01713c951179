"""
One pytest that has imported and collected everything, and forks.

First for each file of tests, to see what they reach; then for each mutant, to see one of the tests fail that reach it.
"""

from __future__ import annotations

import contextlib
import gc
import math
import pickle
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import asyncpg
import pytest

from pulse.errors import PulseError
from tests.mutants import judges
from tests.mutants.force import force, functions, holders
from tests.mutants.judging.databases import prepare, use_oldest
from tests.mutants.judging.forks import HUNG, KILLED, LEFT_OUT, SURVIVED, UNFIT, Forks
from tests.mutants.judging.likeness import Likeness
from tests.mutants.judging.reach import Reached, Recorder
from tests.mutants.source import SCHEMA, Mutant, path_of

_ALWAYS: Final = (
    *("-q", "-s", "--no-header", "-p", "no:cacheprovider", "--hypothesis-seed=0"),
    *("--assert=plain", "--tb=line"),  # each test fails at least once, and a fork would read the source anew for that
)
_MARKS: Final = "not long and not systemd and not chaos"
_RECORD_LIMIT_S: Final = 100.0  # for one test while it is recorded: nobody knows yet what it takes
_RECORD_LEAST_S: Final = 10.0
_LIMIT_S: Final = 6.0  # for one test, beside ten times what it takes
_START_LIMIT_S: Final = 30.0  # the same for one that starts processes: as the first it starts those of its session, too
_FAST_S, _LATE_S = 0.5, 5.0  # what a test takes that was not recorded
_LIKE: Final = 6.0  # what a test counts for that has all words of what a mutant changes
_RARE: Final = 50.0  # what a test counts for that alone sends something that leads to a function of the schema
NO_TIME: Final = "there was no time"
OLDEST: Final = "@oldest"  # at the end of the name of a test: it notices on the oldest PostgreSQL alone


class Following(pytest.Item):
    """Is said to come after a test, so that what that shares with others stays."""

    def runtest(self) -> None:
        raise NotImplementedError


@dataclass(slots=True, eq=False)
class Judges:
    """
    The tests, as a plugin of pytest, and what they reach.

    Args:
        work: Called when all is collected.
        forks: Where they run.
        oldest_dsn: Of the server for mutants that show only on the oldest PostgreSQL.
    """

    work: Callable[[Judges], None]
    forks: Forks
    oldest_dsn: str
    items: list[pytest.Item] = field(default_factory=list[pytest.Item])
    reached: dict[str, Reached] = field(default_factory=dict[str, Reached])
    kills: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    _senders: Counter[str] = field(default_factory=Counter[str])  # part of a query, or a path: how many tests reach it
    _slowest_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))  # of a file
    _by_name: dict[str, pytest.Item] = field(default_factory=dict[str, pytest.Item])
    _likeness: Likeness = field(default_factory=lambda: Likeness(()))
    _failed: bool = False
    _why: str = ""

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of running the tests."""
        self.items = session.items
        self._by_name = {item.nodeid: item for item in self.items}
        self._likeness = Likeness(self.items)
        functions()
        holders()
        gc.collect()
        gc.freeze()  # a fork that collects garbage neither looks at all this nor copies it
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            self.work(self)
        finally:
            self.forks.kill()  # it was interrupted
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed = self._failed or report.failed or report.skipped
        if report.failed and not self._why:
            lines = report.longreprtext.splitlines()
            self._why = next((line[1:].strip() for line in lines if line.startswith("E ")), "it fails")

    # What the tests reach.

    def record(self, chosen: Iterable[pytest.Item], paths: Sequence[str], until_s: float) -> dict[str, str]:
        """
        Note what each of the *chosen* tests reaches of the files *paths*.

        Returns:
            The tests and files that judge nothing, since they fail by themselves, do not come to their end, or there
            was no time for them; with the reason.
        """
        files: defaultdict[str, list[pytest.Item]] = defaultdict(list)
        for item in chosen:
            files[item.nodeid.partition("::")[0]].append(item)
        silent: dict[str, str] = {}

        def begin(start: Callable[..., None], number: int, name: str, items: list[pytest.Item]) -> None:
            output = self.forks.directory / f"reached-{number}"

            def ended(status: int, at: int, _: int) -> None:
                if output.exists():
                    found: dict[str, Reached] = pickle.loads(output.read_bytes())  # noqa: S301 - of a fork of ours
                    self.reached.update(found)
                    silent.update({test: one.why for test, one in found.items() if one.why})
                    output.unlink()
                if status == LEFT_OUT:
                    silent[name] = NO_TIME
                elif status != SURVIVED:
                    at = max(at, 0)
                    silent[items[at].nodeid] = "it does not end" if status == HUNG else f"its process ends: {status}"
                    if items[at + 1 :]:
                        begin(self.forks.put_off, number, name, items[at + 1 :])

            start(lambda slot: self._note(slot, items, frozenset(paths), output, until_s), ended)

        for number, (name, items) in enumerate(files.items()):
            if time.monotonic() > until_s:
                silent[name] = NO_TIME
            else:
                begin(self.forks.start, number, name, items)
        self.forks.drain()
        print()  # noqa: T201
        return silent

    def _note(self, slot: int, items: list[pytest.Item], paths: frozenset[str], output: Path, until_s: float) -> int:
        found: dict[str, Reached] = {}
        recorder = Recorder(paths)
        for number, (item, following) in enumerate(zip(items, [*items[1:], None], strict=True)):
            limit_s = max(_RECORD_LEAST_S, min(_RECORD_LIMIT_S, until_s - time.monotonic()))
            self.forks.get_on(slot, limit_s, number)
            found[item.nodeid] = recorder.record(partial(self._outcome, item, following))
            new = output.with_suffix(".new")
            new.write_bytes(pickle.dumps(found))
            new.replace(output)
        return SURVIVED

    # Mutants.

    def trust(self, names: Iterable[str]) -> None:
        """These judge without having been recorded: what fails without a mutant is seen when it has noticed one."""
        for name in names:
            took_s = _LATE_S if is_late(self._by_name[name]) else _FAST_S
            self.reached[name] = Reached(took_s, passed=True, lines={})

    def expect(self, mutants: Iterable[Mutant]) -> None:
        """The files of tests that these name count as if they had found one of their function."""
        for mutant in mutants:
            self.kills[_place_of(mutant) + mutant.killer.partition("::")[0]] += 1

    def found(self, mutant: Mutant, killer: str) -> None:
        """It counts when tests are put in order."""
        for name in (killer, mutant.where + killer, _place_of(mutant) + killer):
            self.kills[name] += 1
        self.kills[_place_of(mutant) + killer.partition("::")[0]] += 1

    def count_senders(self) -> None:
        """To be called when all have been recorded that judge next."""
        self._senders = Counter(part for one in self.reached.values() for part in one.lines)
        for name, one in self.reached.items():
            file = name.partition("::")[0]
            self._slowest_s[file] = max(self._slowest_s[file], one.took_s)

    def in_order(self, mutant: Mutant, names: list[str], left_s: float) -> list[str]:
        """
        Those that reach it first, then those that start processes which may: each as long as there is time.

        Those that found most others of the same text in their time, then those that found most of all.

        Those that begin or are called as the module count as if they had found one, and so do those with the words of
        what is changed. Of a statement's tests, those that send few others come first: they are about it.
        Those of a file are together: they share a database.
        """
        path = str(path_of(mutant.where)) if mutant.is_code else ""
        near, far = list[str](), list[str]()
        for name in names:
            (near if not path or path in self.reached[name].lines else far).append(name)
        return self._in_order(mutant, near, left_s) + self._in_order(mutant, far, left_s)

    def _in_order(self, mutant: Mutant, names: list[str], left_s: float) -> list[str]:
        begin, word = (judges.begin_of(mutant.where), mutant.where.rpartition(".")[2]) if mutant.is_code else ("", " ")
        parts = judges.parts_for(mutant.scope) if mutant.where == SCHEMA else frozenset[str]()
        took_s = {name: max(self.reached[name].took_s, 1e-2) for name in names}
        here = _place_of(mutant)
        weights = self._likeness.weights_of(mutant)

        def place(name: str) -> tuple[float, float, float]:
            cost = took_s[name] * (1 if mutant.is_code else len(self.reached[name].lines))
            is_own = (bool(begin) and name.startswith(begin)) or word in name
            rare = sum(_RARE / self._senders[part] for part in parts if part in self.reached[name].lines)
            of_text = math.sqrt(self.kills.get(mutant.where + name, 0) + 9 * self.kills.get(here + name, 0))
            of_text += math.sqrt(3 * self.kills.get(here + name.partition("::")[0], 0))
            of_text += is_own + rare + _LIKE * self._likeness.of(name, weights)
            return -of_text / took_s[name], -self.kills.get(name, 0) / took_s[name], cost

        worth = {name: place(name) for name in names}
        again: Counter[str] = Counter()  # of a test: where some parameters miss a mutant, others often do
        for name in sorted(names, key=worth.__getitem__):
            test = name.partition("[")[0]
            of_text, of_all, cost = worth[name]
            worth[name] = of_text / math.sqrt(1 + again[test]), of_all, cost
            again[test] += 1
        chosen: list[str] = []
        for name in sorted(names, key=worth.__getitem__):
            left_s -= self.reached[name].took_s
            if left_s > 0 or not chosen:
                chosen.append(name)
        places: dict[str, int] = {}
        for name in chosen:
            places.setdefault(name.partition("::")[0], len(places))
        return chosen[:3] + sorted(chosen[3:], key=lambda name: places[name.partition("::")[0]])

    def try_with(self, slot: int, mutant: Mutant, names: Sequence[str]) -> int:
        """In a fork: what becomes of *mutant* with these tests, one after the other until one fails."""
        directory = self.forks.directory / f"slot-{slot}"
        directory.mkdir(exist_ok=True)
        with contextlib.ExitStack() as stack:
            try:
                force(mutant, directory)
                if mutant.killer.endswith(OLDEST):
                    use_oldest(self.oldest_dsn)
                if not mutant.is_code:
                    prepare(mutant, stack)
            except (LookupError, asyncpg.PostgresError, PulseError) as error:
                print(error)  # noqa: T201
                return UNFIT
            return self._run_all(slot, [self._by_name[name] for name in names])

    def _run_all(self, slot: int, items: list[pytest.Item]) -> int:
        for number, (item, following) in enumerate(zip(items, [*items[1:], None], strict=True)):
            self.forks.get_on(slot, self.limit_s(item.nodeid), number)
            if not self.passes(item, following):
                return KILLED
        return SURVIVED

    def item(self, name: str) -> pytest.Item:
        return self._by_name[name]

    def limit_s(self, name: str) -> float:
        """For one test, with what it shares with others of its file."""
        limit_s = _START_LIMIT_S if judges.starts_processes(name) else _LIMIT_S
        return limit_s + 10 * self.reached[name].took_s + 2 * self._slowest_s[name.partition("::")[0]]

    def _outcome(self, item: pytest.Item, following: pytest.Item | None) -> tuple[bool, str]:
        """Whether it passes, and why it fails."""
        return self.passes(item, following), self._why

    def passes(self, item: pytest.Item, following: pytest.Item | None) -> bool:
        self._failed, self._why = False, ""
        item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
        return not self._failed

    def leave(self, item: pytest.Item | None = None) -> None:
        """End what tests share that ran before, but for what *item* shares with them, or the session."""
        following = item or Following.from_parent(self.items[0].session, name="none")
        self.items[0].session._setupstate.teardown_exact(following)


def start(judges: Judges, files: Sequence[str]) -> int:
    """Collect the tests of *files*, and do the work; the exit code of pytest."""
    return int(pytest.main([*_ALWAYS, "-m", _MARKS, *files], plugins=[judges]))


def is_late(item: pytest.Item) -> bool:
    """Whether it takes so long that it judges only what survives the others."""
    return judges.starts_processes(item.nodeid) or item.get_closest_marker("rest") is not None


def _place_of(mutant: Mutant) -> str:
    return f"{mutant.where}: {mutant.scope}: "
