"""What may be open, and what must not run, in a process that is forked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pulse.system import process_tree

pytestmark = pytest.mark.process

CHECK = (
    "import json, os, select, socket, subprocess, sys, tempfile, threading, _thread, time\n"
    "from pulse.worker.pool.fork_check import open_descriptors, unsafe\n"
    "opened = open_descriptors()\n"
    "exec(sys.argv[1])\n"
    "print(json.dumps(unsafe(opened)), flush=True)\n"
    "os._exit(0)\n"
)


def found(code: str, place: Path) -> list[str]:
    """What it says after *code*, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", CHECK, code], check=True, capture_output=True, text=True, cwd=place,
        env={**os.environ, process_tree.MARK: process_tree.new_mark()},
    )  # fmt: skip
    one: list[str] = json.loads(done.stdout)
    return one


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("threading.Thread(target=time.sleep, args=(60,), name='ticker', daemon=True).start()", "thread ticker"),
        ("_thread.start_new_thread(time.sleep, (60,))", "thread of C code"),
        ("kept = subprocess.Popen(['sleep', '0.2'])", "child process "),
        ("kept = socket.create_server(('127.0.0.1', 0))", "socket 127.0.0.1:"),
        ("kept = socket.socketpair()[0]", "socket"),
        ("kept = select.epoll()", "anon_inode:[eventpoll]"),
        ("kept = os.pipe()", "pipe:["),
        ("kept = open('data', 'w')", "{place}/data"),
        ("kept = os.openpty()", "/dev/p"),
    ],
)
def test_what_is_against_it(code: str, what: str, tmp_path: Path) -> None:
    assert found(code, tmp_path)[0].startswith(what.format(place=tmp_path))


def test_a_connection_is_named_by_its_other_end(tmp_path: Path) -> None:
    """That tells which service it is."""
    code = "a = socket.create_server(('127.0.0.1', 0)); b = socket.create_connection(a.getsockname())"
    listens, connected = found(code, tmp_path)
    assert listens == connected


@pytest.mark.parametrize(
    "code", ["kept = open('log', 'a')", "kept = os.open('.', os.O_RDONLY)", "kept = open('/dev/null')"]
)
def test_what_may_be_shared(code: str, tmp_path: Path) -> None:
    """Each write to a log file goes to its end."""
    assert found(code, tmp_path) == []
