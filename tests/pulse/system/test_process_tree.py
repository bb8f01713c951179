"""Processes found by the mark that they inherited."""

from __future__ import annotations

import errno
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import psutil
import pytest
from anyio.lowlevel import checkpoint

from pulse.system import process_tree, processes
from tests.support.checking.descriptors import free_descriptors
from tests.support.waiting import DEADLINE_S, is_alive, until

DAEMON = """
import os, sys, time
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
sys.stdout.write(str(os.getpid()) + "\\n"); sys.stdout.flush(); os.close(1)
time.sleep(60)
"""


def test_a_daemon_is_found_by_its_mark() -> None:
    mark, other = process_tree.new_mark(), process_tree.new_mark()
    daemons: list[int] = []
    for one in (mark, other):
        env = {**os.environ, process_tree.MARK: one}
        done = subprocess.run([sys.executable, "-c", DAEMON], env=env, stdout=subprocess.PIPE, check=True)
        daemons.append(int(done.stdout))
    assert [process_tree.mark_of(daemon) for daemon in daemons] == [mark, other]
    try:
        assert process_tree.kill_tree(mark) == 1
        assert not is_alive(daemons[0])
        assert is_alive(daemons[1])
        assert process_tree.kill_tree(mark) == 0
    finally:
        process_tree.kill_tree(other)


@pytest.mark.parametrize("length", [0, 16 * 1024, 100_000])
def test_the_mark_is_found_in_an_environment_of_any_length(length: int) -> None:
    mark = process_tree.new_mark()
    with subprocess.Popen(["sleep", "60"], env={"FIRST": "x" * length, process_tree.MARK: mark}) as process:
        until(lambda: process_tree.mark_of(process.pid) == mark, "its environment")
        process.kill()


@pytest.mark.parametrize("free", [0, 1])
def test_a_tree_is_not_over_while_nobody_can_look(free: int) -> None:
    """It needs a descriptor for the list of processes, and two for a process that it will kill."""
    mark = process_tree.new_mark()

    async def run() -> int:
        turns = itertools.count()
        ended: list[int] = []

        async def end() -> None:
            ended.append(await process_tree.end_tree(mark))

        async with anyio.create_task_group() as tasks:
            with free_descriptors(free):
                tasks.start_soon(end)
                while next(turns) < 100:
                    await checkpoint()
                assert not ended
        return ended[0]

    env = {**os.environ, process_tree.MARK: mark}
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=env) as child:
        until(lambda: process_tree.mark_of(child.pid) == mark, "it has its mark")
        assert anyio.run(run) == 1


@pytest.mark.parametrize("code", [errno.ESRCH, errno.EINVAL, errno.EPERM, errno.EMFILE])
def test_a_process_that_cannot_be_opened(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is gone, or just going, is passed over; without a descriptor nobody knows."""

    def refuse(_pid: int) -> int:
        raise OSError(code, os.strerror(code))

    mark = process_tree.new_mark()
    with subprocess.Popen(["sleep", "60"], env={process_tree.MARK: mark}) as process:
        until(lambda: process_tree.mark_of(process.pid) == mark, "its environment")
        with monkeypatch.context() as patch:
            patch.setattr(os, "pidfd_open", refuse)
            if code == errno.EMFILE:
                with pytest.raises(OSError, match="Too many open files"):
                    process_tree.kill_tree(mark)
            else:
                assert process_tree.kill_tree(mark) == 0
        process.kill()


def test_descriptors_are_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_tree, "_SCARCE_S", 0.0)

    async def run() -> None:
        with free_descriptors(0), anyio.fail_after(5):
            await process_tree.end_tree(process_tree.new_mark())

    with pytest.raises(OSError, match="Too many open files"):
        anyio.run(run)


def test_what_cannot_be_looked_at_is_not_dead() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    named = [(pid, processes.start_time(pid)) for pid in (os.getpid(), gone.pid)]
    gone.wait()
    with free_descriptors(0):
        assert [processes.lives(*one) for one in named] == [True, False]


SLOW_TO_DIE = "import sys, time; kept = b'x' * 300_000_000; print(flush=True); time.sleep(60)"


def end_tree(mark: str) -> int:
    async def run() -> int:
        turns = itertools.count()
        count = 0

        async def others() -> None:
            while next(turns) >= 0:
                await checkpoint()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(others)
            count = await process_tree.end_tree(mark)
            assert next(turns) > 1
            tasks.cancel_scope.cancel()
        return count

    return anyio.run(run)


@pytest.mark.parametrize("kill", [process_tree.kill_tree, end_tree])
def test_what_is_killed_is_dead(kill: Callable[[str], int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only signalled: its successor may begin."""
    monkeypatch.setattr(process_tree, "_DEATH_S", DEADLINE_S)  # a busy machine may need more than a second for it
    mark = process_tree.new_mark()
    env = {**os.environ, process_tree.MARK: mark}
    with subprocess.Popen([sys.executable, "-c", SLOW_TO_DIE], env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert kill(mark) == 1
        assert not is_alive(process.pid)


@pytest.mark.parametrize("kill", [process_tree.kill_tree, end_tree])
def test_others_go_on_while_many_are_looked_at(kill: Callable[[str], int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A large machine has thousands; a process without others reads them in one go."""
    monkeypatch.setattr(process_tree, "_SLICE", 1)
    assert kill(process_tree.new_mark()) == 0


@pytest.mark.parametrize("kill", [process_tree.kill_tree, end_tree])
def test_one_that_does_not_die_is_not_waited_for_for_ever(
    kill: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = process_tree.new_mark()
    monkeypatch.setattr(process_tree, "_DEATH_S", 0.01)
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda _pidfd, _number: None)
    with subprocess.Popen(["sleep", "5"], env={process_tree.MARK: mark}) as process:
        until(lambda: process_tree.mark_of(process.pid) == mark, "its environment")
        assert kill(mark) == 1
        assert process.poll() is None
        process.kill()


def test_a_branch_is_a_part_of_its_tree() -> None:
    """The end of a branch spares the rest, the end of the tree does not; a longer mark is another's."""
    mark = process_tree.new_mark()
    branch = process_tree.branch_of(mark)
    tree, part, other_part, other = Echo(mark), Echo(branch), Echo(process_tree.branch_of(mark)), Echo(f"{mark}0")
    assert process_tree.kill_tree(branch) == 1
    assert part.ends()
    assert process_tree.kill_tree(mark) == 2
    assert tree.ends()
    assert other_part.ends()
    assert not other.ends()


def test_what_is_no_mark_of_ours_ends_nobody() -> None:
    """A process may write anything into its environment: a part of a mark is not the tree of all marks."""
    mark = process_tree.new_mark()
    other = Echo(mark)
    pidns, pid, start_time, secret = mark.split(".")
    for begin in (pidns, f"{pidns}.{pid}", f"{pidns}.{pid}.{start_time}", f"{pidns}.{pid}.{start_time}.{secret[:8]}"):
        assert process_tree.kill_tree(begin) == 0
    assert not other.ends()


LEADER = """
import subprocess, sys
inside = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL, env={}, process_group=0)
outside = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL, env={}, start_new_session=True)
print(inside.pid, outside.pid, flush=True)
inside.wait()
"""


def test_a_session_is_more_than_a_group() -> None:
    """Groups of its own and another environment do not help; a session of its own does."""
    with subprocess.Popen([sys.executable, "-c", LEADER], stdout=subprocess.PIPE, start_new_session=True) as leader:
        assert leader.stdout is not None
        inside, outside = (psutil.Process(int(pid)) for pid in leader.stdout.readline().split())
        until(lambda: os.getsid(outside.pid) == outside.pid, "a session of its own")
        assert os.getpgid(inside.pid) != leader.pid
        assert process_tree.kill_tree(process_tree.new_mark(), leader.pid) == 2
        assert leader.wait() == -signal.SIGKILL
        assert not is_alive(inside.pid)
        assert is_alive(outside.pid)
        outside.kill()


@pytest.fixture
def forking(monkeypatch: pytest.MonkeyPatch) -> Iterator[Forking]:
    """Processes that fork in the last moment: after the list was made, before the signal."""
    found = Forking(process_tree.new_mark(), signal.pidfd_send_signal)
    monkeypatch.setattr(signal, "pidfd_send_signal", found.send_signal)
    yield found
    for process in found.processes:
        process.kill()
        process.wait()


@pytest.mark.parametrize("forks", [0, 1, 3])
def test_what_forks_while_it_is_killed_dies_too(forking: Forking, forks: int) -> None:
    forking.left = forks
    forking.start()
    assert process_tree.kill_tree(forking.mark) == forks + 1
    assert [process.wait() for process in forking.processes] == [-signal.SIGKILL] * (forks + 1)


def test_the_look_that_finds_none_is_the_last(forking: Forking, monkeypatch: pytest.MonkeyPatch) -> None:
    everybody, looks = process_tree._everybody, list[set[int]]()

    def look() -> set[int]:
        looks.append(everybody())
        return looks[-1]

    monkeypatch.setattr(process_tree, "_everybody", look)
    forking.start()
    assert process_tree.kill_tree(forking.mark) == 1
    assert len(looks) == 2


def test_the_looks_are_bounded(forking: Forking) -> None:
    forking.left = 100
    forking.start()
    assert process_tree.kill_tree(forking.mark) == process_tree._MAX_PASSES


class Forking:
    """See the fixture; the first *left* that are killed leave another one."""

    def __init__(self, mark: str, send_signal: Callable[[int, int], None]) -> None:
        self.mark = mark
        self.left = 0
        self.processes: list[subprocess.Popen[bytes]] = []
        self._send_signal = send_signal

    def start(self) -> None:
        self.processes.append(subprocess.Popen(["sleep", "60"], env={process_tree.MARK: self.mark}))
        until(lambda: process_tree.mark_of(self.processes[-1].pid) == self.mark, "its environment")

    def send_signal(self, pidfd: int, number: int) -> None:
        about = Path(f"/proc/self/fdinfo/{pidfd}").read_text()
        if self.left and f"\nPid:\t{self.processes[-1].pid}\n" in about:
            self.left -= 1
            self.start()
        self._send_signal(pidfd, number)


@pytest.mark.parametrize("env", [{}, {process_tree.MARK: ""}])
def test_no_mark(env: dict[str, str]) -> None:
    assert process_tree.mark_of(2**22 + 1) is None
    with subprocess.Popen(["sleep", "60"], env=env) as process:
        assert process_tree.mark_of(process.pid) is None
        process.kill()


def looked_at(
    process: subprocess.Popen[bytes], looks: list[Callable[[], bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let each look at the environment of *process* find the next of *looks*; others are as they are."""
    environment = process_tree._environment
    monkeypatch.setattr(
        process_tree, "_environment", lambda pid: looks.pop(0)() if pid == process.pid else environment(pid)
    )


def test_a_pid_that_was_used_again_is_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = process_tree.new_mark()
    marked = f"{process_tree.MARK}={mark}".encode()
    with subprocess.Popen(["sleep", "60"], env={}) as process:

        def reused() -> bytes:  # it is open by now
            process.kill()
            process.wait()
            return marked

        looks = [lambda: marked, reused]
        looked_at(process, looks, monkeypatch)
        assert process_tree.kill_tree(mark) == 0
        assert looks == []


def test_a_pid_that_was_used_again_before_it_was_opened_is_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = process_tree.new_mark()
    with subprocess.Popen(["sleep", "60"], env={}) as process:
        looked_at(process, [f"{process_tree.MARK}={mark}".encode, lambda: b"HOME=/"], monkeypatch)
        assert process_tree.kill_tree(mark) == 0
        assert process.poll() is None
        process.kill()


def test_a_process_that_is_being_exec_ed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two images it has a program and no environment: it is read again, but not for ever."""
    environment = process_tree._environment
    looks: list[int] = []
    blanks: list[bytes] = []

    def look(pid: int) -> bytes:
        looks.append(pid)
        return blanks.pop() if blanks else environment(pid)

    monkeypatch.setattr(process_tree, "_environment", look)
    with subprocess.Popen(["sleep", "60"], env={process_tree.MARK: "m"}) as process:
        until(lambda: environment(process.pid), "its environment")
        for blank, found, count in ((0, "m", 1), (3, "m", 4), (99, None, 5)):
            looks.clear()
            blanks[:] = [b""] * blank
            assert process_tree.mark_of(process.pid) == found
            assert len(looks) == count
        process.kill()
        until(lambda: not is_alive(process.pid), "its end")
        looks.clear()
        blanks.clear()
        assert process_tree.mark_of(process.pid) is None
        assert len(looks) == 1  # a zombie has nothing to wait for


def test_an_empty_environment_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays empty: each such process of a machine would delay every recovery."""
    looks: list[Callable[[], bytes]] = [lambda: b""]
    with subprocess.Popen(["sleep", "60"], env={}) as process:
        until(lambda: processes.has_empty_environment(process.pid), "its program")
        looked_at(process, looks, monkeypatch)
        assert process_tree.mark_of(process.pid) is None
        assert looks == []
        process.kill()


PARENT = """
import subprocess, sys
from pulse.system import process_tree
def start(mark):
    return str(subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL, env={process_tree.MARK: mark}).pid)
mark = process_tree.new_mark()
sys.stdout.write(" ".join(map(start, [mark, process_tree.branch_of(mark)])))
"""


def test_what_a_dead_pool_parent_left_is_killed() -> None:
    """Its trees have no other owner; those of living parents have, and of other marks nothing is known."""
    done = subprocess.run([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, check=True)
    orphans = [int(pid) for pid in done.stdout.split()]
    others = [
        Echo(mark)
        for mark in (process_tree.new_mark(), process_tree.branch_of(process_tree.new_mark()), "somebody's", "1.2.3")
    ]
    process_tree.kill_orphans()
    until(lambda: not any(map(is_alive, orphans)), "they are dead")
    assert [other.ends() for other in others] == [False] * 4


def orphans_are(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], bool]:
    """The marks of orphans; nothing is killed."""
    asked: list[Callable[[str], bool]] = []

    def note(condemned: Callable[[str], bool]) -> Callable[[int], bool]:
        asked.append(condemned)
        return lambda _pid: False

    monkeypatch.setattr(process_tree, "_marked", note)
    process_tree.kill_orphans()
    return asked[0]


def test_whose_pool_parent_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only in this pid namespace: numbers of processes mean nothing outside of theirs."""
    condemned = orphans_are(monkeypatch)
    living = process_tree.new_mark()
    for mark in (living, process_tree.branch_of(living), "somebody's", "1.2.3", "1.4194305.1.00"):
        assert not condemned(mark), mark
    assert condemned(f"{processes.pid_namespace()}.4194305.1.00")


@pytest.fixture
def orphaned(monkeypatch: pytest.MonkeyPatch) -> str:
    """This process is one that a handler of a dead pool has left."""
    mark, mark_of = f"{processes.pid_namespace()}.4194305.1.00", process_tree.mark_of
    monkeypatch.setattr(process_tree, "mark_of", lambda pid: mark if pid == os.getpid() else mark_of(pid))
    return mark


def test_its_own_tree_is_spared(orphaned: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that a handler has started as a daemon does not end itself when that handler's pool is gone."""
    condemned = orphans_are(monkeypatch)
    others = (f"{orphaned}0", f"{orphaned}0.11", f"{orphaned}.11")
    assert [condemned(mark) for mark in (orphaned, *others)] == [False, True, True, True]


@pytest.mark.usefixtures("orphaned")
def test_who_has_no_mark_is_no_orphan() -> None:
    process_tree.kill_orphans()


class Echo:
    """A process that carries a mark, and reports whether it was killed."""

    def __init__(self, mark: str) -> None:
        self._process = subprocess.Popen(
            ["cat"], env={process_tree.MARK: mark}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ends(self) -> bool:
        """Whether it was killed already; else it ends by itself now."""
        try:
            said, _ = self._process.communicate("here")
        except BrokenPipeError:
            said = ""
        return said != "here"
