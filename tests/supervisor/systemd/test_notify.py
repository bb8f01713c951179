"""What the service manager hears, and where."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path

import pytest

from pulse_supervisor.systemd.notify import Notifier


@pytest.mark.parametrize("form", ["path", "abstract"])
def test_status_goes_to_the_socket_once(tmp_path: Path, form: str) -> None:
    path = str(tmp_path / "s") if form == "path" else f"@pulse-test-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path.replace("@", "\0"))
        manager.settimeout(10)
        notifier = Notifier({"NOTIFY_SOCKET": path})
        for status in ("up", "up", "a\nb"):
            notifier.status(status)
        notifier.extend_start(30.0)
        assert [manager.recv(100) for _ in range(3)] == [b"STATUS=up", b"STATUS=a b", b"EXTEND_TIMEOUT_USEC=30000000"]
        assert notifier.keep({})


def test_other_kinds_of_sockets_are_not_for_us() -> None:
    assert not Notifier({"NOTIFY_SOCKET": "vsock:2:1"}).keep({})
    assert not Notifier({}).keep({})


@pytest.mark.parametrize(
    ("pid", "microseconds", "heard"),
    [(0, "2000000", 2), (None, "2000000", 2), (1, "2000000", 0), (None, "0", 0), (None, "soon", 0)],
)
def test_the_watchdog_hears_at_half_its_interval(
    tmp_path: Path, pid: int | None, microseconds: str, heard: int
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "s"))
        manager.setblocking(False)
        env = {"NOTIFY_SOCKET": str(tmp_path / "s"), "WATCHDOG_USEC": microseconds}
        notifier = Notifier(env if pid is None else {**env, "WATCHDOG_PID": str(os.getpid() + pid)})
        for now_s in (0.0, 0.9, 1.0):
            notifier.alive(now_s)
        for _ in range(heard):
            assert manager.recv(100) == b"WATCHDOG=1"
        with pytest.raises(BlockingIOError):
            manager.recv(100)
