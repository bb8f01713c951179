"""One connection from its hello to its end: its identity, which frames it may send, and where each frame goes."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import anyio
import anyio.abc
import msgspec
import structlog

from pulse import protocol
from pulse.common.waiting import ASKER
from pulse.errors import (
    BadRequestError,
    ForbiddenError,
    ProtocolError,
    PulseError,
    RefusedError,
    StatementError,
    UnavailableError,
    UnsupportedVersionError,
)
from pulse.protocol import Frame, Hello, Role
from pulse.protocol.roles import ACCESS_OF, CONTENTS, Access, refusal
from pulse.security.conceal import conceal, is_about_contents
from pulse.store.rows import Running
from pulse_actors.dispatcher.admission.list_queue import LONG
from pulse_actors.dispatcher.admission.memory_budget import (
    OVER_BUDGET,
    MemoryBudget,
    incoming_budget_of,
    unwritten_budget_of,
)
from pulse_actors.dispatcher.admission.request_limits import PenaltySlot, request_limits_of
from pulse_actors.dispatcher.context import PeerServices, RequestContext
from pulse_actors.dispatcher.liveness.hung_handlers import note_beat, note_ended, note_progress
from pulse_actors.dispatcher.monitoring.observe import count_started
from pulse_actors.dispatcher.net.connection import PeerConnection
from pulse_actors.dispatcher.net.handshake import (
    ended_attempts,
    held_jobs,
    new_worker,
    note_handlers,
    reconcile,
    refuse_unstorable,
)
from pulse_actors.dispatcher.net.peer import ANONYMOUS, AuthenticatedPeer, PeerAuth
from pulse_actors.dispatcher.requests.table import REQUESTS
from pulse_actors.dispatcher.workers.records import Pair, RegisteredWorker
from pulse_actors.dispatcher.writes.heartbeat import PendingHeartbeat, may_speak_for
from pulse_actors.dispatcher.writes.report_rows import PendingReport
from pulse_actors.dispatcher.writes.submit import PendingSubmit, checked, need_transaction

HELLO_DEADLINE_S: Final = 5.0
LOGIN_DEADLINE_S: Final = 10.0  # a bcrypt check takes a quarter of a second, and others may be ahead
VIEWER_MAX_FRAME_BYTES: Final = 64 * 1024  # its requests are short: filters, and a cursor
UNANSWERED: Final = (protocol.Started, protocol.Capacity, protocol.StackAnswer)
RECONCILE_S: Final = 2.0  # for the database to list a worker's jobs; a client gives up on its hello after 10 s
MOST_BRIEF: Final = 1024  # heartbeats of a pool parent that wait uncounted, one for each of its children
LAST_ANSWERS_S: Final = 5.0  # a peer that only stopped sending still reads

log = structlog.get_logger()


class PeerSession:
    """
    The session of one peer.

    Args:
        connection: Its frames.
        entry: How it connected, which decides its identity.
        pidfd: Of its process, to watch a worker; closed here unless it was handed on.
        number: Number of the connection, in the order in which they were accepted.
    """

    def __init__(
        self, services: PeerServices, connection: PeerConnection, entry: PeerAuth, pidfd: int | None, number: int
    ) -> None:
        self._services = services
        self._context = RequestContext(services)
        self._registry = services.registry
        self._signal = services.signal
        self._reports = services.reports
        self._in_doubt = services.in_doubt
        self._submits = services.submits
        self._redaction = services.redaction
        self._connection = connection
        self._entry = entry
        self._peer = ANONYMOUS
        self._kinds: Mapping[str, type[msgspec.Struct]] = {}  # the frames that it may send, once its role is known
        self._pidfd = pidfd
        self._number = number
        self._worker: RegisteredWorker | None = None
        self._identity = ""
        self._role = Role.CLIENT
        self._unwritten = MemoryBudget()
        self._brief = set[bytes | None]()  # sessions with an unwritten heartbeat that lists nothing
        self._asker: Hashable = -number  # whose requests these are: of a process or address, over all its connections

    async def run(self) -> None:
        """Serve the peer until it is gone."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._connection.write)
            broken: ProtocolError | None = None
            try:
                await self._serve(tasks)
            except ProtocolError as error:
                broken = error
            finally:
                self._connection.hear_no_more()
                if self._pidfd is not None:
                    os.close(self._pidfd)
                if self._worker is not None:
                    self._registry.leave(self._worker)
                    self._reports.parted(self._worker)
            with anyio.move_on_after(LAST_ANSWERS_S):
                await self._connection.wait_answered()
            if broken is not None:
                self._connection.refuse(broken.request, broken.code, broken.message)
            self._connection.close()

    async def _serve(self, tasks: anyio.abc.TaskGroup) -> None:
        greeted = False
        groups = self._connection.frames()
        while True:
            group = await anext(groups, None) if greeted else await self._first(groups)
            if group is None:
                return
            if self._worker is not None and self._worker.contact.hear(time.monotonic()):
                self._signal.look_again()
            for frame in group:
                if greeted:
                    await self._handle(frame, tasks)
                else:
                    await self._greet(frame, tasks)
                    greeted = True

    async def _first(self, groups: AsyncIterator[Sequence[Frame]]) -> Sequence[Frame] | None:
        try:
            with anyio.fail_after(HELLO_DEADLINE_S):
                return await anext(groups, None)
        except TimeoutError:  # the peer may try again
            raise ProtocolError(f"no hello within {HELLO_DEADLINE_S:g} s", UnavailableError.code) from None

    async def _greet(self, frame: Frame, tasks: anyio.abc.TaskGroup) -> None:
        if frame.kind != "hello":
            message = f"the first frame is {frame.kind!r}; it must be hello"
            raise ProtocolError(message, request=frame.request)
        hello = protocol.decode_body(Hello, frame)
        if hello.protocol != protocol.PROTOCOL_VERSION:
            message = f"protocol {hello.protocol} is not spoken here; {protocol.PROTOCOL_VERSION} is"
            raise ProtocolError(message, UnsupportedVersionError.code, frame.request)
        self._role = hello.role
        self._peer = await self._admit(hello, frame.request)
        self._context = replace(self._context, operator=replace(self._peer.operator, behalf=hello.behalf))
        needed = Access.WORKER if hello.role is Role.WORKER else Access.VIEWER
        if needed not in self._peer.rights:
            message = self._forbid(f"hello as {hello.role.value}", needed, tasks)
            raise ProtocolError(message, ForbiddenError.code, frame.request)
        self._asker = self._peer.asker or self._asker
        spoken_for = (hello.role, self._asker)  # so that a client never delays a worker, even from the same address
        self._connection.limits = request_limits_of(spoken_for)
        self._unwritten = unwritten_budget_of(spoken_for)
        self._kinds = {
            kind: body for kind, body in protocol.ALLOWED[hello.role].items() if ACCESS_OF[kind] in self._peer.rights
        }
        longest = None if Access.CLIENT in self._peer.rights else VIEWER_MAX_FRAME_BYTES
        if hello.role is Role.WORKER:
            self._connection.greeted(longest, incoming_budget_of(spoken_for), self._signal.look_again)
            await self._greet_worker(hello, frame.request)
        else:
            self._connection.greeted(longest)
            self._connection.send("welcome", frame.request, self._welcome())

    async def _admit(self, hello: Hello, request: int | None) -> AuthenticatedPeer:
        """Verify its identity; without one it is disconnected."""
        try:
            with anyio.fail_after(LOGIN_DEADLINE_S):
                return await self._entry.admit(hello)
        except RefusedError as error:
            raise ProtocolError(error.message, error.code, request) from None
        except TimeoutError:
            raise ProtocolError("too many log in at once", UnavailableError.code, request) from None

    def _welcome(self) -> dict[str, object]:
        server = self._services.server
        return {
            "protocol": protocol.PROTOCOL_VERSION,
            "server": server.name,
            "heartbeat_s": server.heartbeat_s,
            "lease_s": server.lease_s,
            "max_frame_bytes": protocol.MAX_FRAME_BYTES,
            "schema": server.schema,
        }

    async def _greet_worker(self, hello: Hello, request: int | None) -> None:
        """Find out which jobs it holds, give back unknown ones, and let it have more."""
        if hello.worker is None:
            message = "a worker's hello needs `worker`, its own name"
            raise ProtocolError(message, request=request)
        peer = self._peer
        self._identity, session = peer.worker(self._services.host, hello.worker, hello.session)
        listed, store = {ref.pair for ref in hello.running}, self._services.store
        worker = new_worker(hello, peer, self._identity, session, self._connection)
        refuse_unstorable(hello, request)
        holds: dict[Pair, Running] | None = None
        with anyio.move_on_after(RECONCILE_S):
            await note_handlers(store, hello)
            async with self._in_doubt.no_claim_under_way():
                self._refuse_outdated(request)
                holds = await reconcile(self._in_doubt, self._identity, listed | self._registry.reporting)
                over = await ended_attempts(store, listed, holds)
                self._join(worker, listed, holds, over, request)
        if self._worker is None:
            self._refuse_outdated(request)
        if self._worker is None:  # the database is away, or slow: its jobs are compared before the next claim
            self._join(worker, listed, None, {}, request)
            self._in_doubt.doubt(self._identity)
        log.info("worker_connected", worker=self._identity, capacity=hello.capacity, running=len(listed))
        self._signal.came(worker)

    def _refuse_outdated(self, request: int | None) -> None:
        """Refuse a hello that waited while its worker gave up and said hello again: its list is outdated."""
        if not self._registry.is_newest(self._identity, self._number):
            raise ProtocolError("this worker has connected again", "conflict", request)

    def _join(
        self,
        worker: RegisteredWorker,
        listed: set[Pair],
        holds: Mapping[Pair, Running] | None,
        over: Mapping[bytes, Running],
        request: int | None,
    ) -> None:
        """Add it to the registry, and answer; nothing may be awaited in between."""
        registry, process_watch = self._registry, self._services.process_watch
        older = registry.get(self._identity)
        if older is not None:
            older.link.send("error", None, {"code": "conflict", "message": "this worker has connected again"})
            older.link.close()
        worker.held.update(held_jobs(listed, holds, over, older or registry.away.get(self._identity)))
        registry.join(worker)
        self._worker = worker
        if process_watch is not None and self._pidfd is not None:
            pidfd, self._pidfd = self._pidfd, None
            process_watch.watch(worker, pidfd, self._connection.hear_out)
        lost = None if holds is None else sorted(listed - holds.keys())
        answer = {"session": worker.facts.session, "lost": lost, "worker": self._identity}
        self._connection.send("welcome", request, self._welcome() | answer)

    async def _handle(self, frame: Frame, tasks: anyio.abc.TaskGroup) -> None:
        kind = self._kinds.get(frame.kind)
        if kind is None:
            self._refuse(frame, tasks)
            return
        try:
            body = protocol.decode_body(kind, frame)
            if kind not in UNANSWERED:
                self._connection.owe(frame.request)
            if self._worker is None or not self._hear_worker(self._worker, frame, body):
                await self._ask(frame, body, tasks)
        except (ProtocolError, BadRequestError, UnavailableError) as error:
            self._connection.refuse(frame.request, error.code, error.message)

    def _refuse(self, frame: Frame, tasks: anyio.abc.TaskGroup) -> None:
        """There is no such request, or the sender lacks the role for it."""
        if frame.kind not in protocol.ALLOWED[self._role]:
            message = f"there is no request {frame.kind!r:.80} for a {self._role.value}"
            self._connection.refuse(frame.request, BadRequestError.code, message)
            return
        message = self._forbid(frame.kind, ACCESS_OF[frame.kind], tasks)
        self._connection.refuse(frame.request, ForbiddenError.code, message)

    def _forbid(self, what: str, needed: Access, tasks: anyio.abc.TaskGroup) -> str:
        """Record that *what* was asked without the role *needed*; returns the message."""
        operator, refusal_log = self._context.operator, self._services.refusal_log
        times = refusal_log.due(operator, what)
        if times is not None:
            tasks.start_soon(refusal_log.note, operator, what, needed, times)
        return refusal(what, needed, operator.shown, self._peer.rights)

    def _hear_worker(self, worker: RegisteredWorker, frame: Frame, body: msgspec.Struct) -> bool:
        """Handle frames of workers; False: it is a client's."""
        match body:
            case protocol.Report():
                for result in body.results:
                    protocol.check_result(result)
                pairs = [(result.id, result.attempt) for result in body.results]
                settled = self._unwritten.reserve_frame(len(frame.body))
                if settled is None:
                    note_ended(worker, pairs)
                    raise UnavailableError(OVER_BUDGET)
                self._reports.accept(PendingReport(worker, frame.request, body.results, pairs=pairs, settled=settled))
            case protocol.Started():
                bounded = self._registry.started(
                    worker, [(ref.id, ref.attempt) for ref in body.jobs], {ref.pair for ref in body.apart}
                )
                count_started(self._services.counters, worker)
                if bounded and self._services.deadlines is not None:
                    self._services.deadlines.started(worker, bounded, time.monotonic())
            case protocol.Heartbeat():
                self._hear_beat(worker, frame, body)
            case protocol.Checkpoint():  # about some of its jobs: no heartbeat
                note_progress(worker, body.jobs, time.monotonic())
                settled = self._unwritten.reserve_frame(len(frame.body))
                if settled is None:
                    raise UnavailableError(OVER_BUDGET)
                self._services.heartbeats.checkpoints.put(self._beating(worker, frame, None, body.jobs, settled))
            case protocol.StackAnswer():
                self._services.stacks.answer(worker, frame.request, body)
            case protocol.Capacity():
                self._resize(worker, body)
            case _:
                return False
        return True

    def _hear_beat(self, worker: RegisteredWorker, frame: Frame, body: protocol.Heartbeat) -> None:
        """A heartbeat whose list has no room is taken as a sign of life, which extends all leases of its worker."""
        if body.session is None:
            note_beat(worker, body.jobs or (), body.assigns, time.monotonic())
        settled, jobs, kept = self._unwritten.reserve_frame(len(frame.body)), body.jobs, True
        if settled is None:
            if body.session in self._brief or len(self._brief) >= MOST_BRIEF:  # the same is waiting to be written
                raise UnavailableError(OVER_BUDGET)
            self._brief.add(body.session)
            settled, jobs, kept = partial(self._brief.discard, body.session), None, body.jobs is None
        self._services.heartbeats.batcher.put(self._beating(worker, frame, body.session, jobs, settled, kept=kept))
        if body.jobs is not None and worker.contact.has_doubtful_beat():
            self._in_doubt.doubt(worker.identity)

    def _beating(
        self,
        worker: RegisteredWorker,
        frame: Frame,
        session: bytes | None,
        jobs: Sequence[protocol.Beat] | None,
        settled: Callable[[], None],
        *,
        kept: bool = True,
    ) -> PendingHeartbeat:
        at_s, uid = time.monotonic(), self._peer.uid
        return PendingHeartbeat(
            self._connection,
            frame.request,
            uid,
            worker=worker.identity,
            session=session,
            jobs=jobs,
            at_s=at_s,
            settled=settled,
            kept=kept,
        )

    def _resize(self, worker: RegisteredWorker, body: protocol.Capacity) -> None:
        if body.session is not None:
            other = self._registry.by_session(body.session, remote=self._peer.uid is None)
            if other is None or not may_speak_for(self._peer.uid, other.identity, other.facts.uid):
                return
            worker = other
            worker.expect_end(
                ends=body.capacity == 0
            )  # its pool parent says so; its own word could come from a handler
        worker.resize(body.capacity)
        self._signal.look_again()

    async def _ask(self, frame: Frame, body: msgspec.Struct, tasks: anyio.abc.TaskGroup) -> None:
        if isinstance(body, protocol.Submit) and not need_transaction(body.jobs):
            batcher = self._submits.batcher
            batcher.put(PendingSubmit(self._connection, frame.request, checked(body.jobs)))
            if not batcher.is_accepting:
                await self._connection.while_alive(batcher.wait_accepting)
        elif not await self._connection.while_alive(begin := partial(self._begin, frame, body, tasks)):
            tasks.start_soon(begin)  # the peer's process is dead: what it wrote after this does not wait

    async def _begin(self, frame: Frame, body: msgspec.Struct, tasks: anyio.abc.TaskGroup) -> None:
        """Answer a request when it is its turn."""
        if frame.kind in LONG:
            await self._connection.wait_page(frame.request)
        slot = self._connection.limits.slot_for(frame.kind)
        await slot.acquire()
        tasks.start_soon(self._answer, frame, body, slot)

    async def _answer(self, frame: Frame, body: msgspec.Struct, slot: anyio.Semaphore | PenaltySlot) -> None:
        ASKER.set(self._asker)
        try:
            await self._reply(frame, body)
        finally:
            slot.release()

    async def _answer_to(self, kind: str, body: msgspec.Struct) -> Mapping[str, object]:
        if isinstance(body, protocol.Submit):
            return await self._submits.submit_unique(checked(body.jobs))
        return await REQUESTS[kind](self._context, body)

    async def _reply(self, frame: Frame, body: msgspec.Struct) -> None:
        answer: Mapping[str, object]
        try:
            self._redaction.check(getattr(body, "args", None))
            async with self._services.list_queue.turn() if frame.kind in LONG else contextlib.nullcontext():
                if self._connection.is_over and ACCESS_OF[frame.kind] is Access.VIEWER:  # nobody reads the answer
                    self._connection.settle(frame.request)
                    return
                answer = await self._answer_to(frame.kind, body)
                if ACCESS_OF[frame.kind] is not Access.WORKER:  # handlers need what people do not see
                    answer = self._redaction.answer(answer)
        except StatementError as error:
            self._connection.refuse(frame.request, error.code, f"{frame.kind}: {error.message}")
        except PulseError as error:
            self._connection.refuse(frame.request, error.code, error.message)
        except Exception:
            log.exception("request_failed", kind=frame.kind)  # affects only this request
            self._connection.refuse(frame.request, "internal", f"{frame.kind} failed; the server's log says why")
        else:
            if CONTENTS not in self._peer.rights and is_about_contents(frame.kind):
                answer = conceal(answer)
            self._connection.send("ok", frame.request, answer)
