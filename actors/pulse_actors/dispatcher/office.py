"""What the frames of all peers are handed to."""

from __future__ import annotations

from dataclasses import dataclass, field

from pulse_actors import identity as identities
from pulse_actors.dispatcher.claims import Claims
from pulse_actors.dispatcher.deaths import Deaths
from pulse_actors.dispatcher.desktop import Desktop
from pulse_actors.dispatcher.leases import Leases
from pulse_actors.dispatcher.overdue import Overdue
from pulse_actors.dispatcher.pages import Pages
from pulse_actors.dispatcher.refusals import Refusals
from pulse_actors.dispatcher.results import Results
from pulse_actors.dispatcher.submits import Submits


@dataclass(frozen=True, slots=True)
class Office:
    """
    Everything behind the door.

    Attributes:
        server: What welcome calls this server.
    """

    desktop: Desktop
    claims: Claims
    results: Results
    leases: Leases
    submits: Submits
    host: identities.Host
    server: str
    heartbeat_s: float
    lease_s: float
    deaths: Deaths | None
    overdue: Overdue | None
    refusals: Refusals
    pages: Pages = field(default_factory=Pages)
