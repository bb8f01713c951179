"""What all connections of one peer have in common."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")


class PerPeer(Generic[T]):
    """
    One object per key, kept as long as it is referenced.

    Args:
        make: Makes a new one.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._there: WeakValueDictionary[Hashable, T] = WeakValueDictionary()

    def of(self, key: Hashable) -> T:
        """The object of *key*, made if there is none."""
        found = self._there.get(key)
        if found is None:
            found = self._there[key] = self._make()
        return found
