"""The program between the supervisor and a child: what it sets up before it becomes the child."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pulse_supervisor.children import child_exec
from tests.support.servers.embedded_kit import needs_root
from tests.support.waiting import is_alive, until

pytestmark = [pytest.mark.process, pytest.mark.timed]
WRAPPER = [sys.executable, "-I", "-S", str(child_exec.__file__)]
SHELL = "/bin/sh"
_DEFAULT = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM)
PARENT = """
import os, subprocess, sys
options = ["--parent", str(os.getpid()), "--death-signal", sys.argv[1]]
subprocess.Popen([*sys.argv[2:], *options, "--", "/bin/sleep", "600"])
sys.stdin.read()
"""


def wrapped(*program: str, options: tuple[str, ...] = (), parent: int | None = None, death: str = "KILL") -> list[str]:
    pid = os.getpid() if parent is None else parent
    return [*WRAPPER, "--parent", str(pid), "--death-signal", death, *options, "--", *program]


def test_it_becomes_the_program() -> None:
    argv = wrapped(SHELL, "-c", 'echo $$ "$1"; ps -o pgid= -p $$', "sh", "two words")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        out, _ = process.communicate(timeout=10)
    pid, rest = out.split(maxsplit=1)
    assert int(pid) == process.pid
    assert rest.split() == ["two", "words", pid]


@pytest.mark.parametrize("death", ["KILL", "INT", "TERM"])
def test_the_program_dies_with_its_parent(death: str) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, death, *WRAPPER], stdin=subprocess.PIPE) as parent:
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        until(lambda: bool(children.read_text().split()), "a child", 10)
        child = int(children.read_text().split()[0])
        until(lambda: Path(f"/proc/{child}/comm").read_text() == "sleep\n", "the program runs", 10)
        parent.kill()
        until(lambda: not is_alive(child), "the program is dead", 5)


def test_without_a_death_signal_there_is_no_program() -> None:
    """It would outlive its parent."""
    with pytest.raises(OSError, match="PDEATHSIG"):
        child_exec._die_with(os.getppid(), 65)  # type: ignore[arg-type]  # no such signal: the kernel refuses


def test_a_parent_that_is_gone_already() -> None:
    """Before the death signal was set: the program never starts."""
    done = subprocess.run(wrapped("/bin/echo", "started", parent=1), capture_output=True, check=False, timeout=10)
    assert (done.returncode, done.stdout) == (70, b"")


def test_signals_have_their_default_actions() -> None:
    """Neither Python's ignored signals nor the parent's stay ignored in the program."""
    ignoring = [SHELL, "-c", "trap '' INT TERM; exec \"$@\"", "sh"]
    argv = [*ignoring, *wrapped("/bin/cat", "/proc/self/status", death="TERM")]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=10)
    ignored = int(next(line for line in done.stdout.splitlines() if line.startswith("SigIgn")).split()[1], 16)
    assert ignored & sum(1 << (number - 1) for number in _DEFAULT) == 0


def test_environment_directory_and_log(tmp_path: Path) -> None:
    """Exactly the named environment and directory, and all output is appended to the log."""
    log = tmp_path / "log"
    log.write_text("before\n")
    options = ("--env", "A=1=2", "--env", "B=", "--cwd", "/", "--log", str(log), "--log-max-bytes", "100")
    for _ in range(2):
        subprocess.run(wrapped("/usr/bin/env", options=options), check=True, timeout=10, env={"SECRET": "x"})
    assert log.read_text() == "before\nA=1=2\nB=\nA=1=2\nB=\n"
    subprocess.run(wrapped(SHELL, "-c", "pwd; read x || echo end", options=options), check=True, timeout=10)
    assert log.read_text().endswith("/\nend\n")


def test_the_log_does_not_follow_a_link(tmp_path: Path) -> None:
    """A link in place of the log is refused, and its target stays untouched."""
    (tmp_path / "target").write_text("mine")
    (tmp_path / "log").symlink_to(tmp_path / "target")
    argv = wrapped("/bin/true", options=("--log", str(tmp_path / "log"), "--log-max-bytes", "100"))
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=10)
    assert done.returncode == 126
    assert done.stderr.startswith("child_exec: FATAL: ")
    assert (tmp_path / "target").read_text() == "mine"


@pytest.mark.parametrize(("program", "options"), [("/no/such/program", ()), ("/bin/true", ("--user", "no-such-user"))])
def test_what_fails_is_one_line(program: str, options: tuple[str, ...]) -> None:
    done = subprocess.run(wrapped(program, options=options), capture_output=True, text=True, check=False, timeout=10)
    assert done.returncode == 126
    assert len(done.stderr.splitlines()) == 1


@needs_root
def test_the_user_changes_for_good() -> None:
    """As another user nothing of root is left, and the death signal, set afterwards, still holds."""
    code = "id -u; id -G; grep -E '^(Uid|CapPrm|CapEff)' /proc/self/status"
    done = subprocess.run(
        wrapped(SHELL, "-c", code, options=("--user", "nobody", "--cwd", "/")), capture_output=True, text=True,
        check=True, timeout=10,
    )  # fmt: skip
    uid, groups, uids, permitted, effective = done.stdout.splitlines()
    assert uid == "65534"
    assert "0" not in groups.split()
    assert uids.split()[1:] == ["65534"] * 4
    assert int(permitted.split()[1], 16) == int(effective.split()[1], 16) == 0
