"""``python -m bench.harness``: its ``docker``, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.harness import docker
from bench.harness.place import settings_of
from bench.harness.stand_in import Program, Run, StandIn, parsed_run, serve
from tests.support.systems.system_kit import ROOT

REFUSED = "river-bench does not start without docker; these do: shown\n"
SHOW = "import json, os; print(json.dumps([os.getcwd(), os.environ.get('FILE')]))"


class Server:
    """Notes what is asked of it."""

    def __init__(self) -> None:
        self.runs = False

    def start(self) -> None:
        self.runs = True

    def stop(self) -> None:
        self.runs = False

    def is_running(self) -> bool:
        return self.runs


@pytest.fixture
def socket_path(tmp_path: Path) -> Iterator[Path]:
    """Where a stand-in answers that knows one adapter."""
    stand_in = StandIn(Server(), {"shown": Program((sys.executable, "-c", SHOW), tmp_path)})
    with serve(stand_in, tmp_path / "docker") as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield tmp_path / "docker"
        server.shutdown()
        thread.join()


def run(socket_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, docker.SOCKET: str(socket_path)}
    return subprocess.run(
        [sys.executable, docker.__file__, *words], env=env, capture_output=True, text=True, check=False
    )


def test_an_adapter_runs_without_a_container(socket_path: Path, tmp_path: Path) -> None:
    """In its directory, with its environment; paths of the container are those of the host."""
    words = ("--rm", "-i", "--network", "host", "-v", "/here:/control", "-e", "FILE=/control/rate", "shown")
    done = run(socket_path, "run", *words)
    assert json.loads(done.stdout) == [str(tmp_path), "/here/rate"]


def test_postgres_is_started_and_stopped(socket_path: Path) -> None:
    assert run(socket_path, "compose", "exec", "-T", "postgres", "pg_isready").returncode == 1
    assert run(socket_path, "compose", "up", "-d", "--wait").returncode == 0
    assert run(socket_path, "compose", "exec", "-T", "postgres", "pg_isready").returncode == 0
    assert run(socket_path, "compose", "stop", "postgres").returncode == 0
    assert run(socket_path, "compose", "exec", "-T", "postgres", "pg_isready").returncode == 1


@pytest.mark.parametrize(("words", "said"), [
    (("run", "river-bench"), REFUSED),
    (("build", "-f", "Dockerfile", "-t", "river-bench", "."), REFUSED),
    (("run", "--privileged", "shown"), "docker: docker run --privileged: unknown here\n"),
    (("run", "-i"), "docker: docker run: no image is named\n"),
    (("pull", "shown"), "docker pull shown: unknown here\n"),
])  # fmt: skip
def test_what_is_not_done(socket_path: Path, words: tuple[str, ...], said: str) -> None:
    done = run(socket_path, *words)
    assert done.stderr == said
    assert done.returncode != 0


def test_the_words_of_run() -> None:
    found = parsed_run(["-e", "A=b=c", "-v", "/x:/y", "image", "ignored"])
    assert found == Run({"A": "b=c"}, {"/y": "/x"}, "image")
    assert [found.here(value) for value in ("/y", "/y/z", "/yz", "A")] == ["/x", "/x/z", "/yz", "A"]


def test_settings_of_postgres(tmp_path: Path) -> None:
    text = "# port = 1\nlisten_addresses = '*'\nwork_mem = 8MB # much\n\nautovacuum_vacuum_scale_factor = 0.2\n"
    (tmp_path / "postgres.conf").write_text(text, "utf-8")
    wanted = {"listen_addresses": "*", "work_mem": "8MB", "autovacuum_vacuum_scale_factor": "0.2"}
    assert settings_of(tmp_path) == wanted


@pytest.mark.parametrize(("words", "said"), [
    (("--systems", "pulse,river"), "--systems river: those that start without docker are pulse, pgboss, procrastinate"),
    ((), "is no clone of the harness: it has no directory bench_harness"),
])  # fmt: skip
def test_what_is_refused(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    command = [sys.executable, "-m", "bench.harness", str(tmp_path), *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert said in done.stderr
