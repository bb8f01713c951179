"""A PgBouncer of a test's own."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
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
    program = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin")
    if program is None:
        pytest.skip("package pgbouncer is not installed")
    parts = urlsplit(dsn)
    there = {key: value[0] for key, value in parse_qs(parts.query).items()}
    with tempfile.TemporaryDirectory(prefix="pulse-b-") as name, socket.create_server(("127.0.0.1", 0)) as free:
        directory, port = Path(name), free.getsockname()[1]
        directory.chmod(0o777)
        free.close()
        (directory / "users").write_text(f'"{there["user"]}" ""\n', "utf-8")
        (directory / "ini").write_text(
            f"[databases]\n* = host={there['host']} port={there['port']} user={there['user']} {database}\n"
            f"[pgbouncer]\nlisten_addr =\nlisten_port = {port}\nunix_socket_dir = {directory}\nauth_type = any\n"
            f"auth_file = {directory}/users\npool_mode = {mode}\nlogfile = {directory}/log\n"
            f"ignore_startup_parameters = {ignored}\n",
            "utf-8",
        )
        who = ["-u", Path(there["host"]).owner()] if os.geteuid() == 0 else []  # root is refused; this one may enter
        command = [program, *who, str(directory / "ini")]
        with (directory / "said").open("wb") as sink:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink)
        try:
            until(
                lambda: process.poll() is not None or answers(directory / f".s.PGSQL.{port}"), "it answers", DEADLINE_S
            )
            assert process.poll() is None, (directory / "said").read_text()
            yield f"postgresql://{there['user']}@/{parts.path[1:]}?host={directory}&port={port}"
        finally:
            process.kill()
            process.wait()
