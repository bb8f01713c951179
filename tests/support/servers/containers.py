"""
Process 1 of a pid namespace, as a container's first process is: ``unshare`` makes one where the kernel allows it.

Everything else, files and network, is this machine's: pulse only cares about pids.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import psutil

from pulse.system import processes
from tests.support.waiting import until

ENDS_S: Final = 20.0
_AS_ROOT: Final = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child=SIGKILL")
_AS_ANYBODY: Final = (*_AS_ROOT, "--user", "--map-current-user")


def unshare() -> Sequence[str]:
    """What to put before a command that becomes process 1."""
    return _AS_ROOT if os.geteuid() == 0 else _AS_ANYBODY


def enter(init: int) -> Sequence[str]:
    """What to put before a command to run it in the pid namespace of process 1 *init*."""
    as_anybody = () if os.geteuid() == 0 else ("--user", "--preserve-credentials")
    return ["nsenter", "--target", str(init), *as_anybody, "--pid", "--mount"]


@cache
def why_not() -> str | None:
    """Why there can be no pid namespace here; None: there can be."""
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        return "unshare and nsenter are not installed (package util-linux)"
    done = subprocess.run([*unshare(), "true"], capture_output=True, text=True, check=False, timeout=ENDS_S)
    return None if done.returncode == 0 else f"no pid namespace is allowed here: {done.stderr.strip()}"


class Container:
    """Process 1, and what it has started."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.init: Final = until(lambda: self._children_of(process.pid), "process 1")[0]

    @property
    def namespace(self) -> int:
        return processes.pid_namespace(self.init)

    def find(self, word: str) -> list[psutil.Process]:
        """The processes in it that have this word in their command line; as this machine numbers them."""
        return [one for one in psutil.Process(self.init).children(recursive=True) if word in _command_line(one)]

    def one(self, word: str) -> psutil.Process:
        until(lambda: len(self.find(word)) == 1, f"one process with {word!r}")
        return self.find(word)[0]

    def zombies(self) -> list[int]:
        children = psutil.Process(self.init).children(recursive=True)
        return [one.pid for one in children if _status(one) == psutil.STATUS_ZOMBIE]

    def catches(self, number: signal.Signals) -> bool:
        """Whether process 1 has a handler for this signal; without one it gets only SIGKILL and SIGSTOP."""
        lines = Path(f"/proc/{self.init}/status").read_text("utf-8").splitlines()
        mask = next(line for line in lines if line.startswith("SigCgt:")).partition(":")[2]
        return bool(int(mask, 16) & (1 << (number - 1)))

    def send(self, number: signal.Signals) -> None:
        os.kill(self.init, number)

    def wait(self) -> int:
        return self.process.wait(ENDS_S)

    def end(self) -> None:
        if self.process.poll() is None:
            os.kill(self.init, signal.SIGKILL)
            self.wait()

    @staticmethod
    def _children_of(pid: int) -> list[int]:
        return [child.pid for child in psutil.Process(pid).children()]


def start(words: Sequence[str], env: Mapping[str, str], said: Path, cwd: Path | None = None) -> Container:
    """A container that runs *words*, and writes its output to *said*."""
    with said.open("ab") as sink:
        return Container(
            subprocess.Popen([*unshare(), *words], env=env, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, cwd=cwd)
        )


def _command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _status(process: psutil.Process) -> str:
    try:
        return str(process.status())
    except psutil.Error:
        return ""
