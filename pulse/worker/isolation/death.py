"""What the death of a cell means that nobody had wanted to end."""

from __future__ import annotations

import os
import signal

from pulse.app.handler import Handler
from pulse.app.outcome import Outcome, crashed
from pulse.system import processes
from pulse.worker.isolation.messages import CellEnded
from pulse.worker.isolation.rlimits import cpu_limit_s

__all__ = ["death"]


def death(ended: CellEnded, handler: Handler | None, oom: processes.OomKills | None, *, has_meddled: bool) -> Outcome:
    """
    How an attempt ended whose cell died without a result.

    Args:
        ended: What the zygote saw.
        handler: Its limits are its own: reaching one is an error of the job's, no crash.
        oom: How many the kernel had killed for want of memory when the handler was called.
        has_meddled: What came from the cell could not be understood.
    """
    code = os.waitstatus_to_exitcode(ended.status)
    max_cpu_s = None if handler is None else handler.max_cpu_s
    if max_cpu_s is not None and (
        code == -signal.SIGXCPU or (code == -signal.SIGKILL and ended.cpu_s >= cpu_limit_s(max_cpu_s))
    ):
        return Outcome("error", f"used more than {max_cpu_s:g} s of CPU time")
    if code == -signal.SIGKILL and oom is not None and oom.grew():
        return crashed("out of memory (SIGKILL)", code)
    how = processes.describe_exit(ended.status)
    return crashed(f"{how} (it wrote into a descriptor that was not its own)" if has_meddled else how, code)
