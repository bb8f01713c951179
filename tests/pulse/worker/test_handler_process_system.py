"""A handler process by itself."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest

from pulse.worker.options import HostOptions, PoolOptions

pytestmark = [pytest.mark.process, pytest.mark.patient]


def test_a_spare_that_gets_no_name_ends() -> None:
    name, unnamed = os.pipe()
    notes, stacks = os.memfd_create("notes"), os.memfd_create("stacks")
    os.close(unnamed)
    options = HostOptions(
        pool=PoolOptions(app="tests.support.apps.worker_app:app"),
        parent_pid=os.getpid(), name_fd=name, notes_fd=notes, stack_fd=stacks,
    )  # fmt: skip
    command = [sys.executable, "-m", "pulse.worker.handler_process", msgspec.json.encode(options).decode()]
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, timeout=30, pass_fds=(name, notes, stacks), text=True
        )
    finally:
        for descriptor in (name, notes, stacks):
            os.close(descriptor)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
