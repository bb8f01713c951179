"""A process as number 1, as far as another one can do it; the rest is in tests/system/test_containers_system.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from pulse.system import pid1, processes


@pytest.mark.skipif(pid1.is_init(), reason="the tests themselves are process 1")
def test_who_is_not_process_1_keeps_its_signals() -> None:
    """SIGTERM stays the kernel's, with its exit status."""
    before = signal.getsignal(signal.SIGTERM)
    pid1.obey_sigterm()
    assert signal.getsignal(signal.SIGTERM) is before


def test_process_1_ends_at_sigterm(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("os.getpid", lambda: 1)
    ended: list[int] = []
    monkeypatch.setattr("os._exit", ended.append)
    try:
        pid1.obey_sigterm()
        assert signal.getsignal(signal.SIGTERM) is not before
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended == [128 + signal.SIGTERM]


def test_whose_status_is_wanted_is_kept() -> None:
    """Of two dead children one is reaped; the other one's exit code is kept for its waiter."""
    kept, buried = (subprocess.Popen([sys.executable, "-Sc", f"raise SystemExit({code})"]) for code in (7, 8))
    for one in (kept, buried):
        os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)
    try:
        pid1.bury_orphans({kept.pid, *(pid for pid in processes.own_children() if pid != buried.pid)})
        with pytest.raises(ChildProcessError, match="No child processes"):
            os.waitid(os.P_PID, buried.pid, os.WEXITED | os.WNOHANG)
    finally:
        codes = kept.wait(), buried.wait()
    assert codes[0] == 7
