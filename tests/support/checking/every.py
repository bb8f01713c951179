"""One test for many things: a check that names all that do not pass it, not the first alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def every(things: Iterable[T], check: Callable[[T], None]) -> None:
    """Check each of *things*; an AssertionError names all that do not pass, with the reason, or an empty *things*."""
    checked, wrong = 0, list[str]()
    for thing in things:
        checked += 1
        try:
            check(thing)
        except Exception as error:  # noqa: BLE001  # whatever is wrong with one, the others are looked at
            wrong.append(f"{thing}: {type(error).__name__}: {error}")
    assert checked, "there is nothing to check"
    assert not wrong, "\n\n".join([f"{len(wrong)} of {checked} do not pass", *wrong])
