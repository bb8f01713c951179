"""Who may do what, on both real sockets: every kind under every role, by accounts that the kernel vouches for."""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import socket
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from pulse import protocol
from pulse.protocol.roles import Access
from pulse_actors.dispatcher.admission.connection_limits import MOST_BEFORE_HELLO, MOST_BEFORE_HELLO_OF_ALL
from pulse_actors.dispatcher.net.session import HELLO_DEADLINE_S, VIEWER_MAX_FRAME_BYTES
from pulse_supervisor.control.server import MOST_OF_ONE
from tests.support.checking.markdown import DOCS, section, table
from tests.support.servers.accounts import account, needs_root, stranger
from tests.support.servers.postgres import Postgres
from tests.support.systems.system import Peer, Refused, System, new_job, running
from tests.support.waiting import DEADLINE_S, until

pytestmark = [pytest.mark.postgres, pytest.mark.process, needs_root, pytest.mark.system]

ACCOUNTS: Final[Mapping[str, int]] = {role: 61_001 + number for number, role in enumerate(Access)}
GROUP: Final = 61_100
NOBODY: Final = 61_200
SETTINGS: Final = {
    "PULSE_ALLOW_USERS": ",".join(f"{uid}:{role}" for role, uid in ACCOUNTS.items()),
    "PULSE_ALLOW_GROUPS": f"{GROUP}:viewer",
    "PULSE_LISTEN": "127.0.0.1:0",
}
NOTED: Final = """
    SELECT detail->>'needs' AS needs FROM pulse.audit WHERE action = 'forbidden' AND detail->>'kind' = $1 AND uid = $2
"""
NO_ID: Final = b"\0" * 16
BODIES: Final[Mapping[str, dict[str, Any]]] = {
    "submit": {"jobs": [{"name": "n", "topic": "of a client"}]},
    **{f"jobs.{kind}": {"ids": [NO_ID]} for kind in ("cancel", "retry", "delete")}, "jobs.find": {"prefixes": ["00"]},
    "jobs.change": {"ids": [NO_ID], "priority": 1},
    **{f"jobs.{kind}": {"id": NO_ID} for kind in ("get", "parents", "why", "stack")},
    **{f"schedules.{kind}": {"id": NO_ID} for kind in ("get", "update", "delete", "pause", "resume", "trigger")},
    "schedules.find": {"words": ["k"]}, "schedules.preview": {"id": NO_ID},
    "schedules.create": {"name": "n", "cron": "@yearly"}, "schedules.declare": {"by": "nobody:app", "schedules": []},
    "dispatch.pause": {"topic": "nobody's"}, "dispatch.resume": {"topic": "nobody's"},
    "topics.get": {"topic": "nobody's"}, "topics.groups": {"topic": "nobody's"},
    "topics.set": {"topic": "nobody's", "max_attempts": 3},
    "topics.unset": {"topic": "nobody's"}, "actors.restart": {"name": "nobody"},
}  # fmt: skip


@pytest.fixture(scope="module")
def system(newest_server: Postgres) -> Iterator[System]:
    with newest_server.database() as dsn, running(dsn, SETTINGS) as made:
        made.runtime_dir.parent.chmod(0o711)
        yield made


def may(kind: str, role: str) -> bool:
    rows = table(section((DOCS / "protocol.md").read_text("utf-8"), "13. Roles"))
    return next(row[role] == "yes" for row in rows if row["kind"] == kind)


@contextlib.contextmanager
def come(path: Path, uid: int, *groups: int, role: str = "client", **hello: object) -> Iterator[Peer]:
    with account(uid, groups=groups):
        peer = Peer(path)
    with peer:
        peer.send("hello", 0, protocol=1, role=role, **hello)
        peer.welcome = peer.answer(0)
        yield peer


def code_of(peer: Peer, kind: str) -> str:
    try:
        peer.call(kind, **BODIES.get(kind, {}))
    except Refused as error:
        return error.code
    return "ok"


@pytest.mark.parametrize("role", Access)
def test_each_kind_takes_its_role(system: System, role: Access) -> None:
    for path, kinds in (
        (system.path, protocol.CLIENT_KINDS),
        (system.runtime_dir / "supervisor.sock", protocol.SUPERVISOR_KINDS),
    ):
        with come(path, ACCOUNTS[role]) as peer:
            forbidden = {kind for kind in kinds if code_of(peer, kind) == "forbidden"}
        assert forbidden == {kind for kind in kinds if not may(kind, role)}


@pytest.mark.parametrize("role", Access)
def test_only_a_worker_gets_jobs(system: System, role: Access) -> None:
    """Its hello is refused to all others; a client may not send a worker's kinds."""
    words = {"worker": "w", "topics": ["t"], "names": ["n"], "capacity": 1}
    if may("hello as worker", role):
        with come(system.path, ACCOUNTS[role], role="worker", **words) as peer:
            assert peer.welcome["lost"] == []
    else:
        with pytest.raises(Refused, match=r"^forbidden: hello as worker needs the role worker"):
            come(system.path, ACCOUNTS[role], role="worker", **words).__enter__()
    with come(system.path, ACCOUNTS[role]) as peer:
        for kind in protocol.WORKER_KINDS:
            assert code_of(peer, kind) == "bad_request"


@pytest.mark.parametrize("name", ["pulse.sock", "supervisor.sock"])
def test_a_stranger_gets_no_further_than_hello(system: System, name: str) -> None:
    with pytest.raises(Refused, match=rf"^forbidden: .* which uid {NOBODY} does not have \(has: none\)$"):
        come(system.runtime_dir / name, NOBODY, user="root", password="root").__enter__()
    with come(system.runtime_dir / name, NOBODY, 5, GROUP) as peer:
        assert peer.call("status")["actors"]


def test_one_account_keeps_nobody_out(system: System) -> None:
    path = system.runtime_dir / "supervisor.sock"

    def is_refused(role: str) -> bool:
        with account(ACCOUNTS[role]), contextlib.closing(Peer(path)) as refused:
            code: object = refused.expect("error")["code"]
        return code == "unavailable"

    with contextlib.ExitStack() as stack:
        for _ in range(MOST_OF_ONE):
            stack.enter_context(come(path, ACCOUNTS["viewer"]))
        assert is_refused("viewer")
        with come(path, ACCOUNTS["operator"]) as other:
            assert other.call("ping") == {}
        for role in ("client", "worker"):
            for _ in range(MOST_OF_ONE):
                stack.enter_context(come(path, ACCOUNTS[role]))
        assert is_refused("operator")  # several of them do not keep out root
        assert system.ask_supervisor("ping") == {}
    until(lambda: _comes_in(path, ACCOUNTS["viewer"]), "there is room again")


@pytest.mark.rest
def test_who_is_anywhere_keeps_nobody_out(system: System) -> None:
    def tcp(source: str) -> socket.socket:
        return socket.create_connection(("127.0.0.1", system.tcp_port), DEADLINE_S, (source, 0))

    dispatcher = psutil.Process(system.pids()["dispatcher"])
    at_rest = dispatcher.num_fds()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        began_s, idle, answers = -HELLO_DEADLINE_S, list[socket.socket](), list[bytes]()
        # again, if a busy machine took so long that the first are closed soon
        while time.monotonic() > began_s + HELLO_DEADLINE_S / 2:
            for one in idle:
                one.close()
            began_s = time.monotonic()
            idle = [
                stack.enter_context(tcp(f"127.0.1.{1 + number // MOST_BEFORE_HELLO}"))
                for number in range(MOST_BEFORE_HELLO_OF_ALL)
            ]
            more = [stack.enter_context(tcp("127.0.1.1")) for _ in range(2)]
            answers = [one.recv(1) for one in more]
        assert answers == [b"", b""]  # one source has no more than its share
        assert [line["source"] for line in system.log("connection_refused")].count("127.0.1.1") == 1
        with tcp("127.0.2.1") as late:
            assert idle[0].recv(1) == b""
            late.sendall(b"\x00\x00\x00\x01\xc1")
            assert b"bad_request" in late.recv(1000)
        for _ in range(2):
            with account(ACCOUNTS["client"]):
                stack.enter_context(contextlib.closing(Peer(system.path)))
        with come(system.path, ACCOUNTS["client"]) as client:
            assert client.call("ping") == {}
        for one in idle[1:3]:  # those of this machine take nobody's place
            one.setblocking(False)
            with pytest.raises(BlockingIOError):
                one.recv(1)
    until(lambda: dispatcher.num_fds() <= at_rest + 8, "their descriptors are free")


def test_the_servers_own_account_has_no_bound(system: System) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(MOST_BEFORE_HELLO):
            stack.enter_context(contextlib.closing(Peer(system.path)))
        assert _comes_in(system.path, os.getuid())


def _comes_in(path: Path, uid: int) -> bool:
    with account(uid), contextlib.closing(Peer(path)) as peer:
        peer.send("hello", 0, protocol=1, role="client")
        return peer.take(lambda _one: True, "an answer").kind == "welcome"


def test_a_viewer_sees_no_contents(system: System) -> None:
    job = new_job(topic="seen", args='{"card": 4711}')
    with come(system.path, ACCOUNTS["client"]) as client:
        client.submit(job)
        schedule = client.call("schedules.create", name="n", cron="@yearly", args='{"card": 4711}')["schedule"]["id"]
        answers = {}
        for who in ("viewer", "client"):
            with come(system.path, ACCOUNTS[who]) as peer:
                (listed,) = [one for one in peer.call("schedules.list")["schedules"] if one["id"] == schedule]
                answers[who] = [
                    peer.call("jobs.get", id=job["id"])["job"], peer.call("jobs.list", topic="seen")["jobs"][0],
                    peer.call("schedules.get", id=schedule)["schedule"], listed,
                ]  # fmt: skip
    assert ["4711" in str(answer) for answer in answers["client"]] == [True, True, True, True]
    assert ["4711" in str(answer) for answer in answers["viewer"]] == [False, False, False, False]
    assert [answer["concealed"] for answer in answers["viewer"]] == [True, True, True, True]
    assert not any("concealed" in answer for answer in answers["client"])


def test_frames_of_a_viewer_are_short(system: System) -> None:
    """It sends no payload: thousands of unfinished frames of 8 MiB would fill the memory."""
    size = (VIEWER_MAX_FRAME_BYTES + 1).to_bytes(4, "big")
    with come(system.path, ACCOUNTS["viewer"]) as viewer, come(system.path, ACCOUNTS["client"]) as client:
        viewer.send_bytes(size)
        assert viewer.expect("error")["code"] == "too_large"
        viewer.expect_end()
        client.submit(new_job(topic="long", args=f'{{"a": "{"x" * VIEWER_MAX_FRAME_BYTES}"}}'))


def test_a_refusal_is_noted_once(system: System) -> None:
    uid = ACCOUNTS["viewer"]
    for path, kind in ((system.path, "jobs.delete"), (system.runtime_dir / "supervisor.sock", "logs")):
        with come(path, uid) as peer:
            assert [code_of(peer, kind) for _ in range(20)] == ["forbidden"] * 20
        (row,) = until(functools.partial(system.rows, NOTED, kind, uid), "it is noted")
        assert row["needs"] == "operator"
        assert len(system.log("forbidden", kind=kind, uid=uid)) == 1


def test_the_sockets_are_there_for_all_only_where_others_may_come(system: System, newest_server: Postgres) -> None:
    """0666 in 0711, and back to 0600 for a server without such settings, which refuses others."""

    def modes() -> list[int]:
        places = (system.path, system.runtime_dir / "supervisor.sock", system.runtime_dir)
        return [stat.S_IMODE(place.stat().st_mode) for place in places]

    assert modes() == [0o666, 0o666, 0o711]
    with newest_server.database() as dsn, running(dsn) as other:
        assert stat.S_IMODE(other.path.stat().st_mode) == 0o600
        other.runtime_dir.parent.chmod(0o711)
        other.runtime_dir.chmod(0o711)
        for name in ("pulse.sock", "supervisor.sock"):
            with pytest.raises(PermissionError):
                come(other.runtime_dir / name, ACCOUNTS["operator"]).__enter__()
            (other.runtime_dir / name).chmod(0o666)
            with pytest.raises(Refused, match=r"^forbidden: "):
                come(other.runtime_dir / name, ACCOUNTS["operator"]).__enter__()


def test_identities_and_attempts_of_others_are_out_of_reach(system: System) -> None:
    """A worker under another account is another one: the same name takes over nothing, and ends nothing."""
    job = new_job(topic="mine", name="n")
    words = {"worker": "same", "topics": ["mine"], "names": ["n"], "capacity": 1}
    with system.client() as client, system.worker("same", topics=["mine"], names=["n"]) as mine:
        client.submit(job)
        mine.jobs(1)
        claimed = system.row(job["id"])
        pair = [job["id"], claimed["attempts"]]
        listed = {**words, "running": [pair], "session": mine.welcome["session"]}
        with stranger(ACCOUNTS["worker"], system.path) as connection, Peer(connection) as other:
            other.send("hello", 0, protocol=1, role="worker", **listed)
            other.welcome = other.answer(0)
            assert other.welcome["lost"] == [pair]
            assert other.welcome["session"] != mine.welcome["session"]
            assert other.call("report", results=[[*pair, "ok", '"forged"']]) == {"stale": [pair]}
            assert other.call("heartbeat", jobs=[[*pair, '"forged"']]) == {"lost": [pair]}
            other.call("heartbeat", session=mine.welcome["session"], jobs=None)
        assert system.row(job["id"]) == claimed  # its lease, too
        mine.done((job["id"], claimed["attempts"]))
        assert system.row(job["id"])["status"] == "COMPLETED"
