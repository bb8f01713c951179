"""
Records the terminal sessions of the site: real programs on a real terminal, written as asciicasts (version 2).

    python docs/docsite/record.py               (all of them, into docs/recordings)
    python docs/docsite/record.py operate

What is typed is typed by this script, at the pace of a person; what is answered takes the time that it takes.
"""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pulse

HERE: Final = Path(__file__).resolve().parents[1] / "recordings"
COLUMNS, ROWS = 116, 28
KEY_S: Final = 0.04
LOOK_S: Final = 1.6  # for a reader, behind each answer
PROMPT: Final = "\x1b[1;32m$\x1b[0m "
START_S: Final = 30.0
# Commands show where their database is: the same in every recording, and a name.
PLACE: Final = Path("/tmp/shop")  # noqa: S108 - if it is there already, it is refused


class Recording:
    """A terminal, and what it has shown so far."""

    def __init__(self, env: dict[str, str], directory: Path) -> None:
        self._env = {**env, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        self._directory = directory
        self._now_s = 0.0
        self._events: list[tuple[float, str]] = []

    def show(self, text: str, after_s: float = 0.0) -> None:
        """The terminal shows this."""
        self._now_s += after_s
        self._events.append((self._now_s, text))

    def type(self, command: str, quit_after_s: float | None = None) -> str:
        """A person types a command and looks at what it says; presses q after that time, where one is given."""
        self.show(PROMPT, 0.3)
        for key in command:
            self.show(key, KEY_S)
        self.show("\r\n", 0.4)
        said = self.run(command, quit_after_s)
        self._now_s += LOOK_S
        return said

    def run(self, command: str, quit_after_s: float | None = None) -> str:
        """What a command shows, as it shows it."""
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        began_s, offset_s, said = time.monotonic(), self._now_s, ""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a read may end in the middle of a character
        with subprocess.Popen(
            ["bash", "-c", command], env=self._env, cwd=self._directory, stdin=slave, stdout=slave, stderr=slave
        ):
            os.close(slave)
            with contextlib.suppress(OSError):  # EIO: nobody holds the other side any more
                while data := os.read(master, 65536):
                    spent_s = time.monotonic() - began_s
                    self._now_s = offset_s + spent_s
                    text = decoder.decode(data)
                    self._events.append((self._now_s, text))
                    said += text
                    if quit_after_s is not None and spent_s > quit_after_s:
                        os.write(master, b"q")
                        quit_after_s = None
        os.close(master)
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said)

    def save(self, path: Path, title: str) -> None:
        """Write it as a file."""
        head = {"version": 2, "width": COLUMNS, "height": ROWS, "title": title}
        lines = [json.dumps(head), *(json.dumps([round(at_s, 3), "o", text]) for at_s, text in self._events)]
        path.write_text("\n".join(lines) + "\n", "utf-8")


@contextlib.contextmanager
def place() -> Iterator[tuple[dict[str, str], Path]]:
    """An environment in which nothing of this machine's pulse is found, and a directory; one at a time."""
    directory = PLACE
    directory.mkdir()  # what is there already is somebody's
    directory.chmod(0o711)
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PULSE_", "XDG_", "NO_COLOR"))}
    env |= {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PULSE_RUNTIME_DIR": str(directory / "run"),
        "PULSE_STATE_DIR": str(directory / "state"),
        "TMPDIR": str(directory),
    }
    try:
        yield env, directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def server(env: dict[str, str], directory: Path, app: str) -> Iterator[None]:
    """A server with a pool of two processes."""
    command = ["pulse-supervisor", "--app", app, "--processes", "2"]
    with subprocess.Popen(command, env=env, cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as it:
        deadline_s = time.monotonic() + START_S
        status = ["pulse", "ctl", "workers"]
        while b"default" not in subprocess.run(status, env=env, check=False, capture_output=True).stdout:
            if time.monotonic() > deadline_s:
                raise TimeoutError("no server")
            time.sleep(0.2)
        try:
            yield
        finally:
            it.send_signal(signal.SIGTERM)


def demo(path: Path) -> None:
    """`pulse demo`, as it is."""
    with place() as (env, directory):
        recording = Recording(env, directory)
        recording.type("pulse demo")
        recording.save(path, "A worker dies in the middle of a job")


def operate(path: Path) -> None:
    """What is going on, why a job does not run, and what it does when it does."""
    with place() as (env, directory), server(env, directory, "pulse.ops.demo.app:app"):
        subprocess.run(["pulse", "ctl", "dispatch", "pause", "--reason", "disk full"], env=env, check=True)
        recording = Recording(env, directory)
        recording.type("pulse ctl status")
        job = recording.type("""pulse ctl submit checksum-library '{"slices": 60}'""").strip()
        recording.type(f"pulse ctl jobs why {job}")
        recording.type("pulse ctl dispatch resume")
        recording.type(f"pulse ctl jobs why {job}")
        recording.type(f"pulse ctl jobs get {job}")
        recording.type("pulse ctl jobs list")
        recording.save(path, "Why does a job not run?")


def top(path: Path) -> None:
    """The live screen, with something to see."""
    with place() as (env, directory), server(env, directory, "pulse.ops.demo.app:app"), traffic(directory):
        recording = Recording(env, directory)
        recording.type("pulse ctl top", quit_after_s=10.0)
        recording.save(path, "pulse ctl top")


@contextlib.contextmanager
def traffic(directory: Path) -> Iterator[None]:
    """Short jobs all the time, and some long ones; more than two processes can do at once."""
    ended = threading.Event()

    def submit() -> None:
        with pulse.Client(directory / "run" / "pulse.sock") as client:
            client.submit_many([{"name": "checksum-library", "args": {"slices": 100}} for _ in range(24)])
            while not ended.wait(0.05):
                client.submit("checksum", {"package": "json"}, priority=5)

    thread = threading.Thread(target=submit)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


SESSIONS: Final[dict[str, Callable[[Path], None]]] = {"demo": demo, "operate": operate, "top": top}


if __name__ == "__main__":
    for name in sys.argv[1:] or SESSIONS:
        SESSIONS[name](HERE / f"{name}.cast")
