"""The kernel's facts about processes, and about memory that ran out."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from pulse.system import processes
from pulse.system.processes import OomKills

CHILD: Final = """
import os, signal, sys
from pulse.system import processes
signal.alarm(30)  # the test has failed by then
processes.die_with_parent(int(sys.argv[1]), signal.SIGKILL)
os.write(1, b"x")
signal.pause()
"""
PARENT: Final = "import os, subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1], str(os.getpid())])"


def test_a_child_ends_with_its_parent() -> None:
    """However that ends; the end of the child closes the pipe."""
    with subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.read(1) == b"x"
        parent.kill()
        assert select.select([parent.stdout], [], [], 10)[0], "the child lives"
        assert parent.stdout.read() == b""


def test_a_count_that_grew(tmp_path: Path) -> None:
    events = tmp_path / "memory.events"
    events.write_text("low 0\noom 9\noom_kill 3\noom_group_kill 8\n")
    noted = OomKills(events, 3)
    assert not noted.grew()
    events.write_text("low 0\noom 9\noom_kill 4\noom_group_kill 8\n")
    assert noted.grew()
    assert noted.again() == OomKills(events, 4)
    assert not noted.again().grew()
    events.unlink()
    assert not noted.grew()


def test_every_process_has_a_count() -> None:
    """Its memory cgroup's, where there is one that counts, else the machine's."""
    found = processes.oom_kills(os.getpid())
    assert found is not None
    assert found.path.name in {"memory.events", "memory.oom_control", "vmstat"}
    assert found.path == Path("/proc/vmstat") or found.path.parent.joinpath("cgroup.procs").exists()


def test_a_group_seen_through_a_mount() -> None:
    """A container mounts its own group as the root, and may see its name from outside, or from inside."""
    assert processes._inside("/sys/fs/cgroup/memory", "/", "/a/b") == Path("/sys/fs/cgroup/memory/a/b")
    assert processes._inside("/sys/fs/cgroup/memory", "/a", "/a/b") == Path("/sys/fs/cgroup/memory/b")
    assert processes._inside("/sys/fs/cgroup", "/", "/") == Path("/sys/fs/cgroup")


def test_threads_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have no program; a process with their parent's number in a pid namespace of its own is none."""
    for pid in processes.kernel_threads():
        assert not Path(f"/proc/{pid}/cmdline").read_bytes()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        assert child.pid in processes.own_children()
        monkeypatch.setattr(processes, "_KTHREADD", os.getpid())
        assert processes.kernel_threads() == set()
        child.communicate()


def test_a_process_that_is_gone() -> None:
    assert processes._memory_files(2**22 + 1) == []
    assert processes.threads(2**22 + 1) == []
    assert not processes.is_blocking(2**22 + 1, 2**22 + 1, 1)
    assert not processes.is_pending(2**22 + 1, 2**22 + 1, 1)
    with pytest.raises(ProcessLookupError, match="tgkill"):
        processes.signal_thread(2**22 + 1, 2**22 + 1, 0)


def test_how_a_process_ended_that_nobody_has_reaped() -> None:
    with subprocess.Popen(["sh", "-c", "exit 3"]) as child:
        pidfd = os.pidfd_open(child.pid)
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT)
        assert processes.exit_status(child.pid, pidfd) == 3 << 8
        os.close(pidfd)


def test_what_a_process_uses() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"1")
        assert child.stdout.read(1) == b"1"  # just after its exec it would have no memory
        found = processes.facts(child.pid)
        assert found is not None
        assert found.cpu_s < 1 < found.rss_bytes
        assert found.uptime_s < 60
        child.communicate()
    mine = processes.facts(os.getpid())
    assert mine is not None
    assert (mine.state, mine.cpu_s > 0) == ("R", True)
    assert processes.facts(2**22 + 1) is None
