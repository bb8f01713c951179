"""
Becomes another program that gets SIGTERM when its parent dies: ``python -m pulse.ops.demo.follow PARENT PROGRAM …``.

The kernel keeps this setting across exec.
"""

from __future__ import annotations

import os
import signal
import sys

from pulse.system import processes


def main(parent_pid: str, *command: str) -> None:
    """Replace this process by *command*, to get SIGTERM when *parent_pid* dies."""
    processes.die_with_parent(int(parent_pid), signal.SIGTERM)
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main(*sys.argv[1:])
