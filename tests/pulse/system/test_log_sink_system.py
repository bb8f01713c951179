"""Programs whose standard streams cannot be written at once: their last words, their forks, their end."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.servers.streams import DEADLINE_S, PIPE_BYTES, Reader
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(30)  # what blocks for ever has failed

PROGRAM: Final = """
import os, sys
from pulse.logs import configure_logging
import structlog
configure_logging("info", "json")
log = structlog.get_logger()
"""
PYTHON: Final = (sys.executable, "-W", "ignore:This process:DeprecationWarning")  # 3.12 warns of a fork beside threads


def run(code: str, *, out: int, err: int) -> int:
    words = [*PYTHON, "-c", PROGRAM + code]
    return subprocess.run(words, stdout=out, stderr=err, timeout=DEADLINE_S, check=False).returncode


def test_last_words(tmp_path: Path) -> None:
    code = "log.info('first'); print('second'); sys.stdout.close(); log.info('third'); print('fo', end=''); 1 / 0"
    with (tmp_path / "log").open("wb") as log:
        assert run(code, out=log.fileno(), err=log.fileno()) == 1
    lines = (tmp_path / "log").read_text("utf-8").splitlines()
    assert ["first" in lines[0], lines[1], "third" in lines[2]] == [True, "second", True]
    assert lines[-2:] == ["ZeroDivisionError: division by zero", "fo"]


@pytest.mark.parametrize("early", ["", "log.info('early')"])
def test_the_last_phase(early: str, tmp_path: Path) -> None:
    code = f"""
class Late:
    log, is_finalizing = structlog.get_logger().bind(), sys.is_finalizing
    def __del__(self): self.log.info("late", last=self.is_finalizing())
late = Late()
{early}
"""
    with (tmp_path / "log").open("wb") as log:
        assert run(code, out=log.fileno(), err=log.fileno()) == 0
    lines = [json.loads(line) for line in (tmp_path / "log").read_text("utf-8").splitlines()]
    assert [line["event"] for line in lines] == ["early"] * bool(early) + ["late"]
    assert lines[-1]["last"]


def test_who_ends_has_a_second_for_what_waits(tmp_path: Path) -> None:
    code = """
from pulse.system import log_sink
log_sink.last_words.__defaults__ = (float(sys.argv[1]),)
for number in range(2000): print(number)
print(len(log_sink._installed), end="")
open(sys.argv[2], "w").close()
"""
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    reader, mark = Reader(read), tmp_path / "mark"
    words = [sys.executable, "-c", PROGRAM + code]
    with subprocess.Popen([*words, str(DEADLINE_S), str(mark)], stdout=write, stderr=write) as it:
        until(mark.exists, "all is printed", DEADLINE_S)
        reader.read(lambda text: text.endswith(b"\n1999\n1"))  # and both streams had the same sink
        assert it.wait(DEADLINE_S) == 0
    assert reader.text == b"".join(b"%d\n" % number for number in range(2000)) + b"1"
    with subprocess.Popen([*words, "0.1", str(mark)], stdout=write, stderr=write) as it:
        assert it.wait(DEADLINE_S) == 0
    os.close(read)
    os.close(write)


def test_a_fork_says_its_own_words(tmp_path: Path) -> None:
    """A child of a handler that ends without Python's exit has its lines written, and none of its parent's."""
    code = "print('mine')\nif not os.fork(): print('theirs'); os._exit(0)\nos.wait(); print('end')"
    with (tmp_path / "log").open("wb") as log:
        assert run(code, out=log.fileno(), err=log.fileno()) == 0
    assert (tmp_path / "log").read_text("utf-8").splitlines() == ["mine", "theirs", "end"]


FORKS = """
import signal
from pulse.system import log_sink
for number in range(2000): print(number)
if os.fork() == 0:
    signal.alarm(5)  # where it waits for ever
    print("theirs")
    open(sys.argv[1], "w").close()
    log_sink.last_words(10)
    os._exit(0)
os.wait()
log_sink.last_words(10)
"""


def says_each_once(code: str, mark: Path) -> None:
    """Of a program, *code* and a child that writes a word and *mark*s it, beside 2000 waiting lines: each once."""
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    reader = Reader(read)
    with subprocess.Popen([*PYTHON, "-c", code + FORKS, str(mark)], stdout=write, stderr=write) as it:
        os.close(write)
        until(mark.exists, "the child has said it", DEADLINE_S)
        reader.read(lambda _: it.poll() is not None)
    reader.look(1 << 20)
    os.close(read)
    assert sorted(reader.text.split()) == sorted([*(b"%d" % number for number in range(2000)), b"theirs"])


def test_a_fork_while_lines_wait(tmp_path: Path) -> None:
    says_each_once(PROGRAM, tmp_path / "mark")


def test_a_fork_while_the_thread_is_at_it(tmp_path: Path) -> None:
    """The child inherits neither the lock of its parent's thread, nor its lines."""
    code = """
import os, signal, sys, threading
from pulse import logs
from pulse.system import log_sink
held, done = threading.Event(), threading.Event()

def hold():
    with sink._lock:
        held.set()
        done.wait()

def late():  # of such hooks the first comes last, here behind the sinks' own
    threading.Thread(target=hold).start()
    held.wait()

os.register_at_fork(before=late, after_in_parent=done.set)
logs.configure_logging("info", "json")
(sink,) = log_sink._installed
"""
    says_each_once(code, tmp_path / "mark")


@pytest.mark.parametrize("kind", ["pipe", "socket", "file"])
@pytest.mark.parametrize("opened", [0, 20])
def test_a_daemon_closes_everything(kind: str, opened: int, tmp_path: Path) -> None:
    code = """
if os.fork() == 0:
    os.closerange(3, 256)
    files = [open(f"{sys.argv[1]}/{number}", "w") for number in range(int(sys.argv[2]))]
    print("theirs")
    for file in files: file.write("x")
    for file in files: file.close()
    os._exit(0)
os.wait()
"""
    log = tmp_path / "log"
    if kind == "pipe":
        read, write = os.pipe()
    elif kind == "socket":
        read, write = (end.detach() for end in socket.socketpair())
    else:
        log.touch()
        read, write = os.open(log, os.O_RDONLY), os.open(log, os.O_WRONLY)
    words = [sys.executable, "-c", PROGRAM + code, str(tmp_path), str(opened)]
    subprocess.run(words, stdout=write, stderr=write, timeout=DEADLINE_S, check=True)
    assert os.read(read, 1000) == b"theirs\n"
    assert {(tmp_path / str(number)).read_text("utf-8") for number in range(opened)} <= {"x"}
    os.close(read)
    os.close(write)


def test_what_standard_output_loses_is_told_on_standard_error(tmp_path: Path) -> None:
    code = "for _ in range(100): print('x' * 6000)\nlog.info('printed'); sys.stdin.read(1)"
    read, write = os.pipe()
    reader, log = Reader(read), tmp_path / "log"
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    with (
        log.open("wb") as err,
        subprocess.Popen([sys.executable, "-c", PROGRAM + code], stdin=subprocess.PIPE, stdout=write, stderr=err) as it,
    ):
        os.close(write)
        until(lambda: b"printed" in log.read_bytes(), "all is printed", DEADLINE_S)
        reader.read(lambda _: b"dropped" in log.read_bytes())
        it.communicate(b"x", DEADLINE_S)
    line = json.loads(log.read_text("utf-8").splitlines()[1])
    assert (line["event"], line["level"], line["stream"]) == ("log_lines_dropped", "warning", "stdout")
    reader.read(lambda text: line["count"] + text.count(b"\n") == 100)
    os.close(read)


@pytest.mark.parametrize("closed", ["1", "2", "1 2"])
def test_closed_streams(closed: str, tmp_path: Path) -> None:
    closing = " ".join(f"{fd}>&-" for fd in closed.split())
    code = PROGRAM + "print('out'); log.info('err')\nopen(sys.argv[1], 'w').write('done')"
    mark = tmp_path / "mark"
    subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" "$2" {closing}', sys.executable, code, str(mark)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60, check=True,
    )  # fmt: skip
    assert mark.read_text("utf-8") == "done"
