"""A template that gets other descriptors than those that it needs."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from typing import NoReturn

import pytest

from pulse.worker.options import HostOptions, PoolOptions
from pulse.worker.pool import template
from pulse.worker.pool.child import ProcessFds
from pulse.worker.pool.template import Template


@pytest.fixture
def ends() -> Iterator[tuple[Template, socket.socket]]:
    """A template in this process, which gets its signal handlers back, and the pool's end of its socket."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
    before = [signal.getsignal(number) for number in numbers]
    control, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    options = HostOptions(pool=PoolOptions(app="x:y"), parent_pid=os.getpid(), name_fd=-1, notes_fd=-1, stack_fd=-1)
    with control, ours:
        yield Template(control, options), ours
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("missing", [1, len(ProcessFds._fields)])
def test_a_process_without_all_its_descriptors_is_not_forked(
    ends: tuple[Template, socket.socket], missing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel leaves some out where there is no room for more; of a pool that is gone none comes."""

    def fork_away() -> NoReturn:
        raise OSError("it was forked")

    monkeypatch.setattr(template, "fork_away", fork_away)
    made, ours = ends
    fds = [os.open(os.devnull, os.O_RDONLY) for _ in range(len(ProcessFds._fields) - missing)]
    assert not made._fork(b"mark", fds)
    assert ours.recv(1000) == b"[Errno 24] Too many open files"
    for fd in fds:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
