"""
``pulse ctl`` started in a tenth of the time: by a server that has imported it already, and forks for each command.

Each is a process of its own, with the words, environment, folder and descriptors of its caller, and ends like
an interpreter. Tests of what happens before ``main`` start it cold.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.mutants.site.hook import SOURCE

ROOT: Final = Path(__file__).resolve().parents[3]
PIPE_BYTES: Final = 65536  # what a pipe takes without a reader
_AT_START: Final = ("PYTHON", "LC_", "LANG", "LD_")  # variables that an interpreter looks at when it starts
_NUMBER: Final = struct.Struct("=q")
_REQUEST_BYTES: Final = 100_000


class Request(NamedTuple):
    words: list[str]
    env: dict[str, str]
    cwd: str


class Running:
    """``pulse`` with these words, which begin with ``ctl``; *descriptors* are its stdin, stdout and stderr."""

    def __init__(self, words: Sequence[str], env: Mapping[str, str], cwd: Path, descriptors: Sequence[int]) -> None:
        self._told, told = socket.socketpair()
        request = json.dumps(Request(list(words), dict(env), str(cwd))).encode()
        with told:
            socket.send_fds(_server(os.environ.get(SOURCE)), [request], [told.fileno(), *descriptors])
        self.pid = self._number()

    def wait(self, timeout_s: float) -> int:
        self._told.settimeout(timeout_s)
        with self._told:
            try:
                return self._number()
            except TimeoutError:
                os.kill(self.pid, signal.SIGKILL)
                raise

    def _number(self) -> int:
        data = self._told.recv(_NUMBER.size)
        assert len(data) == _NUMBER.size, "the server of warm processes has ended"
        return int(_NUMBER.unpack(data)[0])


def fits(words: Sequence[str | bytes], env: Mapping[str, str], stdin: bytes, usual: Mapping[str, str]) -> bool:
    """Whether a warm process is as good as a cold one, where *usual* is the environment of the server."""
    return (
        list(words[:1]) == ["ctl"]
        and all(isinstance(word, str) and word.isprintable() for word in words)
        and sum(map(len, words)) < _REQUEST_BYTES // 10
        and len(stdin) <= PIPE_BYTES
        and _at_start(env) == _at_start(usual)
    )


def run(
    words: Sequence[str], env: Mapping[str, str], cwd: Path, stdin: bytes, timeout_s: float
) -> tuple[int, bytes, bytes]:
    """Run ``pulse`` with pipes to its end: its exit code, and what it wrote to stdout and stderr."""
    deadline_s = time.monotonic() + timeout_s
    pipes = [os.pipe() for _ in range(3)]
    (its_stdin, feed), (stdout, its_stdout), (stderr, its_stderr) = pipes
    os.write(feed, stdin)
    os.close(feed)
    running = Running(words, env, cwd, [its_stdin, its_stdout, its_stderr])
    for number in (its_stdin, its_stdout, its_stderr):
        os.close(number)
    said: dict[int, list[bytes]] = {stdout: [], stderr: []}
    with selectors.DefaultSelector() as selector:
        for number in said:
            selector.register(number, selectors.EVENT_READ)
        while selector.get_map() and time.monotonic() < deadline_s:
            for key, _ in selector.select(deadline_s - time.monotonic()):
                said[key.fd].append(os.read(key.fd, PIPE_BYTES))
                if not said[key.fd][-1]:
                    selector.unregister(key.fd)
    for number in said:
        os.close(number)
    code = running.wait(max(deadline_s - time.monotonic(), 0.01))
    return code, b"".join(said[stdout]), b"".join(said[stderr])


def _at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in env.items() if key.startswith(_AT_START)}


@functools.cache
def _server(mutant: str | None) -> socket.socket:
    """Start the server, with the *mutant* that is in force now; it ends when this process closes the socket."""
    del mutant
    from tests.support.commandline.cli import environment

    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "tests.support.commandline.warm", str(there.fileno())]
    with there:
        server = subprocess.Popen(
            command, env=environment(), cwd=ROOT, pass_fds=[there.fileno()], stdin=subprocess.DEVNULL
        )

    def end() -> None:
        here.close()
        server.wait()

    atexit.register(end)
    return here


def main(number: int) -> None:
    """Serve until nobody can ask any more; what is forked goes on behind that."""
    _import()
    with socket.socket(fileno=number) as asked:
        forked = _serve(asked)
    if forked is None:
        return
    from pulse.cli.main import main as pulse

    _become(*forked)
    sys.exit(pulse())


def _serve(asked: socket.socket) -> tuple[Request, list[int]] | None:
    """Fork for each request, tell who asks the pid and how it ended; in what was forked, return the request."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(asked, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if woken in ready:
                os.read(woken, PIPE_BYTES)
                _tell_ends(running)
            if asked.fileno() not in ready:
                continue
            data, passed, _, _ = socket.recv_fds(asked, _REQUEST_BYTES, 4)
            if not data:
                return None
            pid = os.fork()
            if not pid:
                return Request(*json.loads(data)), passed[1:]
            for one in passed[1:]:
                os.close(one)
            running[pid] = socket.socket(fileno=passed[0])
            with contextlib.suppress(OSError):
                running[pid].sendall(_NUMBER.pack(pid))


def _tell_ends(running: dict[int, socket.socket]) -> None:
    for pid in list(running):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with running.pop(pid) as told, contextlib.suppress(OSError):
                told.sendall(_NUMBER.pack(os.waitstatus_to_exitcode(status)))


def _become(request: Request, descriptors: list[int]) -> None:
    """Be an interpreter that was started so."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, one in enumerate(descriptors):
        os.dup2(one, number)
    os.closerange(3, 256)
    os.chdir(request.cwd)
    os.environ.clear()
    os.environ.update(request.env)
    time.tzset()
    sys.argv[1:] = request.words
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, "utf-8", "backslashreplace", closefd=False)


def _import() -> None:
    import click

    from pulse.cli.ctl import ctl

    def look(group: click.Group) -> None:
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if isinstance(command, click.Group):
                look(command)

    look(ctl)
    gc.freeze()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        main(int(sys.argv[1]))
    except KeyboardInterrupt:  # of the server, or of what was forked and has not begun
        sys.exit(128 + signal.SIGINT)
