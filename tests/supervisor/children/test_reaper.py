"""Who reaps the dead."""

from __future__ import annotations

import os

from pulse_supervisor.children.reaper import Reaper


def test_while_a_thread_waits_itself_nothing_is_reaped() -> None:
    """Afterwards all are that nobody else waits for."""
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    reaper = Reaper(lambda one: one != pid)
    reaper.pause()
    assert os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT) is not None
    reaper.reap_orphans()
    assert os.waitpid(pid, 0) == (pid, 7 << 8)
