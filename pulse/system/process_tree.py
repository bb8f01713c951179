"""
Finds a handler process and all that its handlers have started, by a mark in the environment.

A child with a session of its own (a daemon) is not in the worker's process group, and once its parent is dead nothing
links it to the worker. But every process inherits the environment, unless it is changed on purpose: the pool parent
puts a mark into each child's. The mark names the pool parent, so that leftovers are recognised after it was killed,
too.

A part of a tree that may end before the rest has a mark of its own: the tree's, a dot and more.
"""

from __future__ import annotations

import os
import re
import secrets
import select
import signal
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import anyio
from anyio.lowlevel import checkpoint

from pulse.system import processes

MARK: Final = "PULSE_TREE"  # name of the environment variable
_MARK_BYTES: Final = 16
_MAX_PASSES: Final = 10  # two are the rule; what forks faster than this can only be held by a cgroup
_DEATH_S: Final = 1.0  # a process that takes longer to die waits for a disk, or is frozen
_SLICE: Final = 100  # processes that are looked at before others may go on: less than a millisecond
_SCARCE_S: Final = 10.0  # then the process that asks must end, and give its own descriptors back
_SCARCE_PAUSE_S: Final = 0.05
_PART_BYTES: Final = 16 * 1024  # most environments are shorter
_EXEC_LOOKS: Final = 4
_EXEC_PAUSE_S: Final = 0.0005
_ENTRY: Final = f"\0{MARK}=".encode()
_FORM: Final = re.compile(rf"\d+\.\d+\.\d+(\.[0-9a-f]{{{2 * _MARK_BYTES}}})+")


def new_mark() -> str:
    """A mark that no other process carries, of a tree that this process is to end: ``pidns.pid.start.random``."""
    pid = os.getpid()
    return f"{processes.pid_namespace()}.{pid}.{processes.start_time(pid)}.{secrets.token_hex(_MARK_BYTES)}"


def branch_of(mark: str) -> str:
    """A mark for a part of the tree of *mark*: who ends the tree ends the part with it."""
    return f"{mark}.{secrets.token_hex(_MARK_BYTES)}"


def mark_of(pid: int) -> str | None:
    """The mark that the process *pid* was started with; None: none, or it cannot be read."""
    with suppress(OSError):
        return _mark_of(pid)
    return None


def _mark_of(pid: int) -> str | None:
    environment = _environment(pid)
    for _ in range(_EXEC_LOOKS):
        if environment or not _is_being_execed(pid):
            break
        time.sleep(_EXEC_PAUSE_S)
        environment = _environment(pid)
    _, _, rest = (b"\0" + environment).partition(_ENTRY)
    mark, _, _ = rest.partition(b"\0")
    return mark.decode("ascii", "replace") or None


def take_mark(mark: str) -> None:
    """
    Carry *mark* from now on, instead of the one that this process was started with or has of the one that forked it.

    Raises:
        OSError: The kernel does not let it be written where others read it.
        ValueError: There is none of this length.
    """
    environment = b"\0" + _environment(os.getpid())
    before, _, rest = environment.partition(_ENTRY)
    old, _, _ = rest.partition(b"\0")
    if _FORM.fullmatch(mark) is None or len(old) != len(mark):
        raise ValueError("this process has no mark of that length")
    with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
        memory.seek(processes.environment_start() + len(before) + len(_ENTRY) - 1)
        memory.write(mark.encode("ascii"))
    os.environ[MARK] = mark


def kill_tree(mark: str, leader: int | None = None) -> int:
    """
    Kill every process that carries *mark*, or the mark of a part of its tree, and may be signalled.

    A process may set any mark for itself. A mark without random part kills nothing: it could be a prefix of others.

    Blocks for about 8 microseconds per process of the machine (threads of the kernel cost nothing), and until what it
    kills is dead: at most a second, if the kernel does not let go of one.

    Args:
        mark: The mark of the tree.
        leader: The first process of a session that is killed as well, whatever groups it has and whatever was made of
            its environment. It lives or was not reaped yet: else the number may be another's.

    Returns:
        How many there were.
    """
    return _kill(_of_tree(mark, leader))


async def end_tree(mark: str) -> int:
    """
    As ``kill_tree``, while the event loop goes on; a thread would take longer than the work itself.

    Waits while no descriptor is free: processes that were not examined may still run.

    Raises:
        OSError: None was free for 10 s.
    """
    scarce_until_s = anyio.current_time() + _SCARCE_S
    killed: set[int] = set()
    while True:
        give_up_s = anyio.current_time() + _DEATH_S
        try:
            for pidfd in _killing(_of_tree(mark), killed):
                if pidfd is None:
                    await checkpoint()
                else:
                    with anyio.CancelScope(deadline=give_up_s):
                        await anyio.wait_readable(pidfd)
        except OSError as error:
            if not processes.is_scarce(error) or anyio.current_time() > scarce_until_s:
                raise
            await anyio.sleep(_SCARCE_PAUSE_S)
        else:
            return len(killed)


def kill_orphans() -> int:
    """
    Kill what is left of trees whose pool parent is dead.

    Processes of other pid namespaces, or with other marks, are left alone.

    Returns:
        How many processes there were.
    """
    own = mark_of(os.getpid())  # a handler may have started this very system as a daemon
    return _kill(_marked(lambda mark: mark != own and _is_orphaned(mark)))


def _is_orphaned(mark: str) -> bool:
    try:
        pidns, pid, start_time, _, *_ = mark.split(".")
        parent = int(pidns), int(pid), int(start_time)
    except ValueError:
        return False
    return parent[0] == processes.pid_namespace() and not processes.lives(parent[1], parent[2])


def _of_tree(mark: str, leader: int | None = None) -> Callable[[int], bool]:
    def is_of_tree(found: str) -> bool:
        return _FORM.fullmatch(mark) is not None and (found == mark or found.startswith(f"{mark}."))

    carries = _marked(is_of_tree)
    return carries if leader is None else lambda pid: _session_of(pid) == leader or carries(pid)


def _marked(condemned: Callable[[str], bool]) -> Callable[[int], bool]:
    def is_condemned(pid: int) -> bool:
        mark = _mark_of(pid)
        return mark is not None and condemned(mark)

    return is_condemned


def _kill(is_condemned: Callable[[int], bool]) -> int:
    give_up_s = time.monotonic() + _DEATH_S
    killed: set[int] = set()
    for pidfd in _killing(is_condemned, killed):
        if pidfd is not None:
            _wait_dead(pidfd, give_up_s)
    return len(killed)


def _killing(is_condemned: Callable[[int], bool], killed: set[int]) -> Iterator[int | None]:
    """Kill, and add to *killed* who was; what is yielded is a pidfd to be waited for, or None: others may go on."""
    seen = processes.kernel_threads()
    with ExitStack() as opened:
        dying: list[int] = []
        for _ in range(_MAX_PASSES):
            new = _everybody() - seen
            found = yield from _kill_of(new, is_condemned, opened)
            if not found:
                break
            killed.update(found)
            dying += found.values()
            seen |= new  # what is killed forks no more, but may have forked before: nobody has seen its child
        yield from dying  # till they are dead, which takes its time on a busy machine, they may still write


def _kill_of(
    pids: set[int], is_condemned: Callable[[int], bool], opened: ExitStack
) -> Generator[None, None, dict[int, int]]:
    """Who of them was killed, with a pidfd that *opened* closes."""
    killed: dict[int, int] = {}
    for number, pid in enumerate(pids, 1):
        if number % _SLICE == 0:
            yield None
        if not is_condemned(pid):  # nearly none is: the others are not even opened
            continue
        with _gone_suppressed():
            pidfd = os.pidfd_open(pid)
            opened.callback(os.close, pidfd)
            if is_condemned(pid):  # again: a process that gets the pid after this look is not signalled
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                killed[pid] = pidfd
    return killed


def _everybody() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208 - as for _environment


@contextmanager
def _gone_suppressed() -> Generator[None]:
    """A process that is gone (ESRCH, or EINVAL while it goes), or may not be signalled, is passed over."""
    try:
        yield
    except OSError as error:
        if processes.is_scarce(error):
            raise


def _wait_dead(pidfd: int, give_up_s: float) -> None:
    dying = select.poll()
    dying.register(pidfd, select.POLLIN)
    dying.poll(max(0.0, give_up_s - time.monotonic()) * 1000)


def _is_being_execed(pid: int) -> bool:
    """Whether its program is there already, and its environment is not: zombies and threads of the kernel have none."""
    if processes.has_empty_environment(pid):
        return False
    try:
        os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115 - as for _environment
    except OSError:
        return False
    return True


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return 0  # it is gone


def _environment(pid: int) -> bytes:
    """A fifth of what pathlib takes: this is done for every process of the machine."""
    found = b""
    try:
        fd = os.open(f"/proc/{pid}/environ", os.O_RDONLY | os.O_CLOEXEC)
        try:
            while part := os.read(fd, _PART_BYTES):
                found += part
        finally:
            os.close(fd)
    except OSError as error:
        if processes.is_scarce(error):
            raise
        return b""  # it is gone, or another user's
    return found
