"""A terminal as people have one: tmux draws it, tests type into it, change its size and read it."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.support.waiting import until

_CODE: Final = "the command ended with "


class Screen:
    def __init__(self, program: str, socket: Path) -> None:
        self._tmux = (program, "-S", str(socket), "-f", "/dev/null")

    def start(self, command: str, env: Mapping[str, str], columns: int, lines: int) -> None:
        words = " ".join(f"{key}={shlex.quote(value)}" for key, value in env.items() if key.isidentifier())
        # Ctrl-C reaches the shell, too, which is to tell how the command ended.
        shell = f"trap : INT; env -i {words} {command}; echo '{_CODE}'$?; exec sleep 60"
        self._run("new-session", "-d", "-x", str(columns), "-y", str(lines), shell)

    @property
    def text(self) -> str:
        return self._run("capture-pane", "-p")

    def see(self, *texts: str, within_s: float = 10.0) -> str:
        """Its text as soon as it has all *texts*."""
        last = [""]

        def is_there() -> bool:
            last[0] = self.text
            return all(text in last[0] for text in texts)

        try:
            until(is_there, "", within_s)
        except AssertionError:
            raise AssertionError(f"not {texts} within {within_s} s, but\n{last[0]}") from None
        return last[0]

    def type(self, *keys: str) -> None:
        """Press keys, by tmux's names: q, Up, C-c."""
        self._run("send-keys", *keys)

    def resize(self, columns: int, lines: int) -> None:
        self._run("resize-window", "-x", str(columns), "-y", str(lines))

    def code(self, within_s: float = 10.0) -> int:
        return int(self.see(_CODE, within_s=within_s).partition(_CODE)[2].split()[0])

    def close(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            self._run("kill-server")

    def _run(self, *words: str) -> str:
        done = subprocess.run(
            [*self._tmux, *words],
            check=True,
            capture_output=True,
            text=True,
            timeout=20,
            env={**os.environ, "TMUX": "", "SHELL": "/bin/sh"},  # an account without a login has nologin there
        )
        return done.stdout


@contextlib.contextmanager
def screen() -> Iterator[Screen]:
    program = shutil.which("tmux")
    if program is None:
        pytest.skip("package tmux is not installed")
    with (
        tempfile.TemporaryDirectory(prefix="pulse-x-") as name,
        contextlib.closing(Screen(program, Path(name) / "s")) as made,
    ):
        yield made
