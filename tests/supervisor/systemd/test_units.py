"""The printed unit of systemd, and sockets that it hands over."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from pulse_supervisor.main import cli
from pulse_supervisor.systemd.socket_activation import listens_at, take
from pulse_supervisor.systemd.units import FILES, unit_text
from tests.support.checking.markdown import DOCS

DEPLOY = DOCS.parent / "deploy"
FIRST = 200  # nobody has descriptors so high here


def test_the_delivered_unit_is_that_of_opt() -> None:
    """There is one text; a place other than /opt/pulse replaces that."""
    for which, path in FILES.items():
        assert unit_text(which, Path("/opt/pulse")) == (DEPLOY / path).read_text("utf-8")
    for which, command in (("server", "pulse-supervisor"), ("worker", "pulse worker")):
        elsewhere = unit_text(which, Path("/srv/my pulse%1"))
        assert f"ExecStart=/srv/my\\x20pulse%%1/bin/{command}" in elsewhere
        assert "/opt/pulse" not in elsewhere


def test_each_is_printed() -> None:
    """By the command, for this installation; the server's where none is named."""
    for which in FILES:
        assert CliRunner().invoke(cli, ["--print-unit", which]).output == unit_text(which)
    for words in (["--print-unit"], ["--print-unit", "--log-level", "info"]):
        assert CliRunner().invoke(cli, words).output == unit_text("server")


@pytest.fixture
def handed() -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        made = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(3)]
        file = os.open("/dev/null", os.O_RDONLY)
        stack.callback(os.close, file)
        for number, descriptor in enumerate([*(one.fileno() for one in made), file]):
            os.dup2(descriptor, FIRST + number)
        yield made
        for number in range(4):
            with suppress(OSError):
                os.close(FIRST + number)


def test_what_is_handed_over(handed: list[socket.socket]) -> None:
    """By its name, the first of several, not to be inherited; other files are closed; children get nothing."""
    env = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "4", "LISTEN_FDNAMES": "a:b:a:file", "HOME": "/"}
    taken = take(env, FIRST)
    assert env == {"HOME": "/"}
    assert {name: sock.detach() for name, sock in taken.items()} == {"a": FIRST, "b": FIRST + 1}
    assert not os.get_inheritable(FIRST)
    for descriptor in (FIRST + 2, FIRST + 3):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
    assert len(handed) == 3


@pytest.mark.usefixtures("handed")
@pytest.mark.parametrize("env", [
    {}, {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "a"},
    {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "-1"}, {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "many"},
])  # fmt: skip
def test_what_is_not_for_this_process(env: dict[str, str]) -> None:
    """It is left as it is, and its variables are removed all the same."""
    given = dict(env)
    assert take(given, FIRST) == {}
    assert given == {}
    assert os.fstat(FIRST)


def test_who_listens_where(tmp_path: Path) -> None:
    """It listens, at that very path, and the path still leads to it."""
    path = tmp_path / "pulse.sock"
    with socket.socket(socket.AF_UNIX) as sock, socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "other.sock"))
        assert not listens_at(sock, path)
        sock.bind(str(path))
        assert not listens_at(sock, path)
        sock.listen()
        assert listens_at(sock, path)
        assert not listens_at(sock, tmp_path / "other.sock")
        path.unlink()
        assert not listens_at(sock, path)
    assert not listens_at(sock, path)
