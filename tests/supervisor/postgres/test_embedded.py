"""The embedded PostgreSQL, without any process: names, versions, files that others wrote."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from pulse.errors import EmbeddedError
from pulse_supervisor.postgres import binaries, directories, embedded, postmaster
from pulse_supervisor.postgres.accounts import Account
from pulse_supervisor.postgres.postmaster import Cluster

READY = "{pid}\n/data\n1795167365\n5432\n/sockets\n\n  2171604        12\n{status}\n"


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
