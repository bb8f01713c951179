"""
What becomes of a mutant: it is found when a test fails that does not fail without it.

A test that fails is tried once with a change that changes nothing, alone: of the same text if that is SQL, of any
module if it is code. If it fails then, or does not end, it judges nothing. If it did not end with the mutant, it is
tried again with that, alone: a busy machine may have been the reason.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from tests.mutants.judging.forks import HUNG, KILLED, LEFT_OUT, SURVIVED, UNFIT
from tests.mutants.judging.warm import OLDEST, Judges
from tests.mutants.source import Mutant, Span

OWN_LIMIT_S: Final = 3.0  # for the tests of its own module that judge a mutant first
FIRST_LIMIT_S: Final = 10.0  # for all fast tests
LATER_LIMIT_S: Final = 120.0  # for those that judge it if it survives these
_FOUND: Final = frozenset({KILLED, HUNG})
_Key: TypeAlias = tuple[str, str, bool]  # a text of SQL, or "" for all modules; a test; on the oldest server


@dataclass(slots=True, eq=False)
class Court:
    """
    Tries mutants, and tells what becomes of them.

    Attributes:
        tried: Key of a mutant -> the tests that it has survived, and need not be tried with it again.
        dismissed: Tests that judge nothing, with the reason.
    """

    judges: Judges
    tried: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    dismissed: dict[str, str] = field(default_factory=dict[str, str])
    _is_sound: dict[_Key, bool] = field(default_factory=dict[_Key, bool])
    _hung: list[_Key] = field(default_factory=list[_Key])  # those that did not end when nothing was changed
    _asking: defaultdict[_Key, list[Callable[[], None]]] = field(default_factory=lambda: defaultdict(list))

    def judge(
        self,
        mutants: Iterable[tuple[Mutant, list[str]]],
        tell: Callable[[Mutant, int, str], None],
        until_s: float,
        limit_s: float,
    ) -> None:
        """
        Run the tests of each mutant until one fails, those that it has not survived yet.

        Args:
            mutants: With the names of their tests.
            tell: Called with a mutant, its result, and the test that failed.
            until_s: When to begin no more of them (time.monotonic).
            limit_s: For those of a mutant that reach it, and for those that start processes: others are not run.
        """
        self.judges.count_senders()
        for mutant, names in mutants:
            if time.monotonic() > until_s:
                break
            _Case(self, mutant, names, tell, limit_s).begin(self.judges.forks.start)
        self.judges.forks.drain()

    def is_sound(self, mutant: Mutant, test: str) -> bool | None:
        """Whether *test* passes with a change of the same text that changes nothing; None: it was not tried."""
        return self._is_sound.get(_key(mutant, test))

    def forget_what_hung(self) -> None:
        """Tests that did not end judge again: nobody knew what they take."""
        for key in self._hung:
            self._is_sound.pop(key, None)
            self.dismissed.pop(key[1], None)
        self._hung.clear()

    def examine(self, mutant: Mutant, test: str, then: Callable[[], None]) -> None:
        """Find that out, and call *then*."""
        key = _key(mutant, test)
        self._asking[key].append(then)
        if len(self._asking[key]) > 1:
            return
        control = Mutant(mutant.where, "", Span(0, 0), "\n", killer=mutant.killer)

        def ended(code: int, *_: int) -> None:
            if code == LEFT_OUT:
                return
            self._is_sound[key] = code in {SURVIVED, UNFIT}
            if code == HUNG:
                self._hung.append(key)
            if not self._is_sound[key]:
                self.dismissed[test] = f"it {_verb(code)} although nothing is changed in {mutant.where}"
            for one in self._asking.pop(key):
                one()

        names = [test] if test else []
        self.judges.forks.put_off(lambda slot: self.judges.try_with(slot, control, names), ended)


@dataclass(slots=True, eq=False)
class _Case:
    """One mutant, with its tests."""

    court: Court
    mutant: Mutant
    names: list[str]
    tell: Callable[[Mutant, int, str], None]
    limit_s: float

    def begin(self, start: Callable[..., None]) -> None:
        """Run those of its tests that it has not survived; *start* is where forks begin."""
        judges, tried = self.court.judges, self.court.tried[self.mutant.key]
        left = [one for one in self.names if one not in tried and self.court.is_sound(self.mutant, one) is not False]
        chosen = judges.in_order(self.mutant, left, self.limit_s)
        tried.update(chosen)

        def ended(code: int, number: int, _: int) -> None:
            code = KILLED if code < 0 else code  # by a signal: that would end the suite, too
            tried.difference_update(chosen[number + 1 :])
            if code in _FOUND:
                self._found(code, chosen[number] if number >= 0 else "")
            elif code != LEFT_OUT:
                self.tell(self.mutant, code, "")

        if chosen:
            start(lambda slot: judges.try_with(slot, self.mutant, chosen), ended)
        else:
            self.tell(self.mutant, SURVIVED, "")

    def _found(self, code: int, test: str) -> None:
        is_sound = self.court.is_sound(self.mutant, test)
        if is_sound is None:
            self.court.examine(self.mutant, test, lambda: self._found(code, test))
        elif not is_sound and not test:
            self.tell(self.mutant, UNFIT, "")
        elif not is_sound:
            self._again()
        elif code == HUNG:
            self._try_alone(test)
        else:
            self._tell(code, test)

    def _try_alone(self, test: str) -> None:
        def ended(code: int, *_: int) -> None:
            if code in _FOUND or code < 0:
                self._tell(max(code, KILLED), test)
            elif code != LEFT_OUT:
                self.court.dismissed[test] = f"once it did not end, but passes alone, with {self.mutant.key}"
                self._again()

        judges, names = self.court.judges, [test] if test else []
        judges.forks.put_off(lambda slot: judges.try_with(slot, self.mutant, names), ended)

    def _again(self) -> None:
        self.begin(self.court.judges.forks.put_off)

    def _tell(self, code: int, test: str) -> None:
        self.court.judges.found(self.mutant, test)
        self.tell(self.mutant, code, test)


def _verb(code: int) -> str:
    return "does not end" if code == HUNG else "fails"


def _key(mutant: Mutant, test: str) -> _Key:
    return "" if mutant.is_code else mutant.where, test, mutant.killer.endswith(OLDEST)
