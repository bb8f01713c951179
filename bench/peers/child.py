"""Child processes: each in a session of its own, with a deadline, ended by its pid and gone at the end."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from bench.peers.peer import Answer, MeasureError

LIFE_S: Final = 170.0  # of any child: longer than every turn, shorter than patience
ANSWER_S: Final = 30.0
STOP_S: Final = 5.0
POLL_S: Final = 0.01
_LOG_LINES: Final = 8


class Child:
    """
    A process that the kernel signals when the bench dies, and that a timer kills when it outlives its deadline.

    Args:
        command: What to run; the first word is a path.
        env: Its whole environment.
        log: File to which its stderr is appended; with *talks* false its stdout, too.
        talks: Whether it answers JSON lines on stdin with JSON lines on stdout.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path, *, talks: bool) -> None:
        root = str(Path(__file__).parents[2])
        follow = [sys.executable, "-m", "pulse.ops.demo.follow", str(os.getpid())]
        path = os.pathsep.join(filter(None, (env.get("PYTHONPATH"), root)))
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*follow, *command],
                env={**env, "PYTHONPATH": path},
                cwd=log.parent,
                stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
                stdout=subprocess.PIPE if talks else output,
                stderr=output,
                start_new_session=True,
            )
        self._log = log
        self._rest = b""
        self._timer = threading.Timer(LIFE_S, self._kill)
        self._timer.daemon = True
        self._timer.start()

    def ask(self, question: Answer, within_s: float = ANSWER_S) -> Answer:
        """
        One question, one answer.

        Raises:
            MeasureError: It ended, or did not answer in time.
        """
        deadline_s = time.monotonic() + within_s
        stdin, stdout = self._pipes()
        try:
            stdin.write(json.dumps(question).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError as error:
            raise self.failed("ended") from error
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while True:
                line, newline, rest = self._rest.partition(b"\n")
                if newline:
                    self._rest = rest
                    if line.startswith(b"{"):  # anything else is what a library prints
                        answer: Answer = json.loads(line)
                        return answer
                    continue
                if not selector.select(max(0.0, deadline_s - time.monotonic())):
                    raise self.failed(f"did not answer within {within_s:g} s")
                data = os.read(stdout.fileno(), 1 << 16)
                if not data:
                    raise self.failed("ended")
                self._rest += data

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def wait_for(self, path: Path, within_s: float = ANSWER_S) -> None:
        """Wait until it has made this file."""
        deadline_s = time.monotonic() + within_s
        while not path.exists():
            if self.ended():
                raise self.failed("ended")
            if time.monotonic() > deadline_s:
                raise self.failed(f"was not ready within {within_s:g} s")
            time.sleep(POLL_S)

    def wait(self, within_s: float = ANSWER_S) -> None:
        """
        Wait for its end.

        Raises:
            MeasureError: It did not end in time, or with an error.
        """
        try:
            code = self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise self.failed(f"did not end within {within_s:g} s") from None
        if code != 0:
            raise self.failed(f"ended with {code}")

    def ended(self) -> bool:
        """Whether it has; its pid stays taken until `close`, so that nobody else is killed for it."""
        if self._process.returncode is not None:
            return True
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def close(self) -> None:
        """SIGTERM, a while, then SIGKILL for it and all that it started."""
        self._timer.cancel()
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        if not self.ended():
            self._process.send_signal(signal.SIGTERM)
        deadline_s = time.monotonic() + STOP_S
        while not self.ended() and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
        self._kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _kill(self) -> None:
        if self._process.returncode is None:  # not reaped: the group still has its number
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def failed(self, what: str) -> MeasureError:
        """The error that says so, with the last lines of the log."""
        lines = self._log.read_text("utf-8", errors="replace").splitlines()[-_LOG_LINES:]
        return MeasureError("\n".join([f"process {self._process.pid} {what}", *lines]))


@contextmanager
def running(command: Sequence[str], env: Mapping[str, str], log: Path, *, talks: bool = False) -> Iterator[Child]:
    """A child for as long as the block lasts."""
    child = Child(command, env, log, talks=talks)
    try:
        yield child
    finally:
        child.close()
