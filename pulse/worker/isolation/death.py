"""The outcome of an attempt whose cell died by itself."""

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
        ended: The zygote's report.
        handler: The handler; reaching one of its own limits is an error of the job, no crash.
        oom: The kernel's count of out-of-memory kills when the handler was called.
        has_meddled: Whether the cell sent something malformed.
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
