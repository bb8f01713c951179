"""The services that requests use."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TypeAlias

from pulse.errors import NotFoundError
from pulse.protocol.bus import HintEvent, hint
from pulse.security.redaction import Redaction
from pulse.security.schema_name import DEFAULT
from pulse.store.operators.transaction import Acting, Operator
from pulse.store.store import Store
from pulse_actors.dispatcher.admission.list_queue import ListQueue
from pulse_actors.dispatcher.admission.refusal_log import RefusalLog
from pulse_actors.dispatcher.claims.doubts import InDoubtClaims
from pulse_actors.dispatcher.claims.handout import Handout
from pulse_actors.dispatcher.claims.quarantine import Quarantine
from pulse_actors.dispatcher.claims.work_signal import WorkSignal
from pulse_actors.dispatcher.liveness.process_watch import ProcessWatch
from pulse_actors.dispatcher.liveness.stack_requests import StackRequests
from pulse_actors.dispatcher.monitoring.answer import StatsReporter
from pulse_actors.dispatcher.monitoring.counters import DispatchCounters
from pulse_actors.dispatcher.monitoring.findings import Findings
from pulse_actors.dispatcher.workers.deadlines import HandlerDeadlines
from pulse_actors.dispatcher.workers.policies import TopicPolicies
from pulse_actors.dispatcher.workers.registry import WorkerRegistry
from pulse_actors.dispatcher.writes.heartbeat import HeartbeatWriter
from pulse_actors.dispatcher.writes.report import ReportWriter
from pulse_actors.dispatcher.writes.submit import SubmitWriter
from pulse_actors.runtime.bus import Bus
from pulse_actors.shared import identity as identities

Answer: TypeAlias = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """
    The server as its peers see it.

    Attributes:
        name: Its name in welcome.
        heartbeat_s: How often workers send heartbeats.
        lease_s: Length of a lease.
        policy: The server's own values of topic options that are settings.
        schema: The schema that has the jobs.
    """

    name: str
    heartbeat_s: float
    lease_s: float
    policy: Mapping[str, object] = field(default_factory=dict[str, object])
    schema: str = DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """
    What requests use: the database, the connected workers, the claims, and ways to ask other processes.

    Attributes:
        findings: Further findings of what is wrong.
        redaction: Which values of args and results are hidden.
    """

    store: Store
    registry: WorkerRegistry
    signal: WorkSignal
    handout: Handout
    quarantine: Quarantine
    bus: Bus
    host: identities.Host
    stacks: StackRequests
    stats: StatsReporter
    findings: Findings
    redaction: Redaction
    server: ServerInfo

    async def read_policies(self) -> None:
        """Read the policies of all topics into memory."""
        store = self.store
        self.registry.policies = TopicPolicies(await store.topics.live(), self.server.lease_s)
        self.signal.set_limits(await store.limited.topics())

    async def policies_changed(self) -> None:
        """An operator has changed policies: they count here at once, and the other actors hear of it."""
        await self.read_policies()
        self.signal.wake()  # the order of claims may have changed, or there may be room
        await self.bus.hint(hint("pause", HintEvent.POLICIES_CHANGED))


@dataclass(frozen=True, slots=True)
class RequestContext:
    """One peer's requests: the services, and the operator."""

    services: Services
    operator: Operator = Operator()

    def acting(self) -> AbstractAsyncContextManager[Acting]:
        """A transaction for the operator's changes and their audit entries."""
        return self.services.store.acting(self.operator)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerServices(Services):
    """
    What frames of peers use, requests among them.

    Attributes:
        process_watch: None: the ends of worker processes are not watched.
        deadlines: None: the same.
    """

    in_doubt: InDoubtClaims
    reports: ReportWriter
    heartbeats: HeartbeatWriter
    submits: SubmitWriter
    process_watch: ProcessWatch | None
    deadlines: HandlerDeadlines | None
    counters: DispatchCounters
    refusal_log: RefusalLog
    list_queue: ListQueue = field(default_factory=ListQueue)


def no_such(what: str, identity: bytes) -> NotFoundError:
    """The error for an id that does not exist."""
    return NotFoundError(f"there is no {what} {uuid.UUID(bytes=identity)}")
