"""Limits connections per source, so that one source cannot use up the descriptors. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from pulse.security.password_login import network_of

MOST: Final = 2000  # of one account or address: more than the workers of a large host
MOST_BEFORE_HELLO: Final = 100  # of one source, before hello
MOST_BEFORE_HELLO_OF_ALL: Final = 1000


class ConnectionLimits:
    """
    Counts the connections of each source.

    Args:
        most: Connections of one source.
        most_before_hello: Of these, connections that have not said hello.
        most_before_hello_of_all: The same for all sources together; beyond it the oldest one is closed for a new one.
    """

    def __init__(
        self,
        most: int = MOST,
        most_before_hello: int = MOST_BEFORE_HELLO,
        most_before_hello_of_all: int = MOST_BEFORE_HELLO_OF_ALL,
    ) -> None:
        self._most = most
        self._most_before_hello = most_before_hello
        self._most_before_hello_of_all = most_before_hello_of_all
        self._here: Counter[str] = Counter()
        self._before_hello: Counter[str] = Counter()
        self._waiting: dict[str, dict[ConnectionSlot, None]] = {}  # of each network, the oldest first
        self._before_hello_of_all = 0

    def refusal(self, source: str) -> str | None:
        """Why another connection of *source* is refused; None: it is accepted."""
        if self._here[source] >= self._most:
            return f"{self._most} connections of {source} are open already"
        if self._before_hello[source] >= self._most_before_hello:
            return f"{self._most_before_hello} connections of {source} have not said hello yet"
        return None

    def enter(self, source: str, on_evicted: Callable[[], None]) -> ConnectionSlot:
        """
        Count a new connection, which has not said hello.

        If there are too many such connections, the oldest one of the network with the most of them is closed: else an
        attacker with a thousand addresses would keep everybody out. Real peers say hello at once.

        Args:
            source: Where it comes from.
            make_room: Called to close it before it has said hello.
        """
        if self._before_hello_of_all >= self._most_before_hello_of_all:
            largest = max(self._waiting.values(), key=len)
            next(iter(largest)).evict()
        self._here[source] += 1
        self._before_hello[source] += 1
        self._before_hello_of_all += 1
        slot = ConnectionSlot(self, source, on_evicted)
        self._waiting.setdefault(slot.network, {})[slot] = None
        return slot

    def greet(self, slot: ConnectionSlot) -> None:
        """A connection said hello, or ended before."""
        del self._waiting[slot.network][slot]
        if not self._waiting[slot.network]:
            del self._waiting[slot.network]
        self._before_hello_of_all -= 1
        _less(self._before_hello, slot.source)

    def leave(self, source: str) -> None:
        """A connection ended."""
        _less(self._here, source)


class ConnectionSlot:
    """
    One connection, as it is counted.

    Args:
        limits: The counts of all connections.
        source: Where it comes from.
        on_evicted: Called to close it.

    Attributes:
        network: The network that *source* belongs to.
    """

    def __init__(self, limits: ConnectionLimits, source: str, on_evicted: Callable[[], None]) -> None:
        self._limits = limits
        self.source = source
        self.network = network_of(source)
        self._on_evicted = on_evicted
        self._is_greeted = False

    def greeted(self) -> None:
        """It said hello; a second call does nothing."""
        if not self._is_greeted:
            self._is_greeted = True
            self._limits.greet(self)

    def evict(self) -> None:
        """Close it to make room: it has not said hello."""
        self.greeted()
        self._on_evicted()

    def free(self) -> None:
        """It ended; a second call does nothing."""
        self.greeted()
        self._limits.leave(self.source)


def _less(counts: Counter[str], source: str) -> None:
    counts[source] -= 1
    if counts[source] <= 0:
        del counts[source]
