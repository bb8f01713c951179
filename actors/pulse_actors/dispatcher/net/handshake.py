"""What a worker declares in its hello, and which jobs it holds by the hello and by the database."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Final

from msgspec import structs

from pulse.errors import ProtocolError, UnavailableError
from pulse.protocol import Hello
from pulse.store.rows import Running
from pulse.store.store import Store
from pulse.system import process_tree
from pulse_actors.dispatcher.claims.doubts import InDoubtClaims
from pulse_actors.dispatcher.net.peer import AuthenticatedPeer
from pulse_actors.dispatcher.workers.policies import check_backoff
from pulse_actors.dispatcher.workers.records import Contact, HeldJob, Pair, RegisteredWorker, WorkerFacts, WorkerLink
from pulse_actors.runtime.actor import log_unavailable
from pulse_actors.shared import identity as identities

CARRIED_OVER: Final = ("started", "since_s", "apart", "ended")  # fields of held jobs that a reconnecting worker keeps


def new_worker(
    hello: Hello, peer: AuthenticatedPeer, identity: str, session: bytes, link: WorkerLink
) -> RegisteredWorker:
    """The worker of *hello*; it holds nothing yet."""
    now_s = time.monotonic()
    facts = WorkerFacts(
        identity=identity,
        name=hello.worker or "",
        session=session,
        pid=peer.pid,
        uid=peer.uid,
        topics=tuple(dict.fromkeys(hello.topics)),
        names=frozenset(hello.names),
        # The children of a pool parent end on their own.
        leads_group=bool(hello.topics) and identities.leads_group(peer.pid),
        mark=process_tree.mark_of(peer.pid) if hello.topics else None,
        stalls={name: info.stall_s for name, info in hello.handlers.items() if info.stall_s is not None},
        source=peer.source,
        concurrency=hello.concurrency,
    )
    extended_s = float("-inf") if hello.running else now_s  # leases of later claims count from now
    batches = {name: info.batch for name, info in hello.handlers.items() if info.batch is not None}
    contact = Contact(now_s, now_s, now_s, extended_s=extended_s)
    return RegisteredWorker(facts, hello.capacity, link, contact=contact, batches=batches)


def refuse_unstorable(hello: Hello, request: int | None) -> None:
    """
    Refuse values that the database cannot store, before a claim uses them.

    Raises:
        ProtocolError: A word contains a NUL character, or a handler's back-off is invalid.
    """
    words = (*hello.topics, *hello.names, *hello.handlers, *(info.topic or "" for info in hello.handlers.values()))
    bad = next((word for word in words if "\0" in word), None)
    if bad is not None:
        message = f"hello: {bad!r:.60} contains a NUL character; names and topics without one are allowed"
        raise ProtocolError(message, request=request)
    for name, info in hello.handlers.items():
        check_backoff(name, info.backoff, request)


async def note_handlers(store: Store, hello: Hello) -> None:
    """Store a worker's handlers, unless the database is away."""
    if hello.handlers:
        try:
            await store.note_handlers(hello.handlers)
        except UnavailableError as error:
            log_unavailable(error, "handlers")


async def reconcile(in_doubt: InDoubtClaims, identity: str, listed: set[Pair]) -> dict[Pair, Running] | None:
    """The jobs of *listed* that the worker still holds; others are given back. None while the database is away."""
    try:
        return await in_doubt.give_back_unlisted(identity, listed)
    except UnavailableError as error:
        log_unavailable(error, "hello")
        return None


async def ended_attempts(store: Store, listed: set[Pair], holds: Mapping[Pair, Running] | None) -> dict[bytes, Running]:
    """Jobs whose attempts are over but still run in the worker: their handlers must end in time, too."""
    over = [] if holds is None else [job for job, _ in listed - holds.keys()]
    try:
        return await store.named(over) if over else {}
    except UnavailableError as error:
        log_unavailable(error, "hello")
        return {}


def held_jobs(
    listed: Collection[Pair],
    holds: Mapping[Pair, Running] | None,
    over: Mapping[bytes, Running],
    before: RegisteredWorker | None,
) -> dict[Pair, HeldJob]:
    """
    The jobs that a connecting worker holds.

    Args:
        listed: What it lists in its hello.
        holds: What it holds by the database; None: unknown.
        over: From ``ended_attempts``.
        before: The same worker on an older connection.
    """
    held: dict[Pair, HeldJob] = {}
    for pair in listed:
        job = over.get(pair[0]) if holds is None else holds.get(pair, over.get(pair[0]))
        one = HeldJob("", "")
        if job is not None:
            one = HeldJob(job.name, job.topic, timeout_s=job.timeout_s, group_key=job.group_key)
        if before is not None and pair in before.held:  # it may die before it can report that again
            one = structs.replace(one, **{name: getattr(before.held[pair], name) for name in CARRIED_OVER})
        held[pair] = one
    return held
