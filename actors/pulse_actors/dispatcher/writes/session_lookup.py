"""
Whose a session is that nobody who is connected has: the leases in the database tell, and they are asked once a flush.

A frame that names such a session costs its sender a hash. If each of them took a question of its own, one worker could
keep the heartbeats of all others waiting until their leases have lapsed.
"""

from __future__ import annotations

from collections.abc import Sequence

from pulse.store.rows import Renewal
from pulse.store.store import Store
from pulse_actors.shared import identity as identities


class SessionLookup:
    """Who runs jobs, as of the first look."""

    def __init__(self, store: Store, host: identities.Host) -> None:
        self._store = store
        self._host = host
        self._by_key: dict[str | bytes, str] | None = None
        self._running: dict[str, Sequence[Renewal]] = {}

    async def named(self, session: bytes, *, remote: bool) -> str | None:
        """The identity that *session* stands for, of those here or (*remote*) over TCP; None: it holds nothing."""
        if self._by_key is None:
            workers = await self._store.running_workers()
            self._by_key = {identities.key_of(self._host, one): one for one in workers}
        return self._by_key.get(identities.mark_of(session) if remote else session)

    async def held(self, identity: str) -> Sequence[Renewal]:
        """All leases of *identity*, to be renewed."""
        if identity not in self._running:
            running = await self._store.running_of(identity)
            self._running[identity] = [Renewal(*pair, identity, None) for pair in running]
        return self._running[identity]
