"""What requests work on."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from pulse.errors import NotFoundError
from pulse.security.redaction import Redaction
from pulse.store.operators.transaction import Operator
from pulse.store.store import Store
from pulse_actors.dispatcher.claims.loop import Claims
from pulse_actors.dispatcher.liveness.stack_requests import Stacks
from pulse_actors.dispatcher.monitoring.answer import Stats
from pulse_actors.dispatcher.monitoring.incidents import Incidents
from pulse_actors.dispatcher.workers.policies import Rules
from pulse_actors.dispatcher.workers.registry import Desk
from pulse_actors.runtime.bus import Bus
from pulse_actors.shared import identity as identities

Answer: TypeAlias = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Desktop:
    """
    The database, who is connected, what is claimed, and ways to ask others.

    Attributes:
        incidents: What is wrong besides.
        heartbeat_s: How often workers speak.
        redaction: What of args and results is hidden.
        server_policy: Those of the server's own values for topics that are settings.
        operator: Who asks.
    """

    store: Store
    desk: Desk
    claims: Claims
    bus: Bus
    host: identities.Host
    stacks: Stacks
    stats: Stats
    incidents: Incidents
    heartbeat_s: float
    redaction: Redaction
    server_policy: Mapping[str, object] = field(default_factory=dict[str, object])
    operator: Operator = Operator()

    async def read_policies(self) -> None:
        """Take what is set for topics now for what is to be done."""
        self.desk.rules = Rules(await self.store.topics.live(), self.claims.lease_s)


def no_such(what: str, identity: bytes) -> NotFoundError:
    """There is none of that id."""
    return NotFoundError(f"there is no {what} {uuid.UUID(bytes=identity)}")
