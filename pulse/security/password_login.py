"""Checks user and password; wrong guesses have to wait, longer each time."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from math import ceil
from typing import Final

import anyio
import anyio.to_thread

from pulse.errors import UnauthorizedError, UnavailableError
from pulse.protocol.roles import Rights
from pulse.security.credentials import Credentials, Throttle

NAME_S: Final = 4.0
_MOST_ACQUAINTED: Final = 4096
_MOST_AT_ONCE: Final = 2  # a bcrypt check takes a core
_MAX_NAME: Final = 64
_IPV6: Final = 6
_SITE_BITS: Final = 48  # of IPv6, what a customer is given
_LAN_BITS: Final = 24
_NETWORK_BITS: Final = 64


class TooManyGuessesError(UnavailableError):
    """There were too many wrong passwords; this one was not checked, the next may come after ``wait_s``."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"too many wrong passwords: try again in {ceil(wait_s)} s")
        self.wait_s = wait_s


class Logins:
    """
    Checks logins.

    Args:
        credentials: The users.
        clock: Seconds that never go back.
    """

    def __init__(self, credentials: Credentials, clock: Callable[[], float] = time.monotonic) -> None:
        self._credentials = credentials
        self._clock = clock
        self._by_source = Throttle()
        # Guessing a user's password from many addresses is slow, too; but cannot keep the user out for long.
        self._by_name = Throttle(longest_s=NAME_S)
        # An address with an earlier login does not wait for guesses from elsewhere, which would keep the user out.
        self._acquainted: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._hashing = anyio.Semaphore(_MOST_AT_ONCE)
        self._turns: dict[str, anyio.Lock] = {}

    async def check(self, source: str, user: str, password: str) -> Rights:
        """
        Check a login; returns the rights of *user*.

        Args:
            source: Its origin, see ``source_of``.
            user: The user.
            password: The password.

        Raises:
            TooManyGuessesError: It is too early for another try.
            UnauthorizedError: It is wrong, or there is no such user.
        """
        name = user[:_MAX_NAME]
        self._check_early(source, name)
        # One guess at a time: others wait for its result, and are checked only if it was right.
        async with AsyncExitStack() as turns:
            await turns.enter_async_context(self._turn(f"source {source}"))
            is_new = (source, name) not in self._acquainted
            if is_new:
                await turns.enter_async_context(self._turn(f"name {name}"))
            now_s = self._check_early(source, name)
            self._by_source.tries(source, now_s)
            if is_new:
                self._by_name.tries(name, now_s)
            if not await self._is_right(user, password):
                raise UnauthorizedError("user and password do not fit together")
            self._by_source.was_right(source)
            if is_new:  # else each login of the user would forgive guesses from elsewhere
                self._by_name.forget(name)
            self._get_acquainted(source, name)
        return self._credentials.rights_of(user)

    async def _is_right(self, user: str, password: str) -> bool:
        if self._credentials.remembers(user, password):  # costs nothing: need not wait behind guesses
            return True
        async with self._hashing:
            return await anyio.to_thread.run_sync(self._credentials.verify, user, password)

    def _get_acquainted(self, source: str, name: str) -> None:
        self._acquainted[source, name] = None
        self._acquainted.move_to_end((source, name))
        if len(self._acquainted) > _MOST_ACQUAINTED:
            self._acquainted.popitem(last=False)

    def _check_early(self, source: str, name: str) -> float:
        """The time; raises if it is too early for another guess."""
        now_s = self._clock()
        wait_s = self._by_source.wait_s(source, now_s)
        if (source, name) not in self._acquainted:
            wait_s = max(wait_s, self._by_name.wait_s(name, now_s))
        if wait_s > 0:
            raise TooManyGuessesError(wait_s)
        return now_s

    @asynccontextmanager
    async def _turn(self, key: str) -> AsyncGenerator[None]:
        lock = self._turns.setdefault(key, anyio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.statistics().locked and not lock.statistics().tasks_waiting:
                self._turns.pop(key, None)


def source_of(host: str) -> str:
    """What *host* counts as: its address; for IPv6 its network, as one machine may have all addresses of it."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == _IPV6:
        mapped = ipaddress.IPv6Address(address).ipv4_mapped
        return str(mapped or ipaddress.ip_network((int(address), _NETWORK_BITS), strict=False))
    return str(address)


def network_of(source: str) -> str:
    """The network of *source*, as one attacker may have all addresses of it; itself if it is not an address."""
    try:
        network = ipaddress.ip_network(source)
    except ValueError:
        return source
    bits = _SITE_BITS if network.version == _IPV6 else _LAN_BITS
    return str(network.supernet(new_prefix=min(bits, network.prefixlen)))
