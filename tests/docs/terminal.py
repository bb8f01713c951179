"""A shell on a terminal of its own, one for each page: what it starts in the background ends with it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psutil

DEADLINE_S: Final = 120.0  # the tests of the shop take some twenty seconds on a quiet machine
END_S: Final = 5.0
ROWS: Final = 50
COLUMNS: Final = 100


class Terminal:
    def __init__(self, env: Mapping[str, str], directory: Path) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self._tty = os.ttyname(slave)
        self._ended, told = os.pipe()
        self._told = told
        self._log = directory / "background.log"
        self._bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile"], env=dict(env), cwd=directory, stdin=subprocess.PIPE, stdout=slave,
            stderr=slave, pass_fds=[told], text=True, start_new_session=True,
        )  # fmt: skip
        self._slave = slave

    def run(self, command: str) -> tuple[int, str]:
        """Run a command to its end: its exit code, and what the terminal got. What ends with & stays behind."""
        _, behind, rest = command.partition(" &")
        stays = bool(behind) and not rest.startswith("&")
        sink = f">>{self._log} 2>&1 </dev/null" if stays else f">{self._tty} 2>&1 <{self._tty}"
        assert self._bash.stdin is not None
        self._bash.stdin.write(f"{{\n{command}\n}} {sink} {self._told}>&-\necho $? >&{self._told}\n")
        self._bash.stdin.flush()
        out, deadline_s = b"", time.monotonic() + DEADLINE_S
        while True:
            ready, _, _ = select.select([self._master, self._ended], [], [], deadline_s - time.monotonic())
            assert ready, f"not within {DEADLINE_S} s: {command}\n{out.decode()}"
            if self._master in ready:
                out += os.read(self._master, 65536)
            elif self._ended in ready:
                return int(os.read(self._ended, 64)), out.decode("utf-8", "replace")

    @property
    def background(self) -> str:
        return self._log.read_text("utf-8", "replace") if self._log.exists() else ""

    def close(self) -> None:
        shell = psutil.Process(self._bash.pid)
        left = shell.children(recursive=True)
        for process in shell.children():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        _, stubborn = psutil.wait_procs(left, timeout=END_S)
        for process in stubborn:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        assert self._bash.stdin is not None
        self._bash.stdin.close()
        self._bash.wait(END_S)
        for descriptor in (self._master, self._slave, self._ended, self._told):
            os.close(descriptor)
