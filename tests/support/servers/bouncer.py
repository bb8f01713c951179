"""A PgBouncer of a test's own."""

from __future__ import annotations

import configparser
import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support.waiting import until

DEADLINE_S: Final = 10.0


def answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


@contextlib.contextmanager
def bouncer(dsn: str, mode: str, *, database: str = "", ignored: str = "") -> Iterator[str]:
    """
    A PgBouncer in front of *dsn*, and the address of it; without the program, the test is skipped.

    Args:
        mode: Of its pools.
        database: More settings of the databases.
        ignored: Settings of sessions that it drops.
    """
    there = parts_of(dsn)
    ini = ini_of("[databases]\n[pgbouncer]\n")
    ini["databases"]["*"] = f"host={there['host']} port={there['port']} user={there['user']} {database}"
    ini["pgbouncer"].update(pool_mode=mode, ignore_startup_parameters=ignored)
    with started(ini, there) as at:
        yield f"postgresql://{there['user']}@/{there['dbname']}?{at}"


@contextlib.contextmanager
def bouncer_of(recipe: str, dsn: str) -> Iterator[dict[str, str]]:
    """
    A PgBouncer as *recipe* configures it, in front of *dsn*; the addresses of its databases, by their names.

    Places, names and passwords are the test's; what a pool does is as the recipe says.
    """
    there = parts_of(dsn)
    ini = ini_of(recipe)
    for name, value in ini["databases"].items():
        more = [word for word in value.split() if word.partition("=")[0] not in {"host", "port", "dbname"}]
        where = [f"{key}={there[key]}" for key in ("host", "port", "dbname", "user")]
        ini["databases"][name] = " ".join([*where, *more])
    with started(ini, there) as at:
        yield {name: f"postgresql://{there['user']}@/{name}?{at}" for name in ini["databases"]}


def parts_of(dsn: str) -> dict[str, str]:
    parts = urlsplit(dsn)
    return {key: value[0] for key, value in parse_qs(parts.query).items()} | {"dbname": parts.path[1:]}


def ini_of(text: str) -> configparser.ConfigParser:
    ini = configparser.ConfigParser(delimiters=("=",), inline_comment_prefixes=(";",), interpolation=None)
    ini.read_string(text)
    return ini


def program_of(needed: tuple[int, ...] = ()) -> str:
    """The program, by PULSE_PGBOUNCER or installed; where it is missing or older than *needed*, the test is skipped."""
    program = os.environ.get("PULSE_PGBOUNCER") or shutil.which("pgbouncer", path="/usr/sbin:/usr/bin")
    if program is None:
        pytest.skip("package pgbouncer is not installed")
    if needed:
        said = subprocess.check_output([program, "--version"], text=True).split()[1]
        if tuple(map(int, said.split("."))) < needed:
            pytest.skip(f"not packaged: a PgBouncer newer than {said}: PULSE_PGBOUNCER names one")
    return program


@contextlib.contextmanager
def started(ini: configparser.ConfigParser, there: Mapping[str, str]) -> Iterator[str]:
    program = program_of()
    with tempfile.TemporaryDirectory(prefix="pulse-b-") as name, socket.create_server(("127.0.0.1", 0)) as free:
        directory, port = Path(name), free.getsockname()[1]
        directory.chmod(0o777)
        free.close()
        (directory / "users").write_text(f'"{there["user"]}" ""\n', "utf-8")
        ini["pgbouncer"].update(
            listen_addr="", listen_port=str(port), unix_socket_dir=name, auth_type="any", auth_file=f"{name}/users",
            logfile=f"{name}/log",
        )  # fmt: skip
        with (directory / "ini").open("w", encoding="utf-8") as file:
            ini.write(file)
        who = ["-u", Path(there["host"]).owner()] if os.geteuid() == 0 else []  # root is refused; this one may enter
        command = [program, *who, str(directory / "ini")]
        with (directory / "said").open("wb") as sink:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink)
        try:
            until(
                lambda: process.poll() is not None or answers(directory / f".s.PGSQL.{port}"), "it answers", DEADLINE_S
            )
            assert process.poll() is None, (directory / "said").read_text()
            yield f"host={directory}&port={port}"
        finally:
            process.kill()
            process.wait()
