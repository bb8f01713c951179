"""Small trees for the project's own rules, and what a rule says about one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

from rules.exceptions import Exceptions
from rules.tree import Offence, Tree

Check: TypeAlias = Callable[[Tree, Exceptions], Iterator[Offence]]


def said(
    check: Check,
    texts: Mapping[str, str],
    *,
    tags: Iterable[str] = (),
    reasons: Mapping[str, Mapping[str, str]] | None = None,
) -> list[str]:
    return [str(offence) for offence in check(Tree.of(texts, tags), Exceptions(reasons or {}))]


def lines(count: int) -> str:
    """A Python module of so many lines, none of which is like another."""
    return "".join(f"x{number} = {number}\n" for number in range(count))
