"""A password in the command line is not left there for everybody on the machine."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psutil
import pytest

from tests.support.system import running, until

pytestmark = pytest.mark.process

PULSE: Final = (sys.executable, "-m", "pulse.cli.main")
SECRET: Final = "hunter2-of-the-line"


def until_hidden(process: psutil.Process, dsn: str) -> list[str]:
    """Its command line, as soon as the password is in its environment."""
    until(lambda: process.environ().get("PULSE_DSN") == dsn, "the DSN is in the environment")
    return process.cmdline()


@pytest.mark.parametrize("words", [["--dsn", "{}"], ["--dsn={}"], ["--dsn", "postgresql://a:first@b/c", "--dsn", "{}"]])
def test_a_command_hides_it(words: Sequence[str]) -> None:
    """All else stays as it was said, and it goes to the same database."""
    with socket.create_server(("127.0.0.1", 0)) as server:  # where nobody answers
        dsn = f"postgresql://u:{SECRET}@127.0.0.1:{server.getsockname()[1]}/x"
        line = ["check", "--grace", "7", *(word.format(dsn) for word in words), "--json"]
        with subprocess.Popen([*PULSE, *line], stderr=subprocess.PIPE) as command:
            server.settimeout(20)
            with server.accept()[0]:
                assert until_hidden(psutil.Process(command.pid), dsn) == [*PULSE, "check", "--grace", "7", "--json"]
                command.kill()


@pytest.mark.parametrize("dsn", ["postgresql://u@127.0.0.1:1/x", f"mysql://u:{SECRET}@127.0.0.1:1/x", ""])
def test_what_has_none_or_is_none_stays(dsn: str) -> None:
    """So what is said of it names what was written."""
    done = subprocess.run([*PULSE, "check", "--dsn", dsn], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0
    assert SECRET not in done.stdout + done.stderr


@pytest.mark.postgres
def test_a_supervisor_hides_it(dsn: str) -> None:
    """And so do all that it starts."""
    with running(f"{dsn}&password={SECRET}") as system:
        assert system.process is not None
        supervisor = psutil.Process(system.process.pid)
        assert Path(until_hidden(supervisor, f"{dsn}&password={SECRET}")[1]).name == "pulse-supervisor"
        titles = [" ".join(one.cmdline()) for one in (supervisor, *supervisor.children(recursive=True))]
        assert len(titles) >= 5
        assert SECRET not in "\n".join(titles)
