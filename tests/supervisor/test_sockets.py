"""Where the supervisor listens."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest

from pulse.errors import PathError
from pulse.system.sockets import listeners
from pulse_supervisor import sockets
from pulse_supervisor.sockets import _listen_tcp, _wait_until_free, open_sockets


def test_an_address_that_is_none() -> None:
    with pytest.raises(PathError, match="host:port is allowed"):
        _listen_tcp("nowhere", None)


def test_a_socket_that_was_handed_over_is_kept() -> None:
    with socket.create_server(("127.0.0.1", 0)) as handed:
        assert _listen_tcp(f"127.0.0.1:{handed.getsockname()[1]}", handed) is handed


def test_a_name_in_use_is_waited_for_until_its_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([False, False, False, True])
    monkeypatch.setattr(listeners, "free", lambda _: next(answers))
    monkeypatch.setattr(sockets, "_LOCK_WAIT_S", 0.0)
    with pytest.raises(PathError, match="is in use: another program listens there"):
        _wait_until_free(tmp_path / "pulse.sock")


def test_a_directory_in_use_is_waited_for_until_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([False, False, False, True])
    monkeypatch.setattr(sockets, "_locked", lambda _: next(answers))
    monkeypatch.setattr(sockets, "_LOCK_WAIT_S", 0.0)
    with pytest.raises(PathError, match=r"is in use by another pulse-supervisor \(pid unknown\)"):
        open_sockets(tmp_path)


def test_a_socket_whose_name_was_removed(tmp_path: Path) -> None:
    """The name is given back to the same socket, and nothing is left of both names at the end; another's file stays."""
    opened = open_sockets(tmp_path)
    try:
        assert opened.put_back() == []
        opened.client_path.unlink()
        assert opened.nameless() == [opened.client_path]
        assert opened.put_back() == [opened.client_path]
        assert opened.nameless() == []
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(opened.client_path))
            opened.client.accept()[0].close()
        opened.control_path.unlink()
        opened.control_path.touch()
        assert opened.put_back() == []
    finally:
        opened.close()
    assert [path.name for path in tmp_path.iterdir()] == ["supervisor.lock"]


def test_sockets_whose_directory_was_removed(tmp_path: Path) -> None:
    """The log names exactly the names that are gone."""
    directory = tmp_path / "run"
    directory.mkdir()
    opened = open_sockets(directory)
    try:
        shutil.rmtree(directory)
        assert opened.put_back() == []
        assert opened.nameless() == [opened.client_path, opened.control_path]
    finally:
        opened.close()
