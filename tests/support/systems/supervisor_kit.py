"""What the tests of the supervisor share: a supervisor over scripted children, and ways to look at it from outside."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.support.commandline.warm import program
from tests.support.servers.streams import JsonLines
from tests.support.systems.peers import Body, Peer
from tests.support.systems.system import short_directory
from tests.support.waiting import is_alive, until

PROGRAM = Path(__file__).with_name("supervisor_under_test.py")
MODULE = "tests.support.systems.supervisor_under_test"
ROOT = Path(__file__).parents[3]
NAMES = ("watchdog", "pause", "scheduler", "dispatcher")
SOON_S = 15.0  # for what takes milliseconds on a quiet machine


def script(name: str, *words: str, **more: object) -> dict[str, object]:
    """A child for the supervisor under test; the words are options of supervisor_child.py."""
    return {"name": name, "words": list(words), **more}


def four(**words: list[str]) -> list[dict[str, object]]:
    return [script(name, *words.get(name, [])) for name in NAMES]


def open_files(pid: int) -> list[str]:
    """What the descriptors of *pid* refer to."""
    return [str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()]


@dataclass(slots=True)
class Rig:
    process: subprocess.Popen[bytes]
    directory: Path
    diary: Path
    errors: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def log(self, event: str | None = None, **fields: object) -> list[dict[str, object]]:
        entries = JsonLines(self.errors, dict, bool).read()
        wanted = fields if event is None else {"event": event, **fields}
        return [entry for entry in entries if all(entry.get(key) == value for key, value in wanted.items())]

    def lines(self) -> list[str]:
        return [line for line in self.errors.read_text("utf-8").splitlines() if line.startswith("pulse-supervisor: ")]

    def acts(self) -> list[str]:
        return self.diary.read_text("utf-8").splitlines() if self.diary.exists() else []

    def wait_ready(self) -> None:
        self.wait_log("supervisor_ready")

    def wait_log(self, event: str, within_s: float = SOON_S, **fields: object) -> dict[str, object]:
        def look() -> list[dict[str, object]]:
            found = self.log(event, **fields)
            assert found or self.process.poll() is None, self.errors.read_text("utf-8")
            return found

        return until(look, f"log {event} {fields}", within_s)[0]

    def wait_act(self, act: str, within_s: float = SOON_S) -> None:
        until(lambda: act in self.acts(), f"{act} in {self.acts()}", within_s)

    def wait_exit(self, within_s: float = SOON_S) -> int:
        return self.process.wait(within_s)

    def descendants(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def programs(self) -> set[str]:
        names: set[str] = set()
        for process in self.descendants():
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended meanwhile
                names.add(process.name())
        return names

    def pids(self) -> dict[str, int]:
        status = self.ask("status")
        rows = [*status["actors"], *status["pools"]]
        return {row["name"]: row["pid"] for row in rows if row["pid"] is not None}

    def actor(self, name: str) -> Body:
        return next(row for row in self.ask("status")["actors"] if row["name"] == name)

    def connect(self) -> Peer:
        return Peer(self.directory / "supervisor.sock")

    def ask(self, kind: str, **body: object) -> Body:
        with self.connect().hello() as caller:
            return caller.call(kind, **body)


@contextmanager
def supervisor(
    children: list[dict[str, object]],
    *,
    directory: Path | None = None,
    env: Mapping[str, str] | None = None,
    pipes_log: bool = False,
    handed: Mapping[str, socket.socket] | None = None,
) -> Iterator[Rig]:
    """
    A supervisor over these children; whatever it leaves behind is killed.

    Args:
        children: Scripts for ``supervisor_child.py``.
        pipes_log: Its log is a pipe to us.
        handed: Sockets as a service manager passes them, by their names.
    """
    with contextlib.ExitStack() as stack:
        base = stack.enter_context(short_directory())
        runtime_dir = directory or base / "run"
        diary, errors = base / "diary", base / "errors"
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("PULSE_", "NOTIFY_"))}
        environment = {
            **inherited, "PULSE_RUNTIME_DIR": str(runtime_dir), "PULSE_DSN": "postgresql://nobody@localhost/nothing",
            "PULSE_LOG_FORMAT": "json", "PULSE_LOG_LEVEL": "debug",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])), **(env or {}),
        }  # fmt: skip
        with errors.open("wb") as sink:
            words, cold = [str(diary), json.dumps(children)], [sys.executable, str(PROGRAM)]
            if handed is None and not pipes_log:
                process = program(MODULE, words, cold, env=environment, stderr=sink, cwd=base)
            else:
                process = subprocess.Popen(
                    [*_handing(handed), *cold, *words], env=environment,
                    pass_fds=[sock.fileno() for sock in (handed or {}).values()], stdin=subprocess.DEVNULL,
                    stderr=subprocess.PIPE if pipes_log else sink, cwd=base,
                )  # fmt: skip
        rig = Rig(process, runtime_dir, diary, errors)
        stack.callback(_bury, rig)
        yield rig


def _handing(handed: Mapping[str, socket.socket] | None) -> list[str]:
    """Words before a command that pass it these sockets, from descriptor 3 on, with its own pid beside them."""
    if handed is None:
        return []
    fds = [sock.fileno() for sock in handed.values()]
    code = f"""
import fcntl, os, sys
parked = [fcntl.fcntl(fd, fcntl.F_DUPFD, 100) for fd in {fds}]
for number, fd in enumerate(parked, 3):
    os.dup2(fd, number)
    os.close(fd)
names = {{"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "{len(fds)}", "LISTEN_FDNAMES": {":".join(handed)!r}}}
os.execve(sys.argv[1], sys.argv[1:], {{**os.environ, **names}})
"""
    return [sys.executable, "-c", code]


def _bury(rig: Rig) -> None:
    below = rig.descendants()
    if rig.process.poll() is None:
        rig.process.kill()
    rig.process.wait(SOON_S)
    for process in below:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    until(lambda: not any(is_alive(process.pid) for process in below), "all children end")
