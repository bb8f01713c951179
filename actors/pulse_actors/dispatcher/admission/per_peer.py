"""What all connections of one peer have in common."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")


class PerPeer(Generic[T]):
    """
    One thing for each key, which is there as long as somebody has it.

    Args:
        make: A new one.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._there: WeakValueDictionary[Hashable, T] = WeakValueDictionary()

    def of(self, key: Hashable) -> T:
        """That of *key*, made where there is none."""
        found = self._there.get(key)
        if found is None:
            found = self._there[key] = self._make()
        return found
