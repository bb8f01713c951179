"""
What a forked child must not go on using: connections that its parent uses, and locks.

A lock may be held by a thread of the parent, which the child does not have: it would wait for ever. A preloaded
application (gunicorn, multiprocessing) makes its client before it forks, so each client has to begin anew in a child.
"""

from __future__ import annotations

import os
import weakref
from typing import Final, Protocol

__all__ = ["Shared", "renew_in_children"]


class Shared(Protocol):
    """What a child has of its parent, and must not share."""

    def renew(self) -> None:
        """Give up what is the parent's. Called in the child, when no other thread runs."""


_known: Final[weakref.WeakSet[Shared]] = weakref.WeakSet()


def renew_in_children(one: Shared) -> None:
    """Call ``renew`` of *one* in each child that this process forks, as long as *one* lives."""
    _known.add(one)


def _renew_all() -> None:
    for one in list(_known):
        one.renew()


os.register_at_fork(after_in_child=_renew_all)
