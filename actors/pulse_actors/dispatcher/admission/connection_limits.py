"""How many connections a source may have: who opens thousands must not take the descriptors of all others. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from pulse.security.password_login import network_of

MOST: Final = 2000  # of one account, or one address: workers of a large host, and then some
MOST_UNKNOWN: Final = 100  # of one source, before hello
MOST_UNKNOWN_OF_ALL: Final = 1000


class Crowd:
    """
    Counts the connections of each source.

    Args:
        most: Connections of one source.
        most_unknown: Of them, those that have not said hello.
        most_unknown_of_all: The same of all sources together; then one of them makes room for the next.
    """

    def __init__(
        self, most: int = MOST, most_unknown: int = MOST_UNKNOWN, most_unknown_of_all: int = MOST_UNKNOWN_OF_ALL
    ) -> None:
        self._most = most
        self._most_unknown = most_unknown
        self._most_unknown_of_all = most_unknown_of_all
        self._here: Counter[str] = Counter()
        self._unknown: Counter[str] = Counter()
        self._strangers: dict[str, dict[Place, None]] = {}  # of each network, the oldest first
        self._unknown_of_all = 0

    def refusal(self, source: str) -> str | None:
        """Why one more of *source* is not let in; None: it may come."""
        if self._here[source] >= self._most:
            return f"{self._most} connections of {source} are open already"
        if self._unknown[source] >= self._most_unknown:
            return f"{self._most_unknown} connections of {source} have not said hello yet"
        return None

    def enter(self, source: str, make_room: Callable[[], None]) -> Place:
        """
        One more, who has not said hello.

        Where too many have not, one goes: of the network that has the most of them the oldest. Whoever has a thousand
        addresses would keep everybody out otherwise; those who mean it say hello at once, and are few.

        Args:
            source: Where it comes from.
            make_room: Called when it is to go before it has said hello.
        """
        if self._unknown_of_all >= self._most_unknown_of_all:
            largest = max(self._strangers.values(), key=len)
            next(iter(largest)).evict()
        self._here[source] += 1
        self._unknown[source] += 1
        self._unknown_of_all += 1
        place = Place(self, source, make_room)
        self._strangers.setdefault(place.network, {})[place] = None
        return place

    def greet(self, place: Place) -> None:
        """One of them said hello, or left before it did."""
        del self._strangers[place.network][place]
        if not self._strangers[place.network]:
            del self._strangers[place.network]
        self._unknown_of_all -= 1
        _less(self._unknown, place.source)

    def leave(self, source: str) -> None:
        """One is gone."""
        _less(self._here, source)


class Place:
    """
    One connection in the crowd.

    Args:
        crowd: Of all.
        source: Where it comes from.
        make_room: Called when it is to go.

    Attributes:
        network: That *source* is part of.
    """

    def __init__(self, crowd: Crowd, source: str, make_room: Callable[[], None]) -> None:
        self._crowd = crowd
        self.source = source
        self.network = network_of(source)
        self._make_room = make_room
        self._is_known = False

    def known(self) -> None:
        """It said hello; said twice, it is no more."""
        if not self._is_known:
            self._is_known = True
            self._crowd.greet(self)

    def evict(self) -> None:
        """Another one takes its place among those that have not said hello."""
        self.known()
        self._make_room()

    def free(self) -> None:
        """It is gone; once."""
        self.known()
        self._crowd.leave(self.source)


def _less(counts: Counter[str], source: str) -> None:
    counts[source] -= 1
    if counts[source] <= 0:
        del counts[source]
