"""A process that forks another one for the ancestor that adopts orphans."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

LIMITED = (
    "import ctypes, os, resource, sys\n"
    "from pulse.system.fork import fork_away\n"
    "os.setresuid(61237, 61237, 61237)\n"
    "limit = int(sys.argv[1])\n"
    "resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))\n"
    "try:\n"
    "    fork_away()\n"
    "except OSError as error:\n"
    "    print(error, flush=True)\n"
    "os._exit(0)\n"
)
FORKS = (
    "import os\n"
    "from pulse.system import processes\n"
    "from pulse.system.fork import fork_away\n"
    "processes.adopt_orphans()\n"
    "own = os.getpid()\n"
    "os.register_at_fork(after_in_child=lambda: print('forked', flush=True))\n"
    "made = fork_away()\n"
    "if made is None:\n"
    "    os._exit(7 if os.getppid() == own else 8)\n"
    "print(processes.reap(made[1]))\n"
)


def run(code: str, *words: str) -> str:
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be a user without other processes")
@pytest.mark.parametrize("processes", [1, 2])
def test_no_process_can_be_made(processes: int) -> None:
    """Neither the one between the two, nor the one that is wanted."""
    assert run(LIMITED, str(processes)) == "[Errno 11] Resource temporarily unavailable\n"


def test_its_parent_is_the_ancestor_and_its_exit_code_is_known_there() -> None:
    """And hooks of the app run once."""
    assert run(FORKS) == "forked\n7\n"
