"""
Messages to the service manager, by the protocol of sd_notify(3): datagrams of NAME=value lines.

Written here because it is short, and the libraries for it either need systemd's headers to install or have not been
maintained for years.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from typing import Final

_MICROSECONDS: Final = 1e6
# A manager's queue holds ten datagrams. Messages that it must not miss wait for room; the others come again.
_PATIENCE_S: Final = 2.0


class Notifier:
    """
    Notifies the service manager that started this process, if there is one.

    Args:
        env: The environment; NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID are read.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self._address = _address(env.get("NOTIFY_SOCKET", ""))
        self._watchdog_s = _watchdog_s(env)
        self._watchdog_due_s = 0.0
        self._status = ""

    def ready(self, status: str) -> None:
        """All children are ready."""
        self._send("READY=1", f"STATUS={status}", f"MAINPID={os.getpid()}", patience_s=_PATIENCE_S)

    def extend_start(self, by_s: float) -> None:
        """The start takes longer: it may take so many seconds from now."""
        self._send(f"EXTEND_TIMEOUT_USEC={by_s * _MICROSECONDS:.0f}")

    def status(self, status: str) -> None:
        """One line for ``systemctl status``; sent only if it has changed."""
        if status != self._status:
            self._status = status
            self._send(f"STATUS={status}")

    def stopping(self, status: str) -> None:
        """The shutdown has begun."""
        self._send("STOPPING=1", f"STATUS={status}", patience_s=_PATIENCE_S)

    def keep(self, sockets: Mapping[str, int]) -> bool:
        """
        Have the manager keep listening sockets, so that they stay open while this process restarts.

        A manager whose unit does not allow it (FileDescriptorStoreMax) ignores them.

        Args:
            sockets: Descriptors by their names; earlier ones with these names are dropped.

        Returns:
            Whether there is a manager at all.
        """
        for name, descriptor in sockets.items():
            self._send("FDSTOREREMOVE=1", f"FDNAME={name}", patience_s=_PATIENCE_S)
            self._send("FDSTORE=1", f"FDNAME={name}", patience_s=_PATIENCE_S, descriptor=descriptor)
        return self._address is not None

    def alive(self, now_s: float) -> None:
        """Every actor has answered its ping; notifies the watchdog at half its interval."""
        if self._watchdog_s is not None and now_s >= self._watchdog_due_s:
            self._watchdog_due_s = now_s + self._watchdog_s / 2
            self._send("WATCHDOG=1")

    def _send(self, *lines: str, patience_s: float = 0.0, descriptor: int | None = None) -> None:
        if self._address is None:
            return
        text = "\n".join(line.replace("\n", " ") for line in lines)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.settimeout(patience_s)
                # Not send_fds, which ignores its parameter for the address.
                sock.sendmsg([text.encode("utf-8", "replace")], _passing(descriptor), 0, self._address)
        except OSError:
            return  # a manager that does not listen is no reason to stop


def _passing(descriptor: int | None) -> list[tuple[int, int, bytes]]:
    """A descriptor as ancillary data of a message."""
    if descriptor is None:
        return []
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptor.to_bytes(4, sys.byteorder))]


def _address(name: str) -> str | None:
    """The socket's address: a path, or with @ a name in the abstract namespace; others (vsock) are not supported."""
    if name.startswith("@"):
        return "\0" + name[1:]
    return name if name.startswith("/") else None


def _watchdog_s(env: Mapping[str, str]) -> float | None:
    if env.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    microseconds = env.get("WATCHDOG_USEC", "")
    if not microseconds.isdecimal() or int(microseconds) == 0:
        return None
    return int(microseconds) / _MICROSECONDS
