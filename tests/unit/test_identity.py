"""Who a worker is: made of what the kernel says, the same after a reconnect, another for another process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pulse import procs
from pulse_actors import identity
from pulse_actors.identity import Host, Peer

HOST = Host("host", "0123456789abcdef", 4026531836)


def test_the_identity_names_host_boot_namespace_process_and_worker() -> None:
    """locked_by holds everything that tells two processes apart, then the worker's own name."""
    peer = Peer(pid=42, uid=0, gid=0, start_time=777, pidns=4026531836)
    assert identity.compose(HOST, peer, "w-1") == "host/0123456789abcdef/4026531836/42.777/w-1"


def test_the_kernel_names_the_peer() -> None:
    """The peer of a socket is the process that connected, with its user, its start time and its pid namespace."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peer = identity.peer_of(ours)
    assert peer == Peer(os.getpid(), os.geteuid(), os.getegid(), procs.start_time(os.getpid()), procs.pid_namespace())


def test_this_host_is_the_same_each_time() -> None:
    """The host's name is made of the machine id, without showing it; a setting wins over it."""
    assert identity.this_host(None) == identity.this_host(None)
    assert identity.this_host("box-7") == Host("box-7", procs.boot_id()[:16], procs.pid_namespace())
    assert "/" not in identity.this_host(None).id


def test_the_machine_id_does_not_show(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The id of the machine itself appears nowhere in an identity."""
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
    """Where there is no machine id yet, the host's name stands in."""
    path = tmp_path / "machine-id"
    if content is not None:
        path.write_text(content, "latin-1")
    monkeypatch.setattr(identity, "_MACHINE_IDS", (path,))
    assert identity.this_host(None).id == socket.gethostname()[:64]


def test_sessions_differ_by_identity_and_by_boot() -> None:
    """A session is 16 bytes, the same whoever reckons it on this boot, another for another worker or boot."""
    session = identity.session_of(HOST, "a")
    assert len(session) == 16
    assert session == identity.session_of(HOST, "a")
    assert session != identity.session_of(HOST, "b")
    assert session != identity.session_of(Host("host", "f" * 16, HOST.pidns), "a")


def test_the_user_of_a_living_process() -> None:
    """An identity whose pid and start time are those of a living process has that process's user."""
    pid = os.getpid()
    peer = Peer(pid, 0, 0, procs.start_time(pid), procs.pid_namespace())
    assert identity.user_of(identity.compose(HOST, peer, "w")) == os.geteuid()


def test_the_user_of_a_dead_process_is_nobody() -> None:
    """Once the process is gone, or another has its pid, nobody stands behind the identity."""
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as child:
        peer = Peer(child.pid, 0, 0, procs.start_time(child.pid), 1)
        alive = identity.compose(HOST, peer, "w")
        assert identity.user_of(alive) == os.geteuid()
        assert identity.user_of(identity.compose(HOST, Peer(child.pid, 0, 0, 1, 1), "w")) is None
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert identity.user_of(alive) is None


@pytest.mark.parametrize(
    "text", ["", "w1", "a/b/c", "h/b/1/x.y/w", "h/b/1/1/w", "h/b/1/-1.5/w", "h/b/1/0.0/w", "h/b/1/1.x/w"]
)
def test_what_is_no_identity_has_no_user(text: str) -> None:
    """Text of another form, as a peer of another namespace or SQL may have left it, names nobody."""
    assert identity.user_of(text) is None
