"""Asks the Linux kernel about processes: start time, state, memory; and sets the signal at the parent's death."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import resource
import signal
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

UNFINISHED: Final = os.EX_TEMPFAIL  # exit code of a worker whose drain ended with unacknowledged attempts
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_TGKILL: Final = {"x86_64": 234, "aarch64": 131, "riscv64": 131, "ppc64le": 250, "s390x": 241}  # system calls
_STAT_STATE: Final = 0  # fields of /proc/PID/stat behind the command name, which may hold spaces and parentheses
_STAT_PARENT: Final = 1
_STAT_FLAGS: Final = 6
_STAT_CPU: Final = slice(11, 13)  # in user mode, and in the kernel
_STAT_START_TIME: Final = 19
_STAT_RSS: Final = 21
_STAT_ARGS_START: Final = 45
_STAT_ARGS_END: Final = 46
_STAT_ENV_START: Final = 47
_STAT_ENV_END: Final = 48
_STAT_EXIT_CODE: Final = 49
_KTHREADD: Final = 2  # the parent of nearly all threads of the kernel, where they can be seen at all
_PF_KTHREAD: Final = 0x00200000
_PIDFD_INFO: Final = struct.Struct("Q52xi")  # mask, ids that are of no interest here, exit status
_PIDFD_INFO_EXIT: Final = 1 << 3  # Linux 6.15
_PIDFD_GET_INFO: Final = (3 << 30) | (_PIDFD_INFO.size << 16) | (0xFF << 8) | 11


def leave_no_core() -> None:
    """Leave no core file should this process crash: it would have passwords in it. The limit may be raised again."""
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))


def die_with_parent(parent_pid: int, death_signal: signal.Signals) -> None:
    """
    Have the kernel send *death_signal* to this process when its parent dies; exit now when it is dead already.

    The signal follows the *thread* that forked, so a parent must spawn from a thread that lives as long as itself.
    It is set by the child, after exec, and so is the re-check: between fork and prctl the parent may have died.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        sys.exit(f"pulse: the parent {parent_pid} died before this process was set up")


def adopt_orphans() -> bool:
    """Make this process the parent of orphaned descendants; returns whether the kernel does so."""
    return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def own_children() -> list[int]:
    """The children of the calling thread, adopted ones too; nothing where the kernel does not tell."""
    return _children(Path("/proc/thread-self"))


def boot_id() -> str:
    """This boot of this kernel, 32 hex digits."""
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip().replace("-", "")


def pid_namespace(pid: int | None = None) -> int:
    """Inode of the pid namespace of *pid* (default: this process); 0 where it may not be read."""
    try:
        return Path(f"/proc/{pid if pid is not None else 'self'}/ns/pid").stat().st_ino
    except OSError:
        return 0


def start_time(pid: int) -> int:
    """When *pid* started, in clock ticks since boot; 0 when it is gone. (pid, start time) names a process for good."""
    fields = _stat(pid)
    return int(fields[_STAT_START_TIME]) if fields else 0


def age_s() -> float:
    """Seconds since this process was started, imports and all, as the person who waits for it counts them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - start_time(os.getpid()) / os.sysconf("SC_CLK_TCK")


def state(pid: int) -> str:
    """State letter of *pid* (R, S, D, T, Z ...), '' when it is gone."""
    fields = _stat(pid)
    return fields[_STAT_STATE] if fields else ""


class ProcessFacts(msgspec.Struct, frozen=True):
    """What the kernel knows of a process: its state letter, and what it has used."""

    state: str
    cpu_s: float
    rss_bytes: int
    uptime_s: float


def facts(pid: int) -> ProcessFacts | None:
    """The facts of *pid*; None when it is gone."""
    fields = _stat(pid)
    if not fields:
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    return ProcessFacts(
        state=fields[_STAT_STATE],
        cpu_s=sum(map(int, fields[_STAT_CPU])) / ticks,
        rss_bytes=int(fields[_STAT_RSS]) * os.sysconf("SC_PAGE_SIZE"),
        uptime_s=max(0.0, uptime_s() - int(fields[_STAT_START_TIME]) / ticks),
    )


def lives(pid: int, start_time_ticks: int) -> bool:
    """Whether the process of that pid and start time is there; a zombie is not."""
    try:
        fields = _read_stat(pid)
    except OSError as error:
        return is_scarce(error) and _is_there(pid)  # what cannot be read is not dead
    return int(fields[_STAT_START_TIME]) == start_time_ticks and fields[_STAT_STATE] not in {"Z", "X"}


def is_scarce(error: OSError) -> bool:
    """Whether there was no descriptor or memory to look with: that says nothing about what was looked for."""
    return error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOMEM}


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def uptime_s() -> float:
    """Seconds since this kernel started, suspended time included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def parent(pid: int) -> int:
    """The parent of *pid*; 0 when it is gone."""
    fields = _stat(pid)
    return int(fields[_STAT_PARENT]) if fields else 0


def has_empty_environment(pid: int) -> bool:
    """Whether it was started without any: of one that is just being exec'ed that is not known yet."""
    fields = _stat(pid)
    return bool(fields) and fields[_STAT_ENV_START] == fields[_STAT_ENV_END] != "0"


def environment_start() -> int:
    """Where the memory of this process has the environment that it was started with."""
    return int(_read_stat(os.getpid())[_STAT_ENV_START])


def show_command_line(words: Sequence[str]) -> None:
    """Have this process shown with these words, as far as those that it was started with leave room for them."""
    fields = _read_stat(os.getpid())
    start, end = int(fields[_STAT_ARGS_START]), int(fields[_STAT_ARGS_END])
    line = b"".join(os.fsencode(word) + b"\0" for word in words)
    with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
        memory.seek(start)
        memory.write(line[: end - start - 1].ljust(end - start, b"\0"))


def show_name(name: str) -> None:
    """Have this process called so where the kernel tells its name, 15 characters of it."""
    Path("/proc/self/comm").write_text(name, "utf-8")


def reap(pidfd: int) -> int:
    """Wait for a child of this process; its exit code, negative: the signal that killed it."""
    ended = os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
    if ended is None:
        raise ChildProcessError
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def kernel_threads() -> set[int]:
    """The threads of the kernel: most of what is in /proc on a large machine. Empty in a pid namespace of its own."""
    fields = _stat(_KTHREADD)
    if not fields or not int(fields[_STAT_FLAGS]) & _PF_KTHREAD:
        return set()
    return set(_children(Path(f"/proc/{_KTHREADD}/task/{_KTHREADD}")))


def signal_thread(pid: int, thread: int, number: int) -> None:
    """
    Send a signal to one thread of a process, by the numbers that the kernel gave both.

    Raises:
        OSError: It is gone, may not be signaled, or nobody knows how to on this kind of machine.
    """
    call = _TGKILL.get(platform.machine())  # not every C library has a function for it
    if call is None:
        raise OSError(errno.ENOSYS, f"tgkill on {platform.machine()}")
    if ctypes.CDLL(None, use_errno=True).syscall(*map(ctypes.c_long, (call, pid, thread, number))) != 0:
        raise OSError(ctypes.get_errno(), "tgkill")


def threads(pid: int) -> list[int]:
    """The threads of *pid* as the kernel numbers them, its main one among them; none when it is gone."""
    try:
        return [int(entry.name) for entry in os.scandir(f"/proc/{pid}/task")]
    except OSError:
        return []


def is_pending(pid: int, thread: int, number: int) -> bool:
    """Whether signal *number* was sent to this very thread, and waits for it to take it."""
    return bool(_mask(_status(pid, thread), "SigPnd") & _bit(number))


def is_blocking(pid: int, thread: int, number: int) -> bool:
    """Whether this thread blocks signal *number*; one that is in the handler of the signal does, too."""
    return bool(_mask(_status(pid, thread), "SigBlk") & _bit(number))


def _status(pid: int, thread: int) -> Path:
    return Path(f"/proc/{pid}/task/{thread}/status")


def _mask(status: Path, field: str) -> int:
    """A set of signals in a status file; 0 when it is gone."""
    try:
        lines = status.read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return 0
    return next((int(line.partition(":")[2], 16) for line in lines if line.startswith(f"{field}:")), 0)


def _bit(number: int) -> int:
    return 1 << (number - 1)


def _children(thread: Path) -> list[int]:
    try:
        return [int(pid) for pid in (thread / "children").read_text("ascii").split()]
    except OSError:
        return []


def _stat(pid: int) -> list[str]:
    try:
        return _read_stat(pid)
    except OSError:
        return []


def _read_stat(pid: int) -> list[str]:
    text = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace")
    return text[text.rindex(")") + 2 :].split()


def own_pid() -> int:
    """This process."""
    return os.getpid()


def exit_status(pid: int, pidfd: int) -> int | None:
    """
    How the process of *pidfd*, which has ended, ended: as waitpid tells it; None where the kernel does not.

    Works without being its parent: until it is reaped, /proc shows the status; afterwards the pidfd.
    """
    fields = _stat(pid)
    if fields and fields[_STAT_STATE] == "Z":
        return int(fields[_STAT_EXIT_CODE])
    info = bytearray(_PIDFD_INFO.pack(_PIDFD_INFO_EXIT, 0))
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info)
    except OSError:
        return None
    mask, status = _PIDFD_INFO.unpack(info)
    return status if mask & _PIDFD_INFO_EXIT else None


def describe_exit(status: int | None) -> str:
    """*status* for people: ``SIGKILL``, ``exit code 7``, or that it is not known."""
    if status is None:
        return "how is not known"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    return f"exit code {os.WEXITSTATUS(status)}"


class OomKills(msgspec.Struct, frozen=True):
    """
    How many processes of a memory cgroup the kernel had killed because memory ran out.

    Taken while a process lives, and compared after its death, when its group can no longer be found. It only proves
    that some process of the group was killed meanwhile.
    """

    path: Path
    count: int

    def again(self) -> OomKills:
        """As of now."""
        return OomKills(self.path, _count_of_oom_kills(self.path) or 0)

    def grew(self) -> bool:
        """Whether the kernel has killed one of the group since."""
        return (_count_of_oom_kills(self.path) or 0) > self.count


def oom_kills(pid: int) -> OomKills | None:
    """
    The count for the memory cgroup of *pid*, of either version, else for the whole machine; None: the kernel has none.

    A process that the kernel kills for want of memory dies of SIGKILL like any other; the count is the only sign.
    """
    for path in (*_memory_files(pid), Path("/proc/vmstat")):
        count = _count_of_oom_kills(path)
        if count is not None:
            return OomKills(path, count)
    return None


def _memory_files(pid: int) -> list[Path]:
    """Where the memory cgroups of *pid* would count, the second version first: only one of the two has the memory."""
    try:
        groups = Path(f"/proc/{pid}/cgroup").read_text("utf-8").splitlines()
        mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text("utf-8").splitlines()]
    except OSError:
        return []
    unified: list[Path] = []
    divided: list[Path] = []
    for _, controllers, group in (line.split(":", 2) for line in groups):
        for mount in mounts:
            root, where, kind, options = mount[3], mount[4], mount[mount.index("-") + 1], mount[-1].split(",")
            if not controllers and kind == "cgroup2":
                unified.append(_inside(where, root, group) / "memory.events")
            elif "memory" in controllers.split(",") and kind == "cgroup" and "memory" in options:
                divided.append(_inside(where, root, group) / "memory.oom_control")
    return unified + divided


def _inside(where: str, root: str, group: str) -> Path:
    """The directory of *group* below a mount that shows the groups from *root* on."""
    shown = group[len(root) :] if root != "/" and group.startswith(root) else group
    return Path(where) / shown.lstrip("/")


def _count_of_oom_kills(path: Path) -> int | None:
    try:
        lines = path.read_text("ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
