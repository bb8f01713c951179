"""
Programs of pulse started in a tenth of the time: by a server that has imported them already, and forks for each.

Each is a process of its own, with the words, environment, folder and descriptors of its caller, and ends like
an interpreter. One server is for ``pulse ctl``, one for bridges, the other for supervisors and pools of workers.
Tests of what happens before ``main`` start them cold.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
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
from typing import IO, Any, Final, NamedTuple

from pulse.worker.options import import_loop
from tests.mutants.site.hook import SOURCE
from tests.support.commandline import standby

ROOT: Final = Path(__file__).resolve().parents[3]
ROOM: Final = " " * 10_000  # for the words and environment of what is forked
PIPE_BYTES: Final = 65536  # what a pipe takes without a reader
PULSE: Final = "pulse.cli.main"
ACTORS: Final = "pulse_actors"
ACTOR_MODULES: Final = ("dispatcher.main", "watchdog.actor", "scheduler.actor", "pause")
HANDLERS: Final = "pulse.worker.handler_process"
SYSTEMS: Final = {  # the modules of these programs, and what they import later than at their start
    "pulse_supervisor.main": ("pulse.logs", "pulse_supervisor.preflight", "pulse_supervisor.supervisor"),
    "pulse.worker.__main__": (),
    PULSE: ("pulse.worker.command",),
    "tests.support.systems.supervisor_under_test": (),
    f"{ACTORS}.__main__": tuple(f"{ACTORS}.{name}" for name in ACTOR_MODULES),
    HANDLERS: (),
}
STARTS: Final = {  # what each of them starts first
    "pulse_supervisor.main": ACTORS,
    "pulse.worker.__main__": HANDLERS,
    PULSE: HANDLERS,
}
BRIDGES: Final = ("pulse.bridge.command", "pulse.bridge.nats", "pulse.bridge.outbox")
_NUMBER: Final = struct.Struct("=q")
_REQUEST_BYTES: Final = 100_000


class Request(NamedTuple):
    module: str
    words: list[str]
    env: dict[str, str]
    cwd: str
    nice: int
    leads_session: bool


class Running:
    """``pulse``, or another *module*, with these words; *descriptors* are its stdin, stdout and stderr."""

    def __init__(
        self,
        words: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        descriptors: Sequence[int],
        *,
        module: str = PULSE,
        leads_session: bool = False,
    ) -> None:
        self._told, told = socket.socketpair()
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        request = json.dumps(Request(module, list(words), dict(env), str(cwd), nice, leads_session)).encode()
        first = words[0] if words else ""
        server = _server(os.environ.get(SOURCE), first if first in {"ctl", "bridge"} else "systems")
        with told:
            socket.send_fds(server, [request], [told.fileno(), *descriptors])
        self.pid = self._number()

    def wait(self, timeout_s: float) -> int:
        """Its exit code; it is killed if it takes longer."""
        with self._told:
            try:
                return self.end(timeout_s)
            except TimeoutError:
                os.kill(self.pid, signal.SIGKILL)
                raise

    def end(self, timeout_s: float | None) -> int:
        """
        Its exit code.

        Raises:
            TimeoutError: It has not ended by then.
        """
        self._told.settimeout(timeout_s)
        try:
            code = self._number()
        except BlockingIOError:  # of a timeout of 0
            raise TimeoutError from None
        self._told.close()
        return code

    def _number(self) -> int:
        data = self._told.recv(_NUMBER.size)
        assert len(data) == _NUMBER.size, "the server of warm processes has ended"
        return int(_NUMBER.unpack(data)[0])


class Process(subprocess.Popen[bytes]):
    """Like a Popen of one of SYSTEMS, but forked: without pipes, and with /dev/null for its stdin."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        stdout: IO[bytes] | None = None,
        stderr: IO[bytes],
        start_new_session: bool = False,
    ) -> None:
        """*words* begin with the module; *stdout* is the one of this process where none is given."""
        self.args = words
        self.stdin = self.stdout = self.stderr = None
        self.returncode: int | Any = None
        module, *rest = words
        with Path(os.devnull).open("rb") as nothing:
            descriptors = [nothing.fileno(), 1 if stdout is None else stdout.fileno(), stderr.fileno()]
            self._running = Running(rest, env, cwd, descriptors, module=module, leads_session=start_new_session)
        self.pid = self._running.pid

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            try:
                self.returncode = self._running.end(timeout)
            except TimeoutError:
                raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
        return int(self.returncode)


def program(
    module: str,
    words: Sequence[str],
    cold: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    stdout: IO[bytes] | None = None,
    stderr: IO[bytes],
    start_new_session: bool = False,
    may_be_warm: bool = True,
) -> subprocess.Popen[bytes]:
    """Start *module* with these words: warm, or by the command *cold* where an interpreter has to see *env* first."""
    if may_be_warm and is_usual(env):
        return Process(
            [module, *words], env=env, cwd=cwd, stdout=stdout, stderr=stderr, start_new_session=start_new_session
        )
    return subprocess.Popen(
        [*cold, *words], env=env, stdin=subprocess.DEVNULL, cwd=cwd, stdout=stdout, stderr=stderr,
        start_new_session=start_new_session,
    )  # fmt: skip


def is_usual(env: Mapping[str, str]) -> bool:
    """Whether an interpreter would begin with it as the server did; the server may find more modules."""
    from tests.support.commandline.cli import environment

    (its, usual) = (standby.at_start(one) for one in (env, environment()))
    paths, known = (set(filter(None, one.pop("PYTHONPATH", "").split(os.pathsep))) for one in (its, usual))
    return its == usual and paths <= known


def fits(words: Sequence[str | bytes], env: Mapping[str, str], stdin: bytes, usual: Mapping[str, str]) -> bool:
    """Whether a warm process is as good as a cold one, where *usual* is the environment of the server."""
    return (
        list(words[:1]) == ["ctl"]
        and all(isinstance(word, str) and word.isprintable() for word in words)
        and sum(map(len, words)) < _REQUEST_BYTES // 10
        and len(stdin) <= PIPE_BYTES
        and standby.at_start(env) == standby.at_start(usual)
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


@functools.cache
def _server(mutant: str | None, imports: str) -> socket.socket:
    """Start a server, with the *mutant* that is in force now; it ends when this process closes the socket."""
    del mutant
    from tests.support.commandline.cli import environment

    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "tests.support.commandline.warm", imports, str(there.fileno()), ROOM]
    with there:
        server = subprocess.Popen(
            command, env={**environment(), "ROOM": ROOM}, cwd=ROOT, pass_fds=[there.fileno()], stdin=subprocess.DEVNULL
        )

    def end() -> None:
        here.close()
        server.wait()

    atexit.register(end)
    return here


def main(imports: str, number: int) -> None:
    """Serve until nobody can ask any more; what is forked goes on behind that."""
    if imports == "ctl":
        _import_ctl()
    elif imports == "bridge":
        for name in (PULSE, *BRIDGES):
            importlib.import_module(name)
    else:
        for module, later in SYSTEMS.items():
            for name in (module, *later):
                importlib.import_module(name)
        import_loop("asyncio")
    gc.freeze()
    with socket.socket(fileno=number) as asked:
        forked = _serve(asked)
    if forked is None:
        return
    _become(*forked)
    request = forked[0]
    if imports == "systems" and request.module in STARTS and "--reload" not in request.words:
        standby.lend(STARTS[request.module])
    sys.exit(importlib.import_module(request.module).main())


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
    if request.leads_session:
        os.setsid()
    os.setpriority(os.PRIO_PROCESS, 0, max(request.nice, os.getpriority(os.PRIO_PROCESS, 0)))
    for number, one in enumerate(descriptors):
        os.dup2(one, number)
    os.closerange(3, 256)
    os.chdir(request.cwd)
    standby.be_shown([sys.executable, "-m", request.module, *request.words], request.env)
    sys.argv[1:] = request.words
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, "utf-8", "backslashreplace", closefd=False)


def _import_ctl() -> None:
    import click

    import pulse.cli.main  # noqa: F401 # pyright: ignore[reportUnusedImport] - it runs
    from pulse.cli.ctl import ctl

    def look(group: click.Group) -> None:
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if isinstance(command, click.Group):
                look(command)

    look(ctl)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        main(sys.argv[1], int(sys.argv[2]))
    except KeyboardInterrupt:  # of the server, or of what was forked and has not begun
        sys.exit(128 + signal.SIGINT)
