"""What requests work on."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from pulse.errors import NotFoundError
from pulse.store.store import Store
from pulse_actors import identity as identities
from pulse_actors.bus import Bus
from pulse_actors.dispatcher.claims import Claims
from pulse_actors.dispatcher.desk import Desk
from pulse_actors.dispatcher.stacks import Stacks

Answer: TypeAlias = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Desktop:
    """The database, who is connected, what is claimed, and ways to ask others."""

    store: Store
    desk: Desk
    claims: Claims
    bus: Bus
    host: identities.Host
    stacks: Stacks


def no_such(what: str, identity: bytes) -> NotFoundError:
    """There is none of that id."""
    return NotFoundError(f"there is no {what} {uuid.UUID(bytes=identity)}")
