"""
A child for the supervisor's tests: speaks the bus, misbehaves on demand, and writes down what happens to it.

Every act is one line, ``name what``, appended to the file of --diary; lines of all children are in the order of time.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from pulse.protocol import Frame, FrameReader, decode_any, encode
from pulse.system import processes

REFUSES = 78


class ScriptedChild:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.diary = os.open(options.diary, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.bus = socket.socket(fileno=options.bus_fd) if options.bus_fd is not None else None
        self.listener = socket.socket(fileno=options.listen_fd) if options.listen_fd is not None else None
        if self.listener is not None:
            self.listener.setblocking(False)

    def note(self, what: str) -> None:
        os.write(self.diary, f"{self.options.name} {what}\n".encode())

    def send(self, kind: str, request: int | None, **body: object) -> None:
        assert self.bus is not None
        self.bus.sendall(encode(kind, request, body))

    def leave(self, code: int) -> NoReturn:
        self.note(f"exits {code}")
        os._exit(code)

    def run(self) -> None:
        self.note("starts")
        signal.signal(signal.SIGTERM, self.on_term)
        signal.signal(signal.SIGUSR1, self.on_usr1)
        if self.options.crash == "early":
            self.leave(7)
        if self.options.orphan:
            orphan = subprocess.Popen(["sleep", self.options.orphan], start_new_session=True)
            self.note(f"orphan {orphan.pid}")
        if self.bus is None:
            self.serve_without_bus()
        self.serve(self.bus)

    def serve_without_bus(self) -> NoReturn:
        while True:
            signal.pause()

    def serve(self, bus: socket.socket) -> NoReturn:
        if self.options.mute:
            self.serve_without_bus()
        self.send("hello", 0, name=self.options.name, pid=os.getpid())
        reader = FrameReader(64 * 1024)
        while data := bus.recv(65536):
            for frame in reader.feed(data):
                self.hear(frame)
        self.leave(0)

    def hear(self, frame: Frame) -> None:
        body = decode_any(frame)
        match frame.kind:
            case "start":
                settings = body["settings"]
                assert isinstance(settings, dict)
                self.note(f"start boot={body['boot']} dsn={settings['dsn']}")
                self.become_ready()
            case "ping":
                self.send("pong", frame.request, turn_age_s=self.options.turn_age_s)
                self.let_in()
            case "stop":
                self.note(f"stop grace={body['grace_s']:g}")
                if not self.options.stubborn:
                    self.leave(0)
            case "hint":
                self.note(f"hint {body['event']} from={body['from']} data={body['data']}")
            case "status":
                self.send("ok", frame.request, **self.status())
            case "ok":
                self.note(f"told {sorted(body)}")
            case _:
                self.note(f"unknown {frame.kind}")

    def let_in(self) -> None:
        if self.listener is None:
            return
        with contextlib.suppress(BlockingIOError):
            client, _ = self.listener.accept()
            client.close()
            self.note("lets a client in")

    def become_ready(self) -> None:
        match self.options.crash:
            case "refuse":
                self.send("failed", None, message="the database is too new for this pulse")
                self.leave(REFUSES)
            case "primed":
                self.leave(70)
            case "garbage":
                assert self.bus is not None
                self.bus.sendall(b"\xff" * 64)
            case "never":
                pass
            case _:
                self.send("ready", None)

    def status(self) -> dict[str, object]:
        database: dict[str, object] = {"ok": True, "told_by": self.options.name}
        if self.options.name != "dispatcher":
            return {"database": database, "gate": None, "jobs": None}
        gate: dict[str, object] = {"paused": False, "reason": None, "topics": []}
        return {"database": database, "gate": gate, "jobs": {"PENDING": 3}}

    def on_term(self, _number: int, _frame: object) -> None:
        self.note("SIGTERM")
        if not self.options.stubborn:
            self.leave(0)

    def on_usr1(self, _number: int, _frame: object) -> None:
        """SIGUSR1: send the hint of the script, or ask the supervisor for status."""
        if self.options.hint is None:
            self.send("status", 1)
            return
        to, event, size = self.options.hint.split(":")
        self.send("hint", None, to=to, event=event, data={"x": "x" * int(size)})


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--diary", type=Path, required=True)
    parser.add_argument("--bus-fd", type=int)
    parser.add_argument("--listen-fd", type=int)
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--crash", choices=["early", "refuse", "primed", "garbage", "never"])
    parser.add_argument("--mute", action="store_true", help="never says hello")
    parser.add_argument("--stubborn", action="store_true", help="stops for SIGKILL only")
    parser.add_argument("--turn-age-s", type=float, default=0.0)
    parser.add_argument("--hint", help="TO:EVENT:BYTES, sent at SIGUSR1")
    parser.add_argument("--orphan", help="seconds that a process started in a session of its own lives")
    options = parser.parse_args(arguments)
    processes.die_with_parent(options.parent_pid, signal.SIGKILL)
    ScriptedChild(options).run()


if __name__ == "__main__":
    main(sys.argv[1:])
