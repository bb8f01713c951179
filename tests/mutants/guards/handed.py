"""Sockets that a service manager hands over: only those that are meant for this process, and that clients reach."""

from __future__ import annotations

from typing import Final

from tests.mutants.code import Guarded

_UNIT: Final = "unit/test_unit_file.py::"

HANDED: Final = Guarded(
    "pulse_supervisor.systemd.socket_activation",
    {
        _UNIT + "test_what_is_handed_over": [
            ("take", "if sock is not None and label not in found:", "if sock is not None:"),
            ("_socket", "os.set_inheritable(descriptor, False)", "os.fstat(descriptor)"),
        ],
        _UNIT + "test_what_is_not_for_this_process": [
            ("take", "pid != str(os.getpid()) or ", ""),
        ],
        _UNIT + "test_who_listens_where": [
            ("listens_at", "listens and ", ""),
            ("listens_at", " and sock.getsockname() == os.fspath(path)", ""),
            ("listens_at", " and path.is_socket()", ""),
        ],
    },
    is_part=True,
)
