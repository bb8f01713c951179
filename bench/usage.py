"""What processes have used, from /proc."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_USER, _SYSTEM, _REAPED_USER, _REAPED_SYSTEM = 11, 12, 13, 14  # fields of /proc/PID/stat behind the command name
_KIB: Final = 1024


def _ticks(pid: int, *fields: int) -> int:
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace")
    except OSError:
        return 0
    values = text[text.rindex(")") + 2 :].split()
    return sum(int(values[field]) for field in fields)


def cpu_s(pid: int) -> float:
    """CPU seconds of one process so far; 0 when it is gone."""
    return _ticks(pid, _USER, _SYSTEM) / _TICKS_PER_S


def family_cpu_s(pid: int) -> float:
    """CPU seconds of a process, its living children, and those that it has reaped."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()
    except OSError:
        children = []
    own = _ticks(pid, _USER, _SYSTEM, _REAPED_USER, _REAPED_SYSTEM)
    return own / _TICKS_PER_S + sum(cpu_s(int(child)) for child in children)


def rss_bytes(pid: int, *, peak: bool = False) -> int:
    """Resident memory of one process, or the most that it ever had; 0 when it is gone."""
    word = "VmHWM:" if peak else "VmRSS:"
    try:
        lines = Path(f"/proc/{pid}/status").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * _KIB for line in lines if line.startswith(word)), 0)
