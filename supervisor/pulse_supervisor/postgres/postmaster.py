"""
The processes of one data directory: finds the living ones, and makes sure that none is left.

PostgreSQL guards its data directory by postmaster.pid and a shared memory segment. That guard stays in force: the
postmaster.pid of a living server is never removed, and PostgreSQL replaces a dead one by itself. But it only checks
whether the noted pid can be signalled, which is wrong in two cases. In a container with few pids, that pid soon belongs
to a worker of the same user; and a killed postmaster stays a zombie until pid 1 reaps it, which some do late and some
never. /proc shows the truth. (The other guard, the shared memory segment, stays.)

Processes are recognised by their command line and title, which /proc shows to everybody. The current directory would be
better, since it also shows a server that was started by hand, but to read it of another user's process even root
needs CAP_SYS_PTRACE, which containers lack: it is used where it can be read.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from pulse.errors import EmbeddedError
from pulse.system import processes

# How a server is stopped, a bound for each step: fast (sessions ended, checkpoint), immediate (no checkpoint: the next
# start recovers), by force. A checkpoint of 128 MB takes seconds on a slow disk.
STOP_STEPS: Final = ((signal.SIGINT, 20.0), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0))
# Leftovers of a killed postmaster have nothing to finish: their shared memory is void, the next start recovers.
_ORPHAN_STEPS: Final = ((signal.SIGQUIT, 2.0), (signal.SIGKILL, 5.0))
_ORPHANS_OWN_END_S: Final = 2.0  # they notice within milliseconds, unless they compute
# A server whose owner was killed shuts down fast already, by its death signal.
_OWN_END_S: Final = 10.0
_POLL_S: Final = 0.01
_PID_FILE_BYTES: Final = 8192
_PID_LINE, _STATUS_LINE = 0, 7  # of postmaster.pid


class Cluster(msgspec.Struct, frozen=True):
    """One data directory and the marks of its processes: their user and the name in their titles."""

    data_dir: Path
    socket_dir: Path
    uid: int

    @property
    def name(self) -> str:
        """Setting cluster_name, which every process but the postmaster shows in its title."""
        return f"pulse-{hashlib.sha256(os.fsencode(self.data_dir)).hexdigest()[:12]}"


def living(cluster: Cluster) -> frozenset[int]:
    """Pids of the postmaster and of all its processes for *cluster*."""
    pids = (int(entry) for entry in os.listdir("/proc") if entry.isdecimal())  # noqa: PTH208 - Path costs 5 times as much
    return frozenset(pid for pid in pids if _is_of(cluster, pid))


def settle(cluster: Cluster, log: Callable[..., object], *, own_end_s: float = _OWN_END_S) -> None:
    """
    Return when no process of *cluster* is left: before each start, since PostgreSQL refuses to start beside one.

    Waits for them to end by themselves, then stops them, in 40 s at most. Usually there is none, and it takes a few
    milliseconds.

    Args:
        cluster: The data directory.
        log: Called with an event and fields when a process was waited for or a file removed.
        own_end_s: How long a postmaster may take to end by itself, seconds.

    Raises:
        EmbeddedError: They outlived SIGKILL.
    """
    left = living(cluster)
    if left:
        log("former_postgresql_awaited", pids=sorted(left))
        headless = postmaster_pid(cluster) not in left
        left = _wait_gone(cluster, left, min(own_end_s, _ORPHANS_OWN_END_S) if headless else own_end_s)
    for number, wait_s in _ORPHAN_STEPS if postmaster_pid(cluster) not in left else STOP_STEPS:
        if not left:
            break
        log("former_postgresql_stopped", pids=sorted(left), signal=number.name)
        _signal_cluster(cluster, left, number)
        left = _wait_gone(cluster, left, wait_s)
    if left:
        raise EmbeddedError(f"processes of a former PostgreSQL on {cluster.data_dir} do not end: {sorted(left)}")
    _remove_misleading(cluster, log)


def postmaster_pid(cluster: Cluster) -> int | None:
    """The pid in postmaster.pid, alive or not."""
    return _noted_pid(cluster.data_dir / "postmaster.pid")


def is_ready(cluster: Cluster, pid: int) -> bool:
    """
    Whether the postmaster *pid* accepts connections, by the status line that it writes (as pg_ctl does).

    The pid distinguishes its file from a killed predecessor's, which says ready for ever.
    """
    lines = _lines(cluster.data_dir / "postmaster.pid")
    return len(lines) > _STATUS_LINE and lines[_PID_LINE] == str(pid) and lines[_STATUS_LINE].strip() == "ready"


def _is_of(cluster: Cluster, pid: int) -> bool:
    try:
        place = Path(f"/proc/{pid}")
        if place.stat().st_uid != cluster.uid:
            return False
        arguments = (place / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False  # ended meanwhile
    if arguments[0].startswith(b"postgres: "):
        is_named = arguments[0].startswith(b"postgres: %s: " % cluster.name.encode("ascii"))
    elif arguments[0].rpartition(b"/")[2] in {b"postgres", b"postmaster"}:
        # The postmaster, or a child that has not set its title yet.
        is_named = os.fsencode(cluster.data_dir) in arguments
    else:
        return False
    return is_named or _works_in(pid, cluster.data_dir)


def _works_in(pid: int, directory: Path) -> bool:
    try:
        return Path(f"/proc/{pid}/cwd").readlink() == directory
    except OSError:
        return False


def _wait_gone(cluster: Cluster, seen: frozenset[int], wait_s: float) -> frozenset[int]:
    """
    Wait until all of *seen*, and all that appear meanwhile, have ended; returns those that have not.

    An ending process loses its title before it releases the shared memory, so processes once seen are followed by pid
    and start time until they are dead.
    """
    deadline_s = time.monotonic() + wait_s
    born_ticks: dict[int, int] = {}
    while True:
        for pid in seen | living(cluster):
            born_ticks.setdefault(pid, processes.start_time(pid))
        left = frozenset(pid for pid, ticks in born_ticks.items() if not _has_ended(pid, ticks))
        if not left or time.monotonic() >= deadline_s:
            return left
        time.sleep(_POLL_S)


def _has_ended(pid: int, born_ticks: int) -> bool:
    return processes.state(pid) in {"", "Z", "X"} or processes.start_time(pid) != born_ticks


def _signal_cluster(cluster: Cluster, left: frozenset[int], number: signal.Signals) -> None:
    """Signal the postmaster, which passes it on; or all processes if it is gone, or if nothing else has helped."""
    postmaster = postmaster_pid(cluster)
    chosen = {postmaster} if postmaster and postmaster in left and number != signal.SIGKILL else left
    for pid in chosen:
        with contextlib.suppress(ProcessLookupError):
            _signal(cluster, pid, number)


def _signal(cluster: Cluster, pid: int, number: signal.Signals) -> None:
    descriptor = os.pidfd_open(pid)
    try:
        if _is_of(cluster, pid):  # checked again now that the pid cannot be reused
            signal.pidfd_send_signal(descriptor, number)
    finally:
        os.close(descriptor)


def _remove_misleading(cluster: Cluster, log: Callable[..., object]) -> None:
    """Remove lock files that PostgreSQL would ascribe to a living server; `settle` made sure that there is none."""
    for path in (cluster.data_dir / "postmaster.pid", cluster.socket_dir / ".s.PGSQL.5432.lock"):
        pid = _noted_pid(path)
        if pid is not None and _seems_alive(pid):
            log("dead_lock_file_removed", path=str(path), pid=pid)
            path.unlink(missing_ok=True)


def _seems_alive(pid: int) -> bool:
    """Whether *pid* can be signalled although it is a zombie, or another program."""
    try:
        command = Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip()
    except OSError:
        return False  # gone: PostgreSQL notices by itself that the file is stale; or hidden
    return processes.state(pid) in {"Z", "X"} or command not in {"postgres", "postmaster"}


def _noted_pid(path: Path) -> int | None:
    lines = _lines(path)
    digits = lines[0].strip().lstrip("-") if lines else ""  # a stand-alone backend writes its pid negated
    return int(digits) if digits.isdecimal() else None


def _lines(path: Path) -> list[str]:
    """Lines of a small file in the other user's directory, who must not be able to make root wait or follow links."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        return os.read(descriptor, _PID_FILE_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    finally:
        os.close(descriptor)
