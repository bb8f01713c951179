"""
Where claims go on: for each level, a topic and a priority, the due time of what was claimed last. Pure: times come in.

A claim from the start of the index walks over every dead entry at the queue's head, and while some session holds a
snapshot (a long report, pg_dump, an idle transaction) none of them can be removed: claims get slower and slower. A
claim that starts where the last one ended does not meet them. What appears behind a cursor (a transaction that took
long to commit, a row that was locked) and levels that nobody has told of are found by a full claim, from the start;
full claims are bounded to a share of the time, by what the last one has cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from pulse.store.rows import Claim, Level

BACK_S: Final = 0.001  # cursors are floats: go on a little before
KNOWN_MAX: Final = 10_000  # levels; behind them are full claims
CHEAP_S: Final = 0.05  # a full claim that costs no more may be repeated soon
CHEAP_SHARE: Final = 0.2  # of the time
DEAR_SHARE: Final = 0.01
FULL_PAUSE_MAX_S: Final = 10.0  # what it cost may have been the database's absence, or a pause of this process


class Start(NamedTuple):
    """From where to claim a level: Unix seconds, None: what became due in the last seconds."""

    topic: str
    priority: int
    from_s: float | None


class Cursors:
    """
    The cursors of one dispatcher.

    Args:
        poll_s: Longest pause between two full claims while somebody has room, if they are cheap.
    """

    def __init__(self, poll_s: float) -> None:
        self._poll_s = poll_s
        self._known: dict[Level, float | None] = {}
        self._wanted = True  # nothing is known yet
        self._full_s = float("-inf")  # when the last full claim ended
        self._next_full_s = float("-inf")

    def want_full(self) -> None:
        """There may be work at a level that is not known, or behind a cursor."""
        self._wanted = True

    def learn(self, level: Level, due_s: float | None = None) -> None:
        """There is new work at *level*: due then (Unix seconds), None: about now. It may lie behind the cursor."""
        if level not in self._known:
            self._make_room()
            self._known[level] = None if due_s is None else due_s - BACK_S
            return
        position = self._known[level]
        if due_s is not None and position is not None:
            self._known[level] = min(position, due_s - BACK_S)

    def is_full_due(self, now_s: float) -> bool:
        """Whether the next claim is to be a full one."""
        return (self._wanted or now_s - self._full_s >= self._poll_s) and now_s >= self._next_full_s

    def pause_s(self, now_s: float) -> float:
        """How long until a full claim is due by itself."""
        wait_s = 0.0 if self._wanted else self._full_s + self._poll_s - now_s
        return max(wait_s, self._next_full_s - now_s, 0.0)

    def full_begins(self) -> None:
        """A full claim begins: what is wanted from now on it may miss."""
        self._wanted = False

    def full_done(self, began_s: float, ended_s: float) -> None:
        """A full claim was made."""
        took_s = ended_s - began_s
        share = CHEAP_SHARE if took_s <= CHEAP_S else DEAR_SHARE
        self._full_s = ended_s
        self._next_full_s = ended_s + min(took_s * (1 / share - 1), FULL_PAUSE_MAX_S)

    def starts(self, topics: Sequence[str]) -> list[Start]:
        """The known levels of *topics*, highest priority first, then in the order of *topics*."""
        places = {topic: place for place, topic in enumerate(topics)}
        found = [
            Start(level.topic, level.priority, position)
            for level, position in self._known.items()
            if level.topic in places
        ]
        found.sort(key=lambda one: (-one.priority, places[one.topic]))
        return found

    def claimed(self, claims: Iterable[Claim]) -> None:
        """These were claimed: the next claim goes on behind them."""
        newest: dict[tuple[str, int], float] = {}
        for claim in claims:
            key = (claim.topic, claim.priority)
            newest[key] = max(newest.get(key, claim.due_at), claim.due_at)
        for key, due_at in newest.items():
            level, position = Level(*key), due_at - BACK_S
            if level not in self._known:
                self._make_room()
            before = self._known.get(level)
            if before is None or before < position:
                self._known[level] = position

    def _make_room(self) -> None:
        if len(self._known) >= KNOWN_MAX:
            del self._known[next(iter(self._known))]  # the one that has been known for longest
