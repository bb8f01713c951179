"""What the frames of all peers are handed to."""

from __future__ import annotations

from dataclasses import dataclass, field

from pulse_actors.dispatcher.admission.list_queue import Pages
from pulse_actors.dispatcher.admission.refusal_log import Refusals
from pulse_actors.dispatcher.claims.loop import Claims
from pulse_actors.dispatcher.liveness.hung_handlers import Overdue
from pulse_actors.dispatcher.liveness.process_watch import Deaths
from pulse_actors.dispatcher.services import Desktop
from pulse_actors.dispatcher.writes.heartbeat import Leases
from pulse_actors.dispatcher.writes.report import Results
from pulse_actors.dispatcher.writes.submit import Submits
from pulse_actors.shared import identity as identities


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
