"""
The position of a job in lists, and how several walks merge into one list. Pure: no IO, no clock.

Jobs are ordered by the millisecond in their ids (version 7), else by submitted_at; among equals by their ids.
Both never change, so a list that is read in pages shows each job once, whatever happens meanwhile (ADR 0035).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

_VERSION_BYTE: Final = 6
_TIMED_VERSION: Final = 7
_US_PER_MS: Final = 1000
_LAST_ID: Final = b"\xff" * 16
TIMED_END: Final = bytes.fromhex("04" + 15 * "00")  # as in idx_jobs_other_ids


class ListPosition(NamedTuple):
    """A position in a list: microseconds since the epoch, and the id."""

    at_us: int
    id: bytes

    def following(self) -> ListPosition:
        """The next possible position."""
        if self.id == _LAST_ID:
            return ListPosition(self.at_us + 1, bytes(16))
        return ListPosition(self.at_us, following_id(self.id))


FIRST: Final = ListPosition(-(1 << 62), bytes(16))
LAST: Final = ListPosition(1 << 62, b"\xff" * 16)


def following_id(identity: bytes) -> bytes:
    """The next id; the last one is followed by none, and stays."""
    return identity if identity == _LAST_ID else (int.from_bytes(identity) + 1).to_bytes(16)


def is_timed(identity: bytes) -> bool:
    """Whether the id of a job contains its position."""
    return identity[_VERSION_BYTE] >> 4 == _TIMED_VERSION and identity < TIMED_END


def place_of(identity: bytes, submitted_at_us: int) -> ListPosition:
    """The position of a job."""
    if is_timed(identity):
        return ListPosition(int.from_bytes(identity[:6]) * _US_PER_MS, identity)
    return ListPosition(submitted_at_us, identity)


def first_id(place: ListPosition) -> bytes:
    """The least timed id at *place* or after it."""
    milliseconds, rest_us = divmod(place.at_us, _US_PER_MS)
    start = _id_at(milliseconds + (rest_us > 0))
    return start if rest_us else min(max(place.id, start), _id_at(milliseconds + 1))


def _id_at(milliseconds: int) -> bytes:
    if milliseconds < 0:
        return bytes(16)
    return min((min(milliseconds, (1 << 48) - 1)).to_bytes(6) + bytes(10), TIMED_END)


class ListWalk(msgspec.Struct):
    """
    One of the walks through the table that make up a list.

    Attributes:
        kind: Which part of the table it walks through.
        to: The position of the last row that it has looked at; None: it has not begun.
        found: What it has found and the list does not contain yet, in order.
        done: Whether it has reached the end.
    """

    kind: str
    to: ListPosition | None = None
    found: deque[ListPosition] = msgspec.field(default_factory=deque[ListPosition])
    done: bool = False

    def took(self, found: Iterable[ListPosition], to: ListPosition | None) -> None:
        """Add a step: what it found, and how far it went; None: to the end."""
        self.found.extend(found)
        self.done = to is None
        self.to = to or self.to


def merged(walks: Sequence[ListWalk], limit: int, *, oldest: bool) -> list[ListPosition]:
    """Take from *walks* what is certain to come next in the list, *limit* at most."""
    page: list[ListPosition] = []
    before: Callable[[ListPosition, ListPosition], bool] = _is_before if oldest else _is_behind
    while len(page) < limit:
        ahead = [walk for walk in walks if walk.found]
        if not ahead:
            break
        best = ahead[0]
        for walk in ahead[1:]:
            best = walk if before(walk.found[0], best.found[0]) else best
        place = best.found[0]
        if any(not walk.found and not walk.done and (walk.to is None or before(walk.to, place)) for walk in walks):
            break
        page.append(best.found.popleft())
    return page


def reached(walks: Sequence[ListWalk], *, oldest: bool) -> ListPosition | None:
    """The position that all of *walks* have reached: up to it nothing is missing. None: one has not begun."""
    places = [walk.to for walk in walks if not walk.done]
    if None in places:
        return None
    certain = [place for place in places if place is not None]
    return min(certain, default=LAST) if oldest else max(certain, default=FIRST)


def hungriest(walks: Sequence[ListWalk], *, oldest: bool) -> ListWalk | None:
    """The walk that the list waits for: the least far of those that have found nothing; None: there is none."""
    waiting = [walk for walk in walks if not walk.found and not walk.done]
    if not waiting:
        return None
    start = FIRST if oldest else LAST
    return min(waiting, key=_far) if oldest else max(waiting, key=lambda walk: walk.to or start)


def _far(walk: ListWalk) -> ListPosition:
    return walk.to or FIRST


def _is_before(one: ListPosition, other: ListPosition) -> bool:
    return one < other


def _is_behind(one: ListPosition, other: ListPosition) -> bool:
    return one > other
