"""How much a test is about what a mutant changes: by the words that the two share, the rarer the better."""

from __future__ import annotations

import inspect
import math
import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

import pytest

from tests.mutants.source import Mutant, text_of

_WORD: Final = re.compile(r"[a-z]+|[A-Z]+(?![a-z])|[A-Z][a-z]+|\d+")


class Likeness:
    """The words of tests: of their names, parameters and functions."""

    def __init__(self, items: Iterable[pytest.Item]) -> None:
        functions: dict[object, frozenset[str]] = {}
        self._words: dict[str, frozenset[str]] = {}
        for item in items:
            function = getattr(item, "function", None)
            if function not in functions:
                functions[function] = _words_of(inspect.getsource(function) if function is not None else "")
            self._words[item.nodeid] = functions[function] | _words_of(item.nodeid)
        counts = Counter(word for words in self._words.values() for word in words)
        self._weights = {word: math.log(len(self._words) / count) for word, count in counts.items()}

    def weights_of(self, mutant: Mutant) -> dict[str, float]:
        """The words of what it changes, and of its function's name, with what each counts; 1 in all."""
        words = _words_of(f"{mutant.scope} {text_of(mutant.where)[slice(*mutant.span)]} {mutant.instead}")
        found = {word: self._weights[word] for word in words if word in self._weights}
        whole = sum(found.values())
        return {word: weight / whole for word, weight in found.items()} if whole else {}

    def of(self, test: str, weights: dict[str, float]) -> float:
        """From 0 to 1: what the words of a mutant that *test* has count."""
        words = self._words[test]
        return sum(weight for word, weight in weights.items() if word in words)


def _words_of(text: str) -> frozenset[str]:
    return frozenset(word.lower() for word in _WORD.findall(text))
