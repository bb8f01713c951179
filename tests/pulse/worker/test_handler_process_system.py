"""A handler process by itself."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pulse.system import process_tree
from pulse.worker.options import HostOptions, PoolOptions, sent

pytestmark = [pytest.mark.process, pytest.mark.patient]


def test_a_spare_that_gets_no_name_ends() -> None:
    with run() as (process, unnamed):
        os.close(unnamed)
        assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 0


def test_a_template_without_a_pool_ends() -> None:
    """And forks nothing."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with run(theirs.fileno()) as (process, unnamed):
        theirs.close()
        assert ours.recv(100) == b"[]"
        ours.close()
        assert process.communicate(timeout=30) == ("", "")
        os.close(unnamed)
    assert process.returncode == 0


@contextlib.contextmanager
def run(*control_fd: int) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A handler process, or a template, and the descriptor from which it gets its name."""
    name, unnamed = os.pipe()
    notes, stacks = os.memfd_create("notes"), os.memfd_create("stacks")
    options = HostOptions(
        pool=PoolOptions(app="tests.support.apps.worker_app:app"),
        parent_pid=os.getpid(), name_fd=name, notes_fd=notes, stack_fd=stacks,
        control_fd=control_fd[0] if control_fd else None,
    )  # fmt: skip
    env = {**os.environ, process_tree.MARK: process_tree.new_mark()}
    with (
        sent(options) as told,
        subprocess.Popen(
            [sys.executable, "-m", "pulse.worker.handler_process", str(told)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env,
            pass_fds=(name, notes, stacks, told, *control_fd),
        ) as process,
    ):  # fmt: skip
        for descriptor in (name, notes, stacks):
            os.close(descriptor)
        yield process, unnamed
