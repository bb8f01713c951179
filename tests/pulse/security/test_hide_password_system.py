"""A password in the command line is not visible to other accounts of the machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psutil
import pytest

from pulse.security.hide_password import without_dsn
from tests.support.systems.system import running
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.system]

PULSE: Final = (sys.executable, "-m", "pulse.cli.main")
SECRET: Final = "hunter2-of-the-line"


def until_hidden(process: psutil.Process, dsn: str) -> list[str]:
    until(lambda: process.environ().get("PULSE_DSN") == dsn, "the DSN is in the environment")
    return process.cmdline()


@pytest.mark.parametrize("words", [["--dsn", "{}"], ["--dsn={}"], ["--dsn", "postgresql://a:first@b/c", "--dsn", "{}"]])
def test_a_command_hides_it(words: Sequence[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # where nobody answers
        dsn = f"postgresql://u:{SECRET}@127.0.0.1:{server.getsockname()[1]}/x"
        line = ["check", "--grace", "7", *(word.format(dsn) for word in words), "--json"]
        with subprocess.Popen([*PULSE, *line], stderr=subprocess.PIPE) as command:
            server.settimeout(20)
            with server.accept()[0]:
                assert until_hidden(psutil.Process(command.pid), dsn) == [*PULSE, "check", "--grace", "7", "--json"]
                command.kill()


def test_what_has_none_stays() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        line = [*PULSE, "check", "--dsn", f"postgresql://u@127.0.0.1:{server.getsockname()[1]}/x"]
        with subprocess.Popen(line, stderr=subprocess.PIPE) as command:
            server.settimeout(20)
            with server.accept()[0]:
                process = psutil.Process(command.pid)
                assert (process.cmdline(), process.environ().get("PULSE_DSN")) == (line, os.environ.get("PULSE_DSN"))
                command.kill()


@pytest.mark.parametrize("words", [["ctl", "status"], ["worker", "x:y"], []])
def test_who_has_no_such_option_refuses_it(words: Sequence[str]) -> None:
    """As ever: nothing happens to another database."""
    line = [*PULSE, *words, "--dsn", f"postgresql://u:{SECRET}@127.0.0.1:1/x"]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, SECRET in done.stdout + done.stderr) == (2, False)
    assert "No such option" in done.stderr


def test_what_is_behind_two_dashes_stays() -> None:
    assert without_dsn(["a", "--dsn=x", "--", "--dsn", "y"]) == (["a", "--", "--dsn", "y"], ["x"])
    assert without_dsn(["--dsn"]) == ([], [""])


@pytest.mark.postgres
def test_a_supervisor_hides_it(own_database: str) -> None:
    with running(f"{own_database}&password={SECRET}") as system:
        assert system.process is not None
        supervisor = psutil.Process(system.process.pid)
        assert Path(until_hidden(supervisor, f"{own_database}&password={SECRET}")[1]).name == "pulse-supervisor"
        titles = [" ".join(one.cmdline()) for one in (supervisor, *supervisor.children(recursive=True))]
        assert len(titles) >= 5
        assert SECRET not in "\n".join(titles)
