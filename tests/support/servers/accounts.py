"""
Connecting as another account: as root only, since the kernel names the account that connected.

``account`` changes this process for a moment; ``stranger`` is a process of its own, with another pid.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can connect as other accounts")


@contextlib.contextmanager
def account(uid: int, gid: int | None = None, groups: Sequence[int] = ()) -> Iterator[None]:
    """All connections made in here are of that account, to the other side, for as long as they live."""
    former_gid, former_groups = os.getegid(), os.getgroups()
    os.setgroups(groups)
    os.setegid(uid if gid is None else gid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(former_gid)
        os.setgroups(former_groups)


_STRANGER: Final = """
import os, socket, sys
uid, path, back = int(sys.argv[1]), sys.argv[2], socket.socket(fileno=int(sys.argv[3]))
os.setgroups([])
os.setgid(uid)
os.setuid(uid)
connection = socket.socket(socket.AF_UNIX)
connection.connect(path)
socket.send_fds(back, [b"x"], [connection.fileno()])
back.recv(1)
"""


@contextlib.contextmanager
def stranger(uid: int, path: Path) -> Iterator[socket.socket]:
    """A connection to *path* by a process of the account *uid*, which lives as long."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-c", _STRANGER, str(uid), str(path), str(theirs.fileno())]
    with ours, theirs, subprocess.Popen(command, pass_fds=[theirs.fileno()]) as process:
        theirs.close()
        _, (descriptor,), _, _ = socket.recv_fds(ours, 1, 1)
        try:
            yield socket.socket(fileno=descriptor)
        finally:
            ours.close()
            assert process.wait(10) == 0
