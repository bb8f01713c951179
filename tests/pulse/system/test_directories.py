"""Runtime and state directories: where each side looks, and which paths both refuse."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from pulse.errors import PathError
from pulse.system import directories
from pulse.system.directories import (
    check_client_dir,
    check_socket_path,
    client_candidates,
    prepare_runtime_dir,
    server_runtime_dir,
    server_state_dir,
)

ROOT = 0
USER = 1000
NOBODY = 65534


class Check(Protocol):
    def __call__(self, path: Path, *, named: bool) -> None:
        """Raise PathError if *path* is not to be used."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    return path


@contextlib.contextmanager
def belonging_to_another(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make *path* foreign: root gives it away, an ordinary user becomes another one for the check."""
    if os.geteuid() == ROOT:
        os.chown(path, NOBODY, NOBODY)
        yield
        return
    with monkeypatch.context() as patch:
        stranger = os.geteuid() + 1
        patch.setattr(os, "geteuid", lambda: stranger)
        yield


def test_where_clients_look(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The variable, the user's, the system's and the temporary directory; a relative variable begins here."""
    monkeypatch.chdir(tmp_path)
    env = {"PULSE_RUNTIME_DIR": "/a", "XDG_RUNTIME_DIR": "/b", "TMPDIR": "/c", "RUNTIME_DIRECTORY": "/d"}
    system, mine = Path("/run/pulse"), f"pulse-{os.geteuid()}"
    assert client_candidates(env) == [Path("/a"), Path("/b/pulse"), system, Path("/c", mine)]
    assert client_candidates({}) == [system, Path("/tmp", mine)]
    assert client_candidates({"PULSE_RUNTIME_DIR": "/a"}, Path("/a")) == [Path("/a"), system, Path("/tmp", mine)]
    relative = client_candidates({"PULSE_RUNTIME_DIR": "run", "XDG_RUNTIME_DIR": "xdg"})
    assert relative == [tmp_path / "run", system, Path("/tmp", mine)]


def test_where_servers_put_their_sockets(tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The named one, systemd's first, root's (under sudo, too), a session's, a prepared one, the last resort."""
    ours, session, both = {"PULSE_RUNTIME_DIR": "/a"}, {"XDG_RUNTIME_DIR": str(tmp_path)}, "/run/x:/run/y"
    assert server_runtime_dir({**ours, "RUNTIME_DIRECTORY": both}, Path("/n"), uid=ROOT) == Path("/n")
    assert server_runtime_dir({**ours, "RUNTIME_DIRECTORY": both}, uid=ROOT) == Path("/a")
    assert server_runtime_dir({"RUNTIME_DIRECTORY": both}, uid=USER) == Path("/run/x")
    assert server_runtime_dir(session, uid=ROOT) == Path("/run/pulse")
    assert server_runtime_dir(session, uid=USER) == tmp_path / "pulse"
    monkeypatch.setattr("pulse.system.directories._SYSTEM_RUNTIME_DIR", place)
    assert server_runtime_dir({}, uid=USER) == place
    monkeypatch.setattr("pulse.system.directories._SYSTEM_RUNTIME_DIR", tmp_path / "none" / "pulse")
    gone = {"XDG_RUNTIME_DIR": str(tmp_path / "gone"), "TMPDIR": str(tmp_path)}
    assert server_runtime_dir(gone, uid=USER) == tmp_path / f"pulse-{USER}"


class TestServerStateDir:
    @pytest.mark.parametrize(("env", "uid", "path"), [
        ({"PULSE_STATE_DIR": "/a", "STATE_DIRECTORY": "/b"}, ROOT, "/a"),
        ({"STATE_DIRECTORY": "/b:/c", "XDG_STATE_HOME": "/x"}, USER, "/b"),
        ({"XDG_STATE_HOME": "/x", "HOME": "/h"}, ROOT, "/var/lib/pulse"),
        ({"XDG_STATE_HOME": "/x", "HOME": "/h"}, USER, "/x/pulse"),
        ({"XDG_STATE_HOME": "x", "HOME": "/h"}, USER, "/h/.local/state/pulse"),
        ({"HOME": "/h"}, USER, "/h/.local/state/pulse"),
    ])  # fmt: skip
    def test_order(self, env: dict[str, str], uid: int, path: str) -> None:
        assert server_state_dir(env, uid=uid) == Path(path)

    def test_named(self) -> None:
        assert server_state_dir({"PULSE_STATE_DIR": "/a"}, Path("/n"), uid=USER) == Path("/n")
        with pytest.raises(PathError, match=r"user 4000000001 has no home directory.*PULSE_STATE_DIR"):
            server_state_dir({}, uid=4_000_000_001)


@pytest.mark.parametrize("named", [True, False])
class TestBothSides:
    """What server and client refuse alike, named or not."""

    @pytest.fixture(params=[prepare_runtime_dir, check_client_dir], ids=["server", "client"])
    def check(self, request: pytest.FixtureRequest) -> Check:
        either: Check = request.param
        return either

    @pytest.mark.parametrize("mode", [0o700, 0o755])
    def test_private(self, check: Check, place: Path, mode: int, *, named: bool) -> None:
        place.chmod(mode)
        check(place, named=named)

    def test_symlink(self, check: Check, place: Path, *, named: bool) -> None:
        for number, target in enumerate((place, place / "not-there")):
            link = place.parent / f"link{number}"
            link.symlink_to(target)
            with pytest.raises(PathError, match="is a symlink"):
                check(link, named=named)
        assert list(place.iterdir()) == []

    def test_file(self, check: Check, place: Path, *, named: bool) -> None:
        file = place / "file"
        file.touch()
        with pytest.raises(PathError, match="is not a directory"):
            check(file, named=named)
        with pytest.raises(PathError, match="not a directory"):
            check(file / "pulse", named=named)

    @pytest.mark.parametrize("mode", [0o702, 0o777, 0o1777])
    def test_writable_by_others(self, check: Check, place: Path, mode: int, *, named: bool) -> None:
        place.chmod(mode)
        with pytest.raises(PathError, match=rf"writable by others \(mode {mode:04o}\)"):
            check(place, named=named)
        assert place.stat().st_mode & 0o7777 == mode


class TestNamed:
    def test_foreign_owner(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with belonging_to_another(place, monkeypatch):
            with pytest.raises(PathError, match="belongs to user"):
                check_client_dir(place, named=False)
            check_client_dir(place, named=True)
        monkeypatch.setattr(os, "geteuid", lambda: USER)
        check_client_dir(Path("/usr"), named=False)

    def test_shared_with_a_group(self, place: Path) -> None:
        place.chmod(0o770)
        with pytest.raises(PathError, match="writable by others"):
            check_client_dir(place, named=False)
        check_client_dir(place, named=True)


class TestPrepare:
    def test_made_private(self, tmp_path: Path) -> None:
        path = tmp_path / "a" / "b"
        before = os.umask(0)
        try:
            prepare_runtime_dir(path, named=False)
        finally:
            os.umask(before)
        assert path.stat().st_mode & 0o777 == 0o700
        (path / "pulse.sock").touch()
        prepare_runtime_dir(path, named=False)
        assert (path / "pulse.sock").exists()

    def test_cannot_be_made(self) -> None:
        with pytest.raises(PathError, match=r"^runtime directory /proc/pulse/run cannot be made: .*PULSE_RUNTIME_DIR$"):
            prepare_runtime_dir(Path("/proc/pulse/run"), named=True)

    def test_not_writable(self) -> None:
        path = Path(tempfile.mkdtemp(dir="/tmp"))
        is_root = os.geteuid() == ROOT
        path.chmod(0o755 if is_root else 0o500)
        try:
            if is_root:
                os.seteuid(NOBODY)
            with pytest.raises(PathError, match="is not writable by this user"):
                prepare_runtime_dir(path, named=True)
        finally:
            if is_root:
                os.seteuid(ROOT)
            shutil.rmtree(path)

    def test_client_makes_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(PathError, match="no such file or directory"):
            check_client_dir(tmp_path / "run", named=True)
        assert not (tmp_path / "run").exists()


def test_the_longest_path_of_a_socket() -> None:
    check_socket_path(Path("/" + "s" * 106))
    for name, said in (("s" * 107, "has 108 bytes, at most 107"), ("ü" * 60, "has 121 bytes")):
        with pytest.raises(PathError, match=said):
            check_socket_path(Path("/" + name))


def test_what_all_may_pass_needs_no_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner may be another user."""

    def refuse(*_: object) -> None:
        raise PermissionError

    tmp_path.chmod(0o711)
    monkeypatch.setattr(Path, "chmod", refuse)
    directories._let_pass(tmp_path)
