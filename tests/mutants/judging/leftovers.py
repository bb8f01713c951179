"""
Ends what the tests of a mutant have started: those that are stopped end neither their servers nor their workers.

A server that has lost its options may have been where all programs look for one: what it leaves there is removed.

A supervisor and a pool have sessions of their own, so the group of a fork is not all. But programs inherit the
environment, and a fork puts its pid there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from typing import Final

from pulse.system.directories import _SYSTEM_RUNTIME_DIR

MARK: Final = "CODE_MUTANT_FORK"  # names that begin with PULSE_ are kept from the systems under test
PLACE: Final = _SYSTEM_RUNTIME_DIR
_IS_OURS: Final = not PLACE.exists()  # else a server that people use is there
_DEATH_S: Final = 1.0  # what forks faster than it is killed, or does not die, is left


def mark() -> None:
    """Programs that this process starts from now on belong to it."""
    os.environ[MARK] = str(os.getpid())


def end(fork: int) -> None:
    """Kill the group of *fork*, and all programs that belong to it, and remove what servers leave in PLACE."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(fork, signal.SIGKILL)
    deadline_s = time.monotonic() + _DEATH_S
    while (found := _marked(fork)) and time.monotonic() < deadline_s:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    if _IS_OURS:
        shutil.rmtree(PLACE, ignore_errors=True)


def _marked(fork: int) -> list[int]:
    entry = f"\0{MARK}={fork}\0".encode()
    found = [name for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - a Path of each takes as long as the rest
    return [int(name) for name in found if entry in b"\0" + _environment(name)]


def _environment(pid: str) -> bytes:
    """As the program was started with; of one that has ended, or is another user's: nothing."""
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:  # noqa: PTH123 - the same
            return file.readall()
    except OSError:
        return b""
