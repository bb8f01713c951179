"""Hellos, and what a worker says of itself and of others: what the dispatcher believes."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, cast

import anyio
import msgspec
import pytest

from pulse import protocol
from pulse.config import Settings
from pulse.errors import ProtocolError, UnavailableError
from pulse.protocol import Beat, Capacity, Frame, Hello, JobRef, Result, Role
from pulse.protocol.roles import EVERYTHING, NOTHING, Rights
from pulse.security.redaction import Redaction
from pulse.store.connections.pool import Target
from pulse.store.operators.transaction import Operator
from pulse.store.store import Store
from pulse.system import process_tree
from pulse_actors.dispatcher.admission.memory_budget import MemoryBudget
from pulse_actors.dispatcher.admission.refusal_log import RefusalLog
from pulse_actors.dispatcher.admission.request_limits import MAX_REQUESTS, RequestLimits
from pulse_actors.dispatcher.context import PeerServices, RequestContext, ServerInfo
from pulse_actors.dispatcher.liveness.stack_requests import StackRequests
from pulse_actors.dispatcher.main import Dispatcher
from pulse_actors.dispatcher.monitoring.answer import StatsReporter
from pulse_actors.dispatcher.monitoring.findings import Findings
from pulse_actors.dispatcher.net import session as visiting
from pulse_actors.dispatcher.net.connection import PeerConnection
from pulse_actors.dispatcher.net.listener import Listener
from pulse_actors.dispatcher.net.peer import AuthenticatedPeer, LocalPeerAuth
from pulse_actors.dispatcher.net.session import PeerSession
from pulse_actors.dispatcher.requests.table import REQUESTS
from pulse_actors.dispatcher.workers.records import HeldJob, RegisteredWorker
from pulse_actors.dispatcher.writes.batcher import MAX_WAITING_BATCHES, Batcher
from pulse_actors.dispatcher.writes.heartbeat import HeartbeatWriter, PendingHeartbeat
from pulse_actors.dispatcher.writes.submit import BATCH
from pulse_actors.runtime.actor import Turn
from pulse_actors.runtime.bus import Hint
from pulse_actors.shared.identity import Peer, compose
from tests.support.store.claim_parts import claim_parts
from tests.support.store.helpers import TOPIC, Patch, Sql, forge, found_of, read
from tests.support.store.recovery_kit import DEADLINE_S, HOST, LEASE_S, Floor, Wire, floor, new_worker, process, wire_of
from tests.support.waiting import until, until_async

pytestmark = pytest.mark.heavy

PEER: Final = Peer(2**22 + 1, 0, 0, 7, HOST.pidns)
NAME: Final = "w"
IDENTITY: Final = compose(HOST, PEER, NAME)
USER: Final = 12345  # a uid that owns nothing here


class Line(Wire):
    __slots__ = ("begun", "heard_out", "limits", "relieved")

    limits: RequestLimits
    relieved: Callable[[], None] | None

    def __init__(self) -> None:
        super().__init__()
        self.heard_out = anyio.Event()
        self.begun: MemoryBudget | None = None

    async def hear_out(self) -> None:
        """It has said nothing."""

    async def while_alive(self, wait: Callable[[], Awaitable[None]]) -> bool:
        await wait()
        return True

    def greeted(
        self,
        _max_frame_bytes: int | None = None,
        begun: MemoryBudget | None = None,
        relieved: Callable[[], None] | None = None,
    ) -> None:
        self.begun, self.relieved = begun, relieved


class Lobby(Floor):
    def services(self, store: Store | None = None) -> PeerServices:
        claims, store = self.claims, store or self.store
        if store is not self.store:
            claims = claim_parts(store, self.registry, HOST, lease_s=LEASE_S, poll_s=60.0, batch=1)
        return PeerServices(
            store=store, registry=self.registry, signal=claims.signal, handout=claims.handout,
            quarantine=claims.quarantine, bus=cast("Any", None), host=HOST, stacks=StackRequests(self.registry),
            stats=StatsReporter(self.store, self.registry, self.claims.counters), findings=Findings(store.findings),
            redaction=Redaction(None), server=ServerInfo("here", 10.0, LEASE_S), in_doubt=claims.in_doubt,
            reports=self.results,
            heartbeats=HeartbeatWriter(store, self.registry, HOST, self.claims.counters, lease_s=LEASE_S),
            submits=claims.submits, process_watch=self.deaths, deadlines=None, counters=claims.counters,
            refusal_log=RefusalLog(store),
        )  # fmt: skip

    def hears(self, worker: RegisteredWorker, kind: str, *bodies: msgspec.Struct) -> None:
        session, _ = self.peer_session()
        for body in bodies:
            assert session._hear_worker(worker, Frame(kind, 1, cast("Any", b"")), body)

    def peer_session(
        self, number: int = 1, *, peer: Peer = PEER, pidfd: int | None = None, store: Store | None = None
    ) -> tuple[PeerSession, Line]:
        line = Line()
        made = PeerSession(
            self.services(store), cast("PeerConnection", line),
            LocalPeerAuth(peer, EVERYTHING, HOST.id, lambda: None), pidfd, number,
        )  # fmt: skip
        made._peer = AuthenticatedPeer(Operator(peer.uid), EVERYTHING, peer)
        return made, line

    async def greet(
        self, *running: tuple[bytes, int], number: int = 1, **words: Any
    ) -> tuple[RegisteredWorker, dict[str, Any]]:
        peer_session, line = self.peer_session(number)
        await peer_session._greet_worker(hello(*running, **words), 0)
        (welcome,) = line.bodies("welcome")
        return found_of(self.registry.get(IDENTITY)), dict(welcome)


def hello(*running: tuple[bytes, int], **words: Any) -> Hello:
    refs = [JobRef(*pair) for pair in running]
    return Hello(protocol=1, role=Role.WORKER, worker=NAME, **{"topics": [TOPIC], "running": refs, **words})


@pytest.fixture
def lobby(store: Store, connection: Sql) -> Lobby:
    return Lobby(store, connection)


async def test_a_hello_is_held_against_the_database(lobby: Lobby) -> None:
    """Listed and held attempts go on; those no longer held are lost; unlisted ones are given back."""
    held, unlisted, canceled = [
        await forge(lobby.connection, status, locked_by=IDENTITY if status == "RUNNING" else None, timeout_s=5.0)
        for status in ("RUNNING", "RUNNING", "CANCELED")
    ]
    reported = await forge(lobby.connection, "RUNNING", locked_by=IDENTITY)
    lobby.registry.reporting.add((reported, 1))
    worker, welcome = await lobby.greet((held, 1), (canceled, 1))
    assert welcome["lost"] == [(canceled, 1)]
    assert {pair: (one.name, one.timeout_s) for pair, one in worker.held.items()} == {
        (held, 1): ("n", 5.0),
        (canceled, 1): ("n", 5.0),  # its handler, too, must end in time
    }
    statuses = [(await read(lobby.connection, job))["status"] for job in (held, unlisted, reported)]
    assert statuses == ["RUNNING", "PENDING", "RUNNING"]


@pytest.mark.parametrize("is_away", [False, True])
async def test_what_had_started_has_started_when_its_worker_comes_back(lobby: Lobby, *, is_away: bool) -> None:
    """It may die before it names its started attempts again: they have crashed."""
    job, apart, waiting, unknown = [await forge(lobby.connection, "RUNNING", locked_by=IDENTITY) for _ in range(4)]
    older, _ = await lobby.greet((job, 1), (apart, 1), (waiting, 1))
    lobby.registry.started(older, [(job, 1), (apart, 1)], {(apart, 1)})
    if is_away:
        older.watched = True
        lobby.registry.leave(older)
    newer, _ = await lobby.greet((job, 1), (apart, 1), (waiting, 1), (unknown, 1), number=2)
    held = [newer.held[one, 1] for one in (job, apart, waiting)]
    assert newer is not older
    assert [(one.started, one.apart) for one in held] == [(True, False), (True, True), (False, False)]


def said(kind: str, **words: Any) -> Frame:
    return Frame(kind, 1, msgspec.Raw(msgspec.msgpack.encode(words)))


@pytest.mark.parametrize(("frame", "rights", "message"), [
    (said("ping"), EVERYTHING, "the first frame is 'ping'; it must be hello"),
    (said("hello", protocol=99, role="client"), EVERYTHING, "protocol 99 is not spoken here; 1 is"),
    (said("hello", protocol=1, role="client"), NOTHING, "hello as client"),
    (said("hello", protocol=1, role="worker"), EVERYTHING, "a worker's hello needs `worker`, its own name"),
])  # fmt: skip
async def test_hellos_that_are_refused(lobby: Lobby, frame: Frame, rights: Rights, message: str) -> None:
    peer_session, _ = lobby.peer_session()
    peer_session._entry = LocalPeerAuth(PEER, rights, HOST.id, lambda: None)
    async with anyio.create_task_group() as tasks:
        with pytest.raises(ProtocolError, match=message):
            await peer_session._greet(frame, tasks)


async def test_a_request_that_there_is_not(lobby: Lobby) -> None:
    peer_session, _ = lobby.peer_session()
    peer_session._connection = connection = PeerConnection(cast("Any", None), 2**20)
    async with anyio.create_task_group() as tasks:
        await peer_session._handle(said("fly"), tasks)
    (answer,) = protocol.FrameReader(2**20).feed(b"".join(connection._out))
    assert protocol.decode_body(protocol.ErrorBody, answer).message == "there is no request 'fly' for a client"


async def test_a_worker_that_has_read_its_backlog_gets_more(lobby: Lobby) -> None:
    peer_session, line = lobby.peer_session()
    frame = Frame("hello", 1, msgspec.Raw(msgspec.msgpack.encode(hello())))
    async with anyio.create_task_group() as tasks:
        await peer_session._greet(frame, tasks)
    assert line.relieved is not None
    lobby.claims.signal._event = anyio.Event()
    line.relieved()
    assert lobby.claims.signal._event.is_set()


@pytest.mark.parametrize("kind", ["jobs.list", "jobs.get", "jobs.cancel"])
async def test_nobody_looks_for_who_is_gone(lobby: Lobby, monkeypatch: Patch, kind: str) -> None:
    asked = list[str]()

    async def answer(_context: RequestContext, _body: msgspec.Struct) -> dict[str, object]:
        asked.append(kind)
        return {}

    monkeypatch.setitem(cast("dict[str, Any]", REQUESTS), kind, answer)
    body = {
        "jobs.list": protocol.JobsList(),
        "jobs.get": protocol.ById(bytes(16)),
        "jobs.cancel": protocol.JobsWithDependents([]),
    }
    for is_over in (False, True):
        peer_session, _ = lobby.peer_session()
        peer_session._connection = connection = PeerConnection(cast("Any", None), 2**20)
        if is_over:
            connection.close()
        connection.owe(1)
        async with anyio.create_task_group() as tasks:
            await peer_session._ask(Frame(kind, 1, msgspec.Raw()), body[kind], tasks)
        assert asked == [kind] * (2 if is_over and kind == "jobs.cancel" else 1)
        with anyio.fail_after(DEADLINE_S):
            await connection.wait_answered()


@pytest.mark.parametrize(("kind", "shown"), [("jobs.get", "***"), ("handler.signal", "secret")])
async def test_what_is_redacted_is_for_handlers_alone(lobby: Lobby, monkeypatch: Patch, kind: str, shown: str) -> None:
    async def answer(_context: RequestContext, _body: msgspec.Struct) -> dict[str, object]:
        return {"args": '{"password":"secret"}'}

    monkeypatch.setitem(cast("dict[str, Any]", REQUESTS), kind, answer)
    peer_session, line = lobby.peer_session()
    line.limits = RequestLimits(0.0)
    peer_session._redaction = Redaction("password")
    async with anyio.create_task_group() as tasks:
        await peer_session._ask(Frame(kind, 1, msgspec.Raw()), protocol.ById(bytes(16)), tasks)
    assert [msgspec.json.decode(body["args"]) for body in line.bodies("ok")] == [{"password": shown}]


async def test_of_all_peers_one_long_page_is_worked_out_at_once(lobby: Lobby, monkeypatch: Patch) -> None:
    """Others have their turn in between; a short answer waits for no page."""
    under_way, most = list[str](), list[list[str]]()

    async def answer(_context: RequestContext, body: msgspec.Struct) -> dict[str, object]:
        kind = "page" if isinstance(body, protocol.JobsList) else "get"
        under_way.append(kind)
        most.append(sorted(under_way))
        await anyio.wait_all_tasks_blocked()
        under_way.remove(kind)
        return {}

    for kind in ("jobs.list", "jobs.get"):
        monkeypatch.setitem(cast("dict[str, Any]", REQUESTS), kind, answer)
    async with anyio.create_task_group() as tasks:
        peer_sessions = [lobby.peer_session()[0] for _ in range(3)]
        for peer_session in peer_sessions:
            peer_session._services = peer_sessions[0]._services
            peer_session._connection = PeerConnection(cast("Any", None), 2**20)
            await peer_session._ask(Frame("jobs.list", 1, msgspec.Raw()), protocol.JobsList(), tasks)
        await peer_sessions[0]._ask(Frame("jobs.get", 2, msgspec.Raw()), protocol.ById(bytes(16)), tasks)
    assert [one.count("page") for one in most] == [1, 1, 1, 1]
    assert ["get", "page"] in most


async def test_a_submit_with_a_key_goes_by_itself(lobby: Lobby) -> None:
    """It may wait for a transaction of somebody else's, and no other submit waits with it."""
    peer_session, line = lobby.peer_session()
    line.limits = RequestLimits(0.0)
    keyed = protocol.SubmittedJob("n", id=bytes(16), unique="k")
    async with anyio.create_task_group() as tasks:
        await peer_session._ask(Frame("submit", 1, msgspec.Raw()), protocol.Submit([keyed]), tasks)
    assert line.sent == [("ok", 1, {"ids": [keyed.id]})]
    assert len(lobby.claims.submits.batcher) == 0


async def test_who_submits_more_than_is_stored_has_to_wait(lobby: Lobby) -> None:
    """The dispatcher stops reading such peers while many jobs wait: else they would fill the memory."""
    peer_session, _ = lobby.peer_session()
    submits = peer_session._services.submits
    frame, body = Frame("submit", 1, msgspec.Raw()), protocol.Submit([protocol.SubmittedJob("n")])
    async with anyio.create_task_group() as tasks:
        await peer_session._ask(frame, body, tasks)
        submits.batcher._weight += int(MAX_WAITING_BATCHES * BATCH)
        over = anyio.Event()

        async def ask() -> None:
            await peer_session._ask(frame, body, tasks)
            over.set()

        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        assert (len(submits.batcher), over.is_set()) == (2, False)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(("kind", "body"), [("submit", {"jobs": [{"name": "n"}]}), ("ping", {})])
async def test_what_a_dead_worker_asked_holds_up_nothing(lobby: Lobby, kind: str, body: dict[str, Any]) -> None:
    """The report behind it is read although the request has no place yet; it is done when it has one."""
    peer_session, _ = lobby.peer_session()
    other, own = socket.socketpair()
    words = {"protocol": 1, "role": "worker", "worker": NAME, "topics": [TOPIC]}
    async with await anyio.abc.UNIXSocketStream.from_socket(own) as stream, anyio.create_task_group() as tasks:
        peer_session._connection = connection = PeerConnection(stream, 2**20)
        tasks.start_soon(peer_session.run)
        with other, anyio.fail_after(DEADLINE_S):
            other.sendall(protocol.encode("hello", 0, words))
            await until_async(lambda: peer_session._worker is not None, "its hello")
            places, submits = connection.limits.requests, peer_session._services.submits.batcher
            reports = lobby.results.batcher
            for _ in range(MAX_REQUESTS):
                await places.acquire()
            submits._weight = int(MAX_WAITING_BATCHES * BATCH)
            report = protocol.encode("report", 2, {"results": [[bytes(16), 1, "ok", None]]})
            other.sendall(protocol.encode(kind, 1, body) + report)
            await anyio.wait_all_tasks_blocked()
            assert len(reports) == 0
            await connection.hear_out()
            assert (len(reports), len(submits)) == (1, int(kind == "submit"))
            for _ in range(MAX_REQUESTS):
                places.release()
            await until_async(lambda: kind != "ping" or 1 not in connection._owed, "its answer")
        tasks.cancel_scope.cancel()


async def test_a_worker_that_holds_nothing_has_just_beaten(lobby: Lobby) -> None:
    began_s = time.monotonic()
    worker, _ = await lobby.greet()
    assert worker.contact.extended_s >= began_s
    worker, _ = await lobby.greet((bytes(16), 1), number=2)
    assert worker.contact.extended_s == float("-inf")


async def test_a_newer_hello_takes_the_place_of_an_older_one(lobby: Lobby) -> None:
    older, _ = await lobby.greet()
    newer, _ = await lobby.greet(number=2)
    assert lobby.registry.get(IDENTITY) is newer
    assert wire_of(older).bodies("error")[0]["code"] == "conflict"
    assert (wire_of(older).closed, wire_of(newer).closed) == (True, False)


async def test_a_hello_that_came_too_late_is_refused(lobby: Lobby) -> None:
    """A worker that gave up on it, and came again, would lose its new jobs."""
    job = await forge(lobby.connection, "RUNNING", locked_by=IDENTITY)
    worker, _ = await lobby.greet((job, 1), number=2)
    peer_session, line = lobby.peer_session(1)
    with pytest.raises(ProtocolError) as refused:
        await peer_session._greet_worker(hello(), 0)
    assert refused.value.code == "conflict"
    assert lobby.registry.get(IDENTITY) is worker
    assert line.sent == []
    assert (await read(lobby.connection, job))["status"] == "RUNNING"


def away() -> Store:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return Store(Target(f"postgresql://pulse@127.0.0.1:{probe.getsockname()[1]}/pulse", "pulse-tests"))


async def test_a_hello_while_the_database_is_away(lobby: Lobby, monkeypatch: Patch) -> None:
    """All that it lists is accepted; the database is asked before the next claim."""
    monkeypatch.setattr(visiting, "RECONCILE_S", 0.1)
    store = away()
    peer_session, line = lobby.peer_session(store=store)
    await peer_session._greet_worker(hello((bytes(16), 1)), 0)
    store.close()
    assert [welcome["lost"] for welcome in line.bodies("welcome")] == [None]
    assert list(found_of(lobby.registry.get(IDENTITY)).held) == [(bytes(16), 1)]


async def behind_a_claim(lobby: Lobby, peer_session: PeerSession, words: Hello) -> ProtocolError | None:
    """A hello while a claim is under way that never ends; why it was refused."""
    refused: list[ProtocolError] = []
    over = anyio.Event()

    async def greet() -> None:
        try:
            await peer_session._greet_worker(words, 0)
        except ProtocolError as error:
            refused.append(error)
        over.set()

    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks, lobby.claims.in_doubt._lock:
            tasks.start_soon(greet)
            await over.wait()
    return refused[0] if refused else None


async def test_a_hello_that_takes_too_long(lobby: Lobby, monkeypatch: Patch) -> None:
    """It does not wait for a claim that hangs: the worker would give up on it; then it is doubted."""
    monkeypatch.setattr(visiting, "RECONCILE_S", 0.1)
    peer_session, line = lobby.peer_session()
    assert await behind_a_claim(lobby, peer_session, hello((bytes(16), 1))) is None
    assert [welcome["lost"] for welcome in line.bodies("welcome")] == [None]
    assert lobby.claims.in_doubt._doubted == {IDENTITY}
    late, _ = lobby.peer_session(0)
    assert found_of(await behind_a_claim(lobby, late, hello())).code == "conflict"


async def test_who_connects_from_here_is_watched(lobby: Lobby) -> None:
    async with floor(lobby):
        with process() as living:
            peer = Peer(living.pid, 0, 0, 7, HOST.pidns)
            peer_session, _ = lobby.peer_session(peer=peer, pidfd=os.pidfd_open(living.pid))
            await peer_session._greet_worker(hello(), 0)
            assert peer_session._pidfd is None
            assert lobby.deaths.watched(compose(HOST, peer, NAME)) is peer_session._worker
        await lobby.greet()
        assert lobby.deaths.watched(IDENTITY) is None


async def test_a_pool_parent_takes_nobody_with_it(lobby: Lobby) -> None:
    """Its children end by themselves, and drain first: their group and mark protect them."""
    with process(start_new_session=True, env={**os.environ, "PULSE_TREE": "m" * 32}) as leader:
        until(lambda: process_tree.mark_of(leader.pid), "its environment")  # exec may not be through with that
        found = []
        for topics in ([TOPIC], []):
            peer_session, _ = lobby.peer_session(peer=Peer(leader.pid, 0, 0, 7, HOST.pidns))
            await peer_session._greet_worker(hello(topics=topics), 0)
            assert peer_session._worker is not None
            found.append((peer_session._worker.facts.leads_group, peer_session._worker.facts.mark))
    assert found == [(True, "m" * 32), (False, None)]
    with process() as member:
        peer_session, _ = lobby.peer_session(peer=Peer(member.pid, 0, 0, 7, HOST.pidns))
        await peer_session._greet_worker(hello(), 0)
        assert peer_session._worker is not None
        assert not peer_session._worker.facts.leads_group  # a shell's pipeline would die with it


async def test_whose_capacity_may_be_told(lobby: Lobby) -> None:
    """One's own; another session's by its own user or by root; 0 says that it is about to leave."""
    parent, child = new_worker("parent", uid=USER), new_worker("child", uid=USER)
    for one in (parent, child):
        lobby.registry.join(one)

    def tell(capacity: int, session: bytes | None, uid: int = USER) -> None:
        peer_session, _ = lobby.peer_session(peer=Peer(1, uid, 0, 7, HOST.pidns))
        peer_session._resize(parent, Capacity(capacity, session))

    tell(0, child.facts.session, USER + 1)
    tell(0, bytes(16))
    assert (parent.capacity, child.capacity, child.leaving) == (10, 10, False)
    tell(0, child.facts.session)
    assert (parent.capacity, child.capacity, child.leaving, parent.leaving) == (10, 0, True, False)
    tell(5, child.facts.session, 0)
    assert (child.capacity, child.leaving) == (5, False)
    tell(3, None)
    assert parent.capacity == 3
    tell(0, None)  # a handler may have had the process signalled: what it runs then is not excused
    assert (parent.capacity, parent.leaving) == (0, False)


async def test_what_a_heartbeat_does_not_list(lobby: Lobby) -> None:
    worker = new_worker("w")
    listed, unlisted = (bytes(16), 1), (bytes(15) + b"x", 1)
    worker.jobs.held = {listed: HeldJob("n", TOPIC), unlisted: HeldJob("n", TOPIC, unlisted=1)}
    worker.contact.beaten_s = 0.0

    def beat(session: bytes | None, *jobs: tuple[bytes, int]) -> None:
        body = protocol.Heartbeat(jobs=[Beat(*job) for job in jobs] if session is None else None, session=session)
        lobby.hears(worker, "heartbeat", body)

    beat(b"session")
    assert (worker.contact.beaten_s, worker.held[unlisted].unlisted) == (0.0, 1)
    for _ in range(2):
        beat(None, listed)
    assert (worker.held[listed].unlisted, worker.held[unlisted].unlisted) == (0, 3)
    beat(None, unlisted)
    assert worker.held[unlisted].unlisted == 0
    assert worker.contact.beaten_s > 0.0


async def test_a_heartbeat_older_than_the_frame_of_a_job(lobby: Lobby) -> None:
    """Says nothing of that job: only one that was sent when the frame had been read counts."""
    worker = new_worker("w")
    pair = (bytes(16), 1)
    worker.jobs.held = {pair: HeldJob("n", TOPIC, assign=2)}
    counts = list[int]()
    for assigns in (0, 1, 2, 3):
        lobby.hears(worker, "heartbeat", protocol.Heartbeat(jobs=[], assigns=assigns))
        counts.append(worker.held[pair].unlisted)
    assert counts == [0, 0, 1, 2]


async def test_a_checkpoint_is_no_heartbeat(lobby: Lobby) -> None:
    worker = new_worker("w")
    saved, other = (bytes(16), 1), (bytes(15) + b"x", 1)
    worker.jobs.held = {saved: HeldJob("n", TOPIC, unlisted=1), other: HeldJob("n", TOPIC)}
    worker.facts = replace(worker.facts, stalls={"n": 1.0})
    worker.contact.beaten_s = 0.0
    lobby.hears(worker, "checkpoint", *[protocol.Checkpoint(jobs=[Beat(*saved, "1")])] * 3)
    assert (worker.held[saved].unlisted, worker.held[other].unlisted, worker.contact.beaten_s) == (1, 0, 0.0)
    assert worker.held[saved].progress_s > 0.0
    assert worker.held[other].progress_s == 0.0


async def test_the_first_heartbeats_are_doubted(lobby: Lobby) -> None:
    peer_session, _ = lobby.peer_session()
    worker = new_worker("w")
    frame = Frame("heartbeat", 1, cast("Any", b""))
    peer_session._hear_worker(worker, frame, protocol.Heartbeat(jobs=None, session=bytes(16)))
    assert lobby.claims.in_doubt._doubted == set()
    for _ in range(2):
        peer_session._hear_worker(worker, frame, protocol.Heartbeat(jobs=[]))
        assert lobby.claims.in_doubt._doubted == {"w"}
        lobby.claims.in_doubt._doubted.clear()
    peer_session._hear_worker(worker, frame, protocol.Heartbeat(jobs=[]))
    assert lobby.claims.in_doubt._doubted == set()


async def test_a_process_brings_no_more_than_has_room(lobby: Lobby) -> None:
    """
    Its words wait for a statement, and beyond the limit the next is refused, on any connection.

    It sends them again. A refused result came in time, and a heartbeat at least proves that its worker lives.
    """
    services, worker, budget = lobby.services(), new_worker(IDENTITY), MemoryBudget(1500)
    lobby.registry.join(worker)
    worker.facts = replace(worker.facts, stalls={"n": 1.0})
    saved, told, ended = [(await lobby.running(worker), 1) for _ in range(3)]
    text = f'"{"x" * 600}"'
    peer_session, line = lobby.peer_session()
    other, _ = lobby.peer_session()
    for one in (peer_session, other):
        one._services, one._unwritten = services, budget

    def hear(kind: str, body: msgspec.Struct, at: PeerSession = peer_session, size_bytes: int = 600) -> None:
        assert at._hear_worker(worker, Frame(kind, 1, cast("Any", b"x" * size_bytes)), body)

    async def write(batcher: Batcher[Any]) -> None:
        await batcher._handle(batcher._take())

    checkpoint = protocol.Checkpoint(jobs=[Beat(*saved, text)])
    heartbeat = protocol.Heartbeat(jobs=[Beat(*saved), Beat(*told, text)])
    report = protocol.Report(results=[Result(*ended, "ok", text)])
    hear("checkpoint", checkpoint)
    for kind, body in (("checkpoint", checkpoint), ("report", report)):
        for at in (peer_session, other):
            with pytest.raises(UnavailableError, match=r"^32 MiB that this process has reported wait for"):
                hear(kind, body, at)
    assert len(services.heartbeats.checkpoints) == 1
    assert (len(services.reports.batcher), ended in lobby.registry.reporting) == (0, False)
    assert [worker.held[pair].ended for pair in (saved, told, ended)] == [False, False, True]
    assert worker.held[saved].progress_s > 0.0

    worker.contact.beaten_s, before = 0.0, (await read(lobby.connection, told[0]))["lease_until"]
    hear("heartbeat", heartbeat)
    assert worker.contact.beaten_s > 0.0
    with pytest.raises(UnavailableError, match="wait for the database"):
        hear("heartbeat", heartbeat)
    hear("heartbeat", heartbeat, other)
    await write(services.heartbeats.batcher)
    row = await read(lobby.connection, told[0])
    assert row["progress"] is None
    assert row["lease_until"] != before
    assert line.bodies("beat") == [{"lost": [], "kept": False}]  # it must send that again
    hear("heartbeat", heartbeat)
    for session in (b"a" * 16, b"b" * 16):  # of its children, of which it tells nothing else
        hear("heartbeat", protocol.Heartbeat(jobs=None, session=session))
        with pytest.raises(UnavailableError, match="wait for the database"):
            hear("heartbeat", protocol.Heartbeat(jobs=None, session=session))
    await write(services.heartbeats.batcher)
    assert [body.get("kept") for body in line.bodies("beat")] == [False, False, None, None]

    await write(services.heartbeats.checkpoints)
    hear("heartbeat", heartbeat)
    await write(services.heartbeats.batcher)
    assert (await read(lobby.connection, told[0]))["progress"] == text
    hear("report", report)
    assert ended in lobby.registry.reporting
    await write(services.reports.batcher)
    assert wire_of(worker).bodies("reported") == [{"stale": []}]
    hear("report", report, size_bytes=1500 - 512)


async def test_no_more_brief_heartbeats_wait_than_a_pool_has_children(lobby: Lobby, monkeypatch: Patch) -> None:
    monkeypatch.setattr(visiting, "MOST_BRIEF", 2)
    peer_session, _ = lobby.peer_session()
    assert peer_session._unwritten.try_reserve(2**30)
    frame, worker = Frame("heartbeat", 1, cast("Any", b"")), new_worker(IDENTITY)
    beats = [protocol.Heartbeat(jobs=None, session=session * 16) for session in (b"a", b"b", b"c")]
    for beat in beats[:2]:
        assert peer_session._hear_worker(worker, frame, beat)
    with pytest.raises(UnavailableError, match="wait for the database"):
        peer_session._hear_worker(worker, frame, beats[2])


async def test_what_the_database_does_not_take_leaves_its_room(lobby: Lobby) -> None:
    room = MemoryBudget(1)
    leases = HeartbeatWriter(away(), lobby.registry, HOST, lobby.claims.counters, lease_s=LEASE_S)
    assert room.try_reserve(5)
    wire = Wire()
    await leases._beat([PendingHeartbeat(wire, 1, 0, "w", None, [Beat(bytes(16), 1)], 0.0, partial(room.release, 5))])
    assert room.try_reserve(2)
    assert [kind for kind, _, _ in wire.sent] == ["error"]


async def test_all_connections_of_a_process_have_one_room(lobby: Lobby) -> None:
    met: list[tuple[MemoryBudget, object, object]] = []
    client = {"protocol": 1, "role": "client"}
    worker = {"protocol": 1, "role": "worker", "worker": NAME, "topics": [TOPIC], "names": ["n"], "capacity": 1}
    async with anyio.create_task_group() as tasks:
        for pid, body in ((1, client), (1, client), (2, client), (1, worker), (2, worker)):
            peer_session, line = lobby.peer_session(peer=Peer(pid, 0, 0, 7, HOST.pidns))
            await peer_session._greet(Frame("hello", 1, msgspec.Raw(msgspec.msgpack.encode(body))), tasks)
            met.append((peer_session._unwritten, line.limits, line.begun))
    (first, second, other, working, elsewhere), limits, rooms = zip(*met, strict=True)
    assert first is second
    assert len({first, other, working, elsewhere}) == 4
    assert limits[0] is limits[1]
    assert len({*limits}) == 4
    assert rooms[:3] == (None,) * 3, "they go on with what is their account's or address's"
    assert rooms[3] is not rooms[4]


def dispatcher(lobby: Lobby, **more: Any) -> Dispatcher:
    return cast("Dispatcher", SimpleNamespace(registry=lobby.registry, services=lobby.services(), **more))


@pytest.mark.parametrize("reconnect", [True, False])
async def test_a_drain(lobby: Lobby, reconnect: bool) -> None:
    """Before a successor nothing more is claimed; else each worker hears once that it must leave."""
    workers = [new_worker(name) for name in "ab"]
    for worker in workers:
        lobby.registry.join(worker)
    workers[0].leaving = True
    for _ in range(2):
        Dispatcher.drain(dispatcher(lobby), reconnect=reconnect)
    assert lobby.registry.closed is reconnect
    assert [worker.leaving for worker in workers] == [True, not reconnect]
    assert [wire_of(worker).bodies("drain") for worker in workers] == [[{"reconnect": reconnect, "replace": False}]] * 2
    Dispatcher.drain(dispatcher(lobby), reconnect=False)
    assert lobby.registry.closed is reconnect


async def test_policies_are_read_once_in_a_turn(lobby: Lobby) -> None:
    """For any number of hints: with a slow database one read for each would make a turn too long."""
    reads, counts = list[None](), list[int]()

    async def read() -> None:
        reads.append(None)

    actor = dispatcher(lobby, _read_policies=read, drain=lambda **_how: None)
    changed = (Hint("pause", "policies changed"),)
    for inbox in ((), changed * 5, (Hint("pause", "drain"), *changed), (Hint("p", "drain"),)):
        await Dispatcher.turn(actor, Turn(1.0, inbox))
        counts.append(len(reads))
    assert counts == [1, 2, 3, 3]


async def test_the_status_of_a_server_without_its_database() -> None:
    """What only the database knows is left out."""
    store = Store(Target("postgresql:///nobody?host=/nowhere", "pulse-tests"))
    told = await Dispatcher.status(cast("Dispatcher", SimpleNamespace(_store=store)))
    assert told.keys() == {"database"}


async def test_who_hears_that_leases_have_lapsed(lobby: Lobby) -> None:
    """Where nobody watches the processes of this host, it says only that there may be work."""
    woken, silent = list[None](), list[Sequence[str]]()

    async def lapsed(workers: Sequence[str]) -> None:
        silent.append(workers)

    claims = SimpleNamespace(signal=SimpleNamespace(wake=lambda: woken.append(None)))
    for host_workers in (SimpleNamespace(silent_workers=SimpleNamespace(lapsed=lapsed)), None):
        actor = dispatcher(lobby, host_workers=host_workers, claims=claims)
        await Dispatcher.turn(actor, Turn(1.0, (Hint("watchdog", "lapsed", {"workers": ["w"]}),)))
    assert (silent, woken) == ([["w"]], [None])


async def test_of_whom_the_kernel_can_tell(lobby: Lobby) -> None:
    here, elsewhere = Peer(7, 0, 0, 7, HOST.pidns), Peer(7, 0, 0, 7, HOST.pidns + 1)
    reception = Listener(lobby.services(), Settings())
    asked = (here, elsewhere, Peer(0, 0, 0, 0, HOST.pidns))
    assert [reception._knows(peer) for peer in asked] == [True, False, False]
    by_leases = cast("PeerServices", SimpleNamespace(process_watch=None, host=HOST))
    assert not Listener(by_leases, Settings())._knows(here)
