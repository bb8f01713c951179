"""
Tries several mutants, of one text or one file of tests, in one process: a fork and its databases cost more than a test.

One is found when a test fails with it, and passes as soon as the change is taken back. What the tests of a file share
is made without any mutant then, and stays for the next ones. If it was there before, and the test fails without the
mutant, too, both are tried once more, each with it made anew. If the test still shows nothing, or does not end, the
mutant is tried in a fork of its own (``court``), and the others of the batch go on in a new one.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import asyncpg

from tests.mutants.force import changed_function, force
from tests.mutants.judges import starts_processes
from tests.mutants.judging.court import Court
from tests.mutants.judging.databases import Template, look_at
from tests.mutants.judging.forks import KILLED, LEFT_OUT, SURVIVED, UNFIT
from tests.mutants.judging.warm import OLDEST, Following
from tests.mutants.source import SCHEMA, Mutant

_Case: TypeAlias = tuple[Mutant, list[str]]  # with the names of its tests
_Tell: TypeAlias = Callable[[Mutant, int, str], None]
# Beside what becomes of a fork:
_SPOILT: Final = 9  # a test fails without the mutant, too; the process is left
_LEFT: Final = 10  # its tests pass, but for those that are not run in batches any more
_LONGEST: Final = 12  # mutants of a batch: several batches of a text run side by side
_SPOILS: Final = 2  # mutants after which a test failed: it is not run in batches any more


@dataclass(slots=True, eq=False)
class Batches:
    """
    Tries mutants, and tells what becomes of them.

    Args:
        court: Knows which tests a mutant has survived, and what judges nothing.
        until_s: When to begin no more of them (time.monotonic).
        limit_s: For the tests of a mutant.
    """

    court: Court
    until_s: float
    limit_s: float
    _left: list[_Case] = field(default_factory=list[_Case])
    _spoils: Counter[str] = field(default_factory=Counter[str])
    _sound: str = ""  # in a fork: the file of tests of which all that is shared was made without a mutant

    def judge(self, cases: Iterable[_Case], tell: _Tell) -> list[_Case]:
        """Returns those that are to be tried in forks of their own."""
        judges = self.court.judges
        judges.count_senders()
        groups: defaultdict[tuple[str, bool], list[_Case]] = defaultdict(list)
        for mutant, names in cases:
            if _is_for_a_fork(mutant, names):
                self._left.append((mutant, names))
            else:
                about = names[0].partition("::")[0] if len(names) == 1 else mutant.where
                groups[about, mutant.where == SCHEMA].append((mutant, names))
        for group in groups.values():
            group.sort(key=lambda case: case[0].scope)
            for at in range(0, len(group), _LONGEST):
                if time.monotonic() < self.until_s:
                    self._begin(group[at : at + _LONGEST], tell, judges.forks.start)
        judges.forks.drain()
        return self._left

    def _begin(self, batch: Sequence[_Case], tell: _Tell, start: Callable[..., None]) -> None:
        if not batch:
            return
        judges = self.court.judges
        output = judges.forks.directory / f"batch-{id(batch)}"

        def ended(code: int, at: int, _: int) -> None:
            lines = output.read_text("utf-8").splitlines() if output.exists() else []
            output.unlink(missing_ok=True)
            for (mutant, names), line in zip(batch, lines, strict=False):
                self._told(mutant, names, line, tell)
            rest = batch[len(lines) :]
            if rest and code != LEFT_OUT:
                if not lines or json.loads(lines[-1])[0] != _SPOILT:  # it hung, or ended the process
                    if at >= 0:
                        judges.found(rest[0][0], judges.items[at].nodeid)  # which is tried first, then
                    self._left.append(rest[0])
                    rest = rest[1:]
                self._begin(rest, tell, judges.forks.put_off)

        start(lambda slot: self._try_all(slot, batch, output), ended)

    def _told(self, mutant: Mutant, names: list[str], line: str, tell: _Tell) -> None:
        code, test, tried = json.loads(line)
        if code != _SPOILT:
            self.court.tried[mutant.key].update(tried)
        if code in {_SPOILT, _LEFT}:
            self._spoils[test] += bool(test)
            self._left.append((mutant, names))
            return
        if code == KILLED:
            self.court.judges.found(mutant, test)
        tell(mutant, code, test)

    # In a fork.

    def _try_all(self, slot: int, batch: Sequence[_Case], output: Path) -> int:
        directory = self.court.judges.forks.directory / f"slot-{slot}"
        directory.mkdir(exist_ok=True)
        with contextlib.ExitStack() as stack:
            template = Template(stack) if batch[0][0].where == SCHEMA else None
            for mutant, names in batch:
                result = self._try(slot, mutant, names, directory, template)
                with output.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(result) + "\n")
                if result[0] == _SPOILT:
                    break
        return SURVIVED

    def _try(
        self, slot: int, mutant: Mutant, names: list[str], directory: Path, template: Template | None
    ) -> tuple[int, str, list[str]]:
        judges, tried = self.court.judges, list[str]()
        left = [name for name in names if name not in self.court.tried[mutant.key]]
        able = [name for name in left if self._spoils[name] < _SPOILS]
        in_force = partial(_in_force, mutant, directory, template)
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(in_force())
            except (LookupError, asyncpg.PostgresError):
                return UNFIT if template is None else _SPOILT, "", []
            for name in judges.in_order(mutant, able, self.limit_s) if able else ():
                if not self._passes(slot, name):
                    break
                tried.append(name)
            else:
                return SURVIVED if able == left else _LEFT, "", tried
        code, test = self._of_failed(slot, name, in_force)
        if code == KILLED:
            judges.found(mutant, name)
        return code, test, tried

    def _of_failed(
        self, slot: int, name: str, in_force: Callable[[], contextlib.AbstractContextManager[None]]
    ) -> tuple[int, str]:
        """What becomes of a mutant with which the test *name* failed, and which is taken back; and by which test."""
        if self._sound == _file_of(name):
            if self._passes(slot, name):
                return KILLED, name
            self._leave()
            with in_force():
                if self._passes(slot, name):  # another mutant had spoilt what is shared
                    return _SPOILT, ""
        self._leave()
        if not self._passes(slot, name):
            return _SPOILT, name
        self._sound = _file_of(name)
        return KILLED, name

    def _passes(self, slot: int, name: str) -> bool:
        judges = self.court.judges
        item = judges.item(name)
        judges.forks.get_on(slot, judges.limit_s(name), judges.items.index(item))
        if self._sound != _file_of(name):
            self._sound = ""
        judges.leave(item)
        assert item.parent is not None
        return judges.passes(item, Following.from_parent(item.parent, name="next"))

    def _leave(self) -> None:
        self._sound = ""
        self.court.judges.leave()


def _file_of(test: str) -> str:
    return test.partition("::")[0]


@contextlib.contextmanager
def _in_force(mutant: Mutant, directory: Path, template: Template | None) -> Iterator[None]:
    """Enters with LookupError or PostgresError if it is nothing that runs."""
    with contextlib.ExitStack() as stack:
        stack.callback(force(mutant, directory))
        if template is not None:
            template.change(mutant, stack)
        elif not mutant.is_code:
            look_at(mutant)
        yield


def _is_for_a_fork(mutant: Mutant, names: Sequence[str]) -> bool:
    """It is for another server, or more than a function changes, or its test starts processes, which have it, too."""
    is_schema = mutant.where == SCHEMA
    return (
        mutant.killer.endswith(OLDEST)
        or any(map(starts_processes, names))
        or (is_schema and not changed_function(mutant))
    )
