"""A worker's identity: made by the kernel's facts, the same after a reconnect, another for another process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pulse.system import processes
from pulse_actors.shared import identity
from pulse_actors.shared.identity import Host, Peer

HOST = Host("host", "0123456789abcdef", 4026531836)
NOBODY = 65534  # a uid that owns no process


def test_the_identity_names_host_boot_namespace_process_and_worker() -> None:
    peer = Peer(pid=42, uid=0, gid=0, start_time=777, pidns=4026531836)
    assert identity.compose(HOST, peer, "w-1") == "host/0123456789abcdef/4026531836/42.777/w-1"


def test_a_process_that_cannot_be_seen_is_told_apart_by_its_account() -> None:
    """All of other pid namespaces have pid 0: the name of another's worker does not make it that worker."""
    ann, bob = (identity.compose(HOST, Peer(0, uid, uid, 0, 0), "w-1") for uid in (1000, 1001))
    assert ann != bob
    assert identity.process_of(HOST, ann) is None


def test_the_kernel_names_the_peer() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peer = identity.peer_of(ours)
    assert peer == Peer(
        os.getpid(), os.geteuid(), os.getegid(), processes.start_time(os.getpid()), processes.pid_namespace()
    )


def test_this_host_is_the_same_each_time() -> None:
    assert identity.this_host(None) == identity.this_host(None)
    assert identity.this_host("box-7") == Host("box-7", processes.boot_id()[:16], processes.pid_namespace(), "box-7")
    assert "/" not in identity.this_host(None).id


def test_the_machine_id_does_not_show(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    secret = "5c2f9c1a7e6d4b3f8a9b0c1d2e3f4a5b"
    (tmp_path / "machine-id").write_text(f"{secret}\n")
    monkeypatch.setattr(identity, "_MACHINE_IDS", (tmp_path / "none", tmp_path / "machine-id"))
    name = identity.this_host(None).id
    assert len(name) == 12
    assert name not in secret


@pytest.mark.parametrize("content", [None, "", "uninitialized\n", "\xff\n"])
def test_without_a_machine_id_the_host_name_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "machine-id"
    if content is not None:
        path.write_text(content, "latin-1")
    monkeypatch.setattr(identity, "_MACHINE_IDS", (path,))
    here = identity.this_host(None)
    assert here.id == here.name == socket.gethostname()[:64]


def test_the_name_of_this_host_is_the_one_that_its_operator_gave_it() -> None:
    assert identity.this_host("alpha").name == "alpha"
    assert identity.this_host(None).name == socket.gethostname()[:64]


def test_sessions_differ_by_identity_and_by_boot() -> None:
    session = identity.session_of(HOST, "a")
    assert len(session) == 16
    assert session == identity.session_of(HOST, "a")
    assert session != identity.session_of(HOST, "b")
    assert session != identity.session_of(Host("host", "f" * 16, HOST.pidns), "a")


def identity_of(pid: int, *, start_time: int | None = None, host: Host = HOST) -> str:
    began = processes.start_time(pid) if start_time is None else start_time
    return identity.compose(host, Peer(pid, 0, 0, began, host.pidns), "w")


def test_the_user_of_a_dead_process_is_nobody() -> None:
    """Also of a zombie."""
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as child:
        alive = identity_of(child.pid)
        seen = identity.user_of(HOST, alive)
        child.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        as_zombie = identity.user_of(HOST, alive)
    assert (seen, as_zombie, identity.user_of(HOST, alive)) == (os.geteuid(), None, None)
    assert identity.user_of(HOST, identity_of(os.getpid(), start_time=1)) is None  # a pid that is used again


@pytest.mark.parametrize("host", [
    Host("other", HOST.boot, HOST.pidns),
    Host(HOST.id, "other", HOST.pidns),
    Host(HOST.id, HOST.boot, HOST.pidns + 1),
])  # fmt: skip
def test_processes_elsewhere_cannot_be_seen(host: Host) -> None:
    elsewhere = identity_of(os.getpid(), host=host)
    assert identity.process_of(HOST, elsewhere) is None
    assert identity.user_of(HOST, elsewhere) is None
    assert identity.process_of(host, elsewhere) == (os.getpid(), processes.start_time(os.getpid()))


@pytest.mark.parametrize(
    "text",
    [*("", "w1", "a/b/c", "h/b/1/x.y/w", "h/b/1/1/w", "h/b/1/1.x/w"), *("h/b/1/0.0/w", "h/b/1/-1.0/w", "h/b/1/-1.5/w")],
)
def test_what_names_no_process(text: str) -> None:
    """Zero is a peer of another namespace; to a signal, it and all below would mean many processes."""
    assert identity.process_of(Host("h", "b", 1), text) is None
    assert identity.user_of(Host("h", "b", 1), text) is None


def test_an_older_kernel_names_the_peer_by_pid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a pidfd of the peer, its pid is opened, and the start time compared."""
    for option in (identity.SO_PEERPIDFD, 2**15):  # no kernel has the second
        monkeypatch.setattr(identity, "SO_PEERPIDFD", option)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            pidfd = identity.pidfd_of(ours, identity.peer_of(ours))
        assert pidfd is not None
        assert f"Pid:\t{os.getpid()}\n" in Path(f"/proc/self/fdinfo/{pidfd}").read_text("ascii")
        os.close(pidfd)


def test_a_pid_that_was_used_again_is_not_the_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of that pid with another start time: no pidfd, and none is left open."""
    monkeypatch.setattr(identity, "SO_PEERPIDFD", 2**15)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peer = replace(identity.peer_of(ours), start_time=1)
        before = len([*os.scandir("/proc/self/fd")])
        assert identity.pidfd_of(ours, peer) is None
        assert len([*os.scandir("/proc/self/fd")]) == before


@pytest.mark.parametrize(
    ("how", "leads"),
    [({}, False), ({"process_group": 0}, False), ({"start_new_session": True}, True)],
    ids=["neither", "group", "session"],
)
def test_who_leads_a_group_that_may_be_killed_with_it(how: dict[str, Any], leads: bool) -> None:
    """Only a process that leads a session: a group alone may be a shell's pipeline."""
    with subprocess.Popen(["sleep", "60"], **how) as child:
        found = identity.leads_group(child.pid)
        child.kill()
    assert found is leads


def test_who_is_in_hand() -> None:
    assert identity.is_in_hand(HOST, identity_of(os.getpid()))
    assert not identity.is_in_hand(HOST, identity_of(os.getpid(), start_time=1))
    assert not identity.is_in_hand(HOST, identity_of(os.getpid(), host=Host("other", HOST.boot, HOST.pidns)))
    assert not identity.is_in_hand(HOST, "somebody")


def test_another_users_process_is_not_in_hand() -> None:
    """This process cannot signal it, so only the lease of such a worker counts."""
    if os.geteuid() != 0 and Path("/proc/1").stat().st_uid == os.geteuid():
        pytest.skip("there is no process of another user here")
    foreign = identity_of(os.getpid() if os.geteuid() == 0 else 1)
    child = os.fork()
    if child == 0:
        if os.geteuid() == 0:
            os.setuid(NOBODY)
        os._exit(identity.user_of(HOST, foreign) is None or 2 * identity.is_in_hand(HOST, foreign))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_peer_that_is_gone() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not identity.is_gone(Peer(child.pid, 0, 0, 0, HOST.pidns))
    assert identity.is_gone(Peer(child.pid, 0, 0, 0, HOST.pidns))
    assert not identity.is_gone(Peer(child.pid, 0, 0, 7, HOST.pidns))  # it was there when it was looked at
    assert not identity.is_gone(Peer(0, 0, 0, 0, 0))
    assert not identity.is_gone(Peer(os.getpid(), 0, 0, processes.start_time(os.getpid()), HOST.pidns))


def test_who_comes_over_tcp() -> None:
    session, other = identity.new_session(), identity.new_session()
    mine = identity.compose_remote("ann/x", session, "w1")
    assert session != other
    assert mine == identity.compose_remote("ann/x", session, "w1")
    assert mine.startswith("tcp:ann%2Fx/")
    assert session.hex() not in mine
    assert (
        len({mine, identity.compose_remote("ann/x", other, "w1"), identity.compose_remote("bob", session, "w1")}) == 3
    )
    assert [identity.is_remote(one) for one in (mine, identity_of(os.getpid()))] == [True, False]
    assert identity.key_of(HOST, mine) == identity.mark_of(session) != identity.mark_of(other)
    local = identity_of(os.getpid())
    assert identity.key_of(HOST, local) == identity.session_of(HOST, local)
    assert identity.parse(mine) is None
    assert identity.process_of(HOST, mine) is None


@pytest.mark.parametrize(("given", "is_one"), [(bytes(16), True), (bytes(15), False), (b"", False), (None, False)])
def test_what_is_a_session(given: bytes | None, is_one: bool) -> None:
    assert identity.is_session(given) is is_one
