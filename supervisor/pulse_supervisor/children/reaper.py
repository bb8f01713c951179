"""Orphans: processes that outlive their parents become children of the supervisor, which reaps or ends them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import trio

_POLITE_S: Final = 1.0  # for processes that a handler left running on purpose
_FORCED_S: Final = 2.0
_POLL_S: Final = 0.02


class Orphan(msgspec.Struct, frozen=True):
    """A process that was still there when all children had stopped."""

    pid: int
    command: str


class Reaper:
    """
    Reaps processes that nothing else waits for.

    Args:
        is_child: Whether a pid is a child; these are reaped where their exit status is needed.
    """

    def __init__(self, is_child: Callable[[int], bool]) -> None:
        self._is_child = is_child
        self._pauses = 0

    def pause(self) -> None:
        """Reap nothing while a thread runs programs and waits for them itself, or while a child is not known yet."""
        self._pauses += 1

    def resume(self) -> None:
        """End a pause; without another one, reap again, also what has died meanwhile."""
        self._pauses -= 1
        self.reap_orphans()

    def reap_orphans(self) -> None:
        """
        Reap every dead orphan; call it at SIGCHLD and after a child was reaped.

        SIGCHLD coalesces, so this goes on until there are none. It stops at a dead child, which is being reaped
        elsewhere; that calls this again.
        """
        if self._pauses:
            return
        with contextlib.suppress(ChildProcessError):
            while dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if self._is_child(dead.si_pid):
                    return
                os.waitid(os.P_PID, dead.si_pid, os.WEXITED)

    async def end_all(self) -> list[Orphan]:
        """
        End every process that is still below this one: SIGTERM, then SIGKILL, with a bound each.

        Returns:
            All that were found.
        """
        found: dict[int, Orphan] = {}
        for number, wait_s in ((signal.SIGTERM, _POLITE_S), (signal.SIGKILL, _FORCED_S)):
            told: set[int] = set()
            with trio.move_on_after(wait_s):
                # A process that ends leaves its own children to us, so repeat until there are none.
                while pids := self._living():
                    for pid in pids - told:
                        found.setdefault(pid, Orphan(pid, _command(pid)))
                        _send(pid, number)
                    told |= pids
                    await trio.sleep(_POLL_S)
        return list(found.values())

    def _living(self) -> set[int]:
        self.reap_orphans()
        pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
        return {pid for pid in pids if _is_ours(pid)}


def _send(pid: int, number: signal.Signals) -> None:
    """Signal a child of ours; checked again when the pidfd is open and the pid cannot be reused."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        pidfd = os.pidfd_open(pid)
        try:
            if _is_ours(pid):
                signal.pidfd_send_signal(pidfd, number)
        finally:
            os.close(pidfd)


def _is_ours(pid: int) -> bool:
    """Whether *pid* is a living child of this process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace")
    except OSError:
        return False
    state, parent_pid = text[text.rindex(")") + 2 :].split()[:2]
    return int(parent_pid) == os.getpid() and state not in {"Z", "X"}


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8", errors="replace").strip()
    except OSError:
        return ""
