"""The command line as users run it: whole processes, with pipes or on a terminal of a given width."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from tests.support.commandline import warm
from tests.support.confidential import note_settings, note_words, search

DEADLINE_S: Final = 30.0
PULSE: Final = (sys.executable, "-m", "pulse.cli.main")
ROOT: Final = Path(__file__).resolve().parents[3]
_ROWS: Final = 50
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True, slots=True)
class Done:
    code: int
    out: str
    err: str
    spent_s: float

    @property
    def document(self) -> object:
        return msgspec.json.decode(self.out)

    @property
    def plain(self) -> str:
        return _ESCAPES.sub("", self.out).replace("\r\n", "\n")


def environment(runtime_dir: Path | None = None, **more: str) -> dict[str, str]:
    """An environment in which nothing of this machine's pulse is found."""
    own = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PULSE_", "_PULSE_", "XDG_"))
        and key not in {"NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"}
    }
    paths = [
        str(ROOT),
        str(ROOT / "supervisor"),
        str(ROOT / "actors"),
        own.get("PYTHONPATH"),
    ]  # a mutant comes by the last
    own |= {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "TERM": "xterm-256color"}
    if runtime_dir is not None:
        own["PULSE_RUNTIME_DIR"] = str(runtime_dir)
    return own | more


def run(
    args: Sequence[str | bytes],
    env: Mapping[str, str],
    *,
    stdin: bytes = b"",
    cwd: Path | None = None,
    command: Sequence[str] = PULSE,
    within_s: float = DEADLINE_S,
) -> Done:
    """Run ``pulse`` with pipes to its end; ``ctl`` in a warm process, where that makes no difference."""
    started_s = time.monotonic()
    if command is PULSE and warm.fits(args, env, stdin, environment()):
        note_settings(env)
        note_words(args)
        code, out, err = warm.run([*map(str, args)], env, cwd or Path(tempfile.gettempdir()), stdin, within_s)
        search(out, f"stdout of {args}")
        search(err, f"stderr of {args}")
        return Done(code, out.decode(), err.decode(), time.monotonic() - started_s)
    done = subprocess.run(
        [*command, *args], env=env, input=stdin, cwd=cwd or tempfile.gettempdir(), capture_output=True,
        timeout=within_s, check=False,
    )  # fmt: skip
    spent_s = time.monotonic() - started_s
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode(), spent_s)


def run_on_terminal(
    args: Sequence[str],
    env: Mapping[str, str],
    *,
    columns: int = 100,
    stdin: bytes | None = None,
    stdout: int | None = None,
    command: Sequence[str] = PULSE,
) -> Done:
    """
    Run ``pulse`` on a terminal to its end; ``out`` is the output of both streams.

    Where they are given, *stdin* comes from a pipe, and stdout goes to that file descriptor.
    """
    started_s = time.monotonic()
    with _terminal(columns) as (master, slave):
        sink = slave if stdout is None else stdout
        if command is PULSE and stdin is None and warm.fits(args, env, b"", environment()):
            note_settings(env)
            running = warm.Running(args, env, Path(tempfile.gettempdir()), [slave, sink, slave])
            os.close(slave)
            out = _read_all(master)
            return Done(running.wait(DEADLINE_S), out.decode(), "", time.monotonic() - started_s)
        process = subprocess.Popen(
            [*command, *args], env=env, cwd=tempfile.gettempdir(), stdin=slave if stdin is None else subprocess.PIPE,
            stdout=sink, stderr=slave,
        )  # fmt: skip
        os.close(slave)
        if process.stdin is not None:
            process.stdin.write(stdin or b"")
            process.stdin.close()
        out = _read_all(master)
        code = process.wait(DEADLINE_S)
    return Done(code, out.decode(), "", time.monotonic() - started_s)


def pulse(runtime_dir: Path, line: str, *, stdin: bytes = b"", command: Sequence[str] = PULSE) -> Done:
    """Run a line such as ``ctl status`` with pipes, on the servers in *runtime_dir*."""
    return run(shlex.split(line), environment(runtime_dir), stdin=stdin, command=command)


@contextlib.contextmanager
def _terminal(columns: int) -> Iterator[tuple[int, int]]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, columns, 0, 0))
    try:
        yield master, slave
    finally:
        os.close(master)


def _read_all(master: int) -> bytes:
    parts: list[bytes] = []
    with contextlib.suppress(OSError):  # EIO: a terminal without a process
        while data := os.read(master, 65536):
            parts.append(data)
    search(b"".join(parts), "a terminal")
    return b"".join(parts)
