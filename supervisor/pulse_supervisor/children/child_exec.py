"""
Become another program, as another user where asked, that dies with its parent.

``python -I -S child_exec.py --parent PID --death-signal INT [--user NAME] [--cwd DIR] [--log FILE --log-max-bytes N]
[--env NAME=VALUE]... -- PROGRAM ARGUMENT...``

A program of its own and not a function between fork and exec: the supervisor runs threads, and after a fork from a
threaded process little but exec is safe. It imports nothing of pulse, since ``-S`` leaves out site-packages; with that
it costs about 15 ms. What it sets up, and in which order, each for a reason:

1. its own process group: Ctrl-C at a terminal must reach the supervisor alone, which then stops its children in order;
2. the log, opened before the user changes, so that it can lie where that user may not write (the end of the old one is
   kept as FILE.old once it is larger than N bytes; so are this program's own errors);
3. default signal actions: Python ignores SIGPIPE, and a death signal that Python's handler swallowed just before exec
   would be lost;
4. the user: the kernel clears the death signal when the credentials change, so that comes after it;
5. the death signal, and then a check that the parent still lives: it may have died before the signal was set.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PARENT_GONE = 70
_FAILED = 126


def main(arguments: list[str]) -> None:
    """Set up as the options say, then exec; returns only by exception."""
    split = arguments.index("--")
    pairs = list(zip(arguments[0:split:2], arguments[1:split:2], strict=True))
    options = dict(pairs)
    death_signal = signal.Signals["SIG" + options["--death-signal"]]
    _lead_own_group()
    if "--log" in options:
        _redirect(options["--log"], int(options["--log-max-bytes"]))
    _default_actions(death_signal)
    if "--user" in options:
        _become(options["--user"])
    if "--cwd" in options:
        os.chdir(options["--cwd"])
    _die_with(int(options["--parent"]), death_signal)
    given = dict(value.split("=", 1) for name, value in pairs if name == "--env")
    program = arguments[split + 1 :]
    os.execve(program[0], program, given or os.environ)  # noqa: S606 - no shell is wanted


def _lead_own_group() -> None:
    try:
        os.setpgid(0, 0)
    except PermissionError:
        return  # a session leader leads its group already


def _redirect(path: str, max_bytes: int) -> None:
    """Standard input from /dev/null, output and errors to the end of *path*, which only its owner may read."""
    # os and not pathlib, whose import would cost as much as all the rest here
    with contextlib.suppress(FileNotFoundError):
        if os.lstat(path).st_size > max_bytes:
            os.replace(path, path + ".old")  # noqa: PTH105
    nothing = os.open(os.devnull, os.O_RDWR)
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)


def _default_actions(death_signal: signal.Signals) -> None:
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, death_signal):
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)


def _become(name: str) -> None:
    entry = pwd.getpwnam(name)
    os.setgroups(os.getgrouplist(name, entry.pw_gid))
    os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
    os.setresuid(entry.pw_uid, entry.pw_uid, entry.pw_uid)


def _die_with(parent_pid: int, death_signal: signal.Signals) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        sys.exit(_PARENT_GONE)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (OSError, KeyError) as error:
        print(f"child_exec: FATAL: {error}", file=sys.stderr)  # noqa: T201 - the log of the program that it was to become
        sys.exit(_FAILED)
