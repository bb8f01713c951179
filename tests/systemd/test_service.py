"""The units under a real systemd: start, ready, every kind of end, restarts that nobody notices, mistakes that stay."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support import waiting
from tests.support.confidential import confidential
from tests.support.servers.certificates import Authority
from tests.systemd.machine import PULSE, VERSIONS, Machine, booted, why_not

pytestmark = [
    pytest.mark.systemd,
    pytest.mark.skipif(why_not() is not None, reason=f"no machine with systemd: {why_not()}"),
    pytest.mark.timeout(180),
    pytest.mark.patient,
    pytest.mark.rest,
]

SERVER: Final = "pulse-supervisor.service"
WORKERS: Final = "pulse-worker@shop.service"
MOST_EXPOSED: Final = 2.0
SOON_S: Final = 30.0
AS_PULSE: Final = " ".join(PULSE)
APP: Final = """
import pathlib

import anyio

import pulse

app = pulse.App()


@app.handler("gate", topic="shop")
@app.handler("own-gate")
async def gate(name: str) -> str:
    while not pathlib.Path("/etc/shop", name).exists():
        await anyio.sleep(0.01)
    return name


@app.handler("brief", topic="shop")
async def brief() -> None:
    await anyio.sleep(0.05)
"""


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    """With the units installed, an app, and the settings of its workers; nothing runs."""
    with booted() as made:
        made.write("/etc/shop/shopjobs.py", APP)
        made.write(
            "/etc/pulse/workers/shop.env", "PULSE_APP=shopjobs:app\nPULSE_OPTIONS=--topic shop\nPYTHONPATH=/etc/shop\n"
        )
        yield made


@pytest.fixture(autouse=True)
def served(machine: Machine) -> Iterator[None]:
    """The server runs at the beginning of each test, and its log counts from there."""
    machine.systemctl("reset-failed", check=False)
    machine.systemctl("start", SERVER)
    yield
    machine.systemctl("stop", WORKERS, check=False)


def until(look: Callable[[], object], what: str, within_s: float = waiting.DEADLINE_S) -> None:
    """A look starts programs in the machine, which would cost more than what is waited for."""
    waiting.until(look, what, within_s, longest_pause_s=0.3)


def document(machine: Machine, *words: str) -> Any:
    return json.loads(machine.pulse("ctl", *words, "--json"))


def submit(machine: Machine, *words: str) -> str:
    return str(document(machine, "submit", *words)["ids"][0])


def job(machine: Machine, identity: str) -> Any:
    return document(machine, "jobs", "get", identity)


def is_in(machine: Machine, identity: str, status: str) -> bool:
    return bool(job(machine, identity)["status"] == status)


def is_back(machine: Machine, former: int) -> bool:
    return machine.main_pid(SERVER) not in {0, former} and machine.shows(SERVER, "ActiveState") == "active"


def test_it_runs(machine: Machine) -> None:
    """It is ready when systemctl says so, as its own user, in directories of its own, with few rights."""
    assert machine.shows(SERVER, "StatusText") == "ready"
    status = document(machine, "status")
    assert {actor["state"] for actor in status["actors"]} == {"running"}
    assert status["supervisor"]["pid"] == machine.main_pid(SERVER)
    assert set(machine.run("ps", "-o", "user=", "--ppid", str(machine.main_pid(SERVER))).split()) == {"pulse"}
    assert machine.run("stat", "-c", "%a %U", "/run/pulse", "/var/lib/pulse").splitlines() == ["700 pulse"] * 2
    exposed = machine.run("systemd-analyze", "security", SERVER, check=False)
    [level] = re.findall(r"exposure level for \S+: ([0-9.]+)", exposed)
    assert float(level) <= MOST_EXPOSED
    units = (SERVER, "pulse-worker@.service")
    assert machine.run("systemd-analyze", "verify", *(f"/etc/systemd/system/{unit}" for unit in units)) == ""


def test_a_handler_goes_on_while_the_server_is_killed(machine: Machine) -> None:
    """kill -9: the server is started again, the workers come back, and the attempt that ran is the one that counts."""
    machine.systemctl("start", WORKERS)
    identity = submit(machine, "gate", '{"name": "killed"}', "--topic", "shop")
    until(lambda: is_in(machine, identity, "RUNNING"), "the job runs", SOON_S)
    former = machine.main_pid(SERVER)
    machine.run("kill", "-KILL", str(former))
    until(lambda: is_back(machine, former), "another server", SOON_S)
    machine.write("/etc/shop/killed", "")
    until(lambda: is_in(machine, identity, "COMPLETED"), "the job is completed", SOON_S)
    assert job(machine, identity)["attempts"] == 1


def test_the_watchdog(machine: Machine) -> None:
    """A server that hangs is ended, and started again."""
    machine.write(f"/run/systemd/system/{SERVER}.d/soon.conf", "[Service]\nWatchdogSec=2\n")
    machine.systemctl("daemon-reload")
    machine.systemctl("restart", SERVER)
    former = machine.main_pid(SERVER)
    machine.run("kill", "-STOP", str(former))
    until(lambda: is_back(machine, former), "another server", SOON_S)
    assert "Watchdog timeout" in machine.journal(SERVER)
    (machine.root / f"run/systemd/system/{SERVER}.d/soon.conf").unlink()
    machine.systemctl("daemon-reload")


def test_a_restart_refuses_nobody(machine: Machine) -> None:
    """Connections that come meanwhile wait, and the next server answers."""
    path = str(machine.root / "run/pulse/pulse.sock")
    refused: list[OSError] = []
    came, over = [0], threading.Event()

    def knock() -> None:
        while not over.wait(0.002):
            with socket.socket(socket.AF_UNIX) as client:
                try:
                    client.connect(path)
                    came[0] += 1
                except OSError as error:
                    refused.append(error)

    visitor = threading.Thread(target=knock)
    visitor.start()
    try:
        machine.systemctl("restart", SERVER)
    finally:
        over.set()
        visitor.join()
    assert refused == []
    assert came[0] > 100
    # The exit code says whether the dispatcher answers too: behind all who came, on a busy machine, that takes seconds.
    until(lambda: machine.succeeds("ctl", "status"), "an answer without findings", SOON_S)


def test_a_stop_lets_handlers_finish(machine: Machine) -> None:
    """``systemctl stop`` waits for jobs of the server's own pool; after the next start they are COMPLETED."""
    machine.write("/etc/pulse/pulse.toml", 'app = "shopjobs:app"\n')
    machine.write("/etc/pulse/pulse.env", "PYTHONPATH=/etc/shop\n", 0o600)
    try:
        machine.systemctl("restart", SERVER)
        identity = submit(machine, "own-gate", '{"name": "drained"}')
        until(lambda: is_in(machine, identity, "RUNNING"), "the job runs", SOON_S)
        machine.systemctl("stop", "--no-block", SERVER)
        until(lambda: machine.shows(SERVER, "ActiveState") == "deactivating", "it stops", SOON_S)
        machine.write("/etc/shop/drained", "")
        until(lambda: machine.shows(SERVER, "ActiveState") == "inactive", "it has stopped", SOON_S)
        assert (machine.shows(SERVER, "Result"), machine.shows(SERVER, "ExecMainStatus")) == ("success", "0")
        assert not (machine.root / "run/pulse").exists()
        machine.systemctl("start", SERVER)
        found = job(machine, identity)
        assert (found["status"], found["attempts"]) == ("COMPLETED", 1)
    finally:
        (machine.root / "etc/pulse/pulse.toml").unlink()
        machine.write("/etc/pulse/pulse.env", "", 0o600)
        machine.systemctl("restart", SERVER)  # its pool would miss them


def installed(machine: Machine, unit: str) -> str:
    command = machine.run("ps", "-o", "args=", "-p", str(machine.main_pid(unit)))
    [found] = re.findall(r"/opt/([\w-]+)/bin/python", command)
    return str(found)


def test_an_upgrade_under_load(machine: Machine) -> None:
    """Server and workers change to another installation, and back, while hundreds of jobs run; none is charged."""
    assert installed(machine, SERVER) == VERSIONS[0]
    machine.systemctl("start", WORKERS)
    submitted = machine.run("sh", "-c", f"yes '{{}}' | head -400 | {AS_PULSE} ctl submit brief - --topic shop --json")
    ids = json.loads(submitted)["ids"]

    def listed() -> list[Any]:
        return list(document(machine, "jobs", "list", "--name", "brief", "--limit", "1000")["jobs"])

    until(lambda: any(one["status"] == "COMPLETED" for one in listed()), "some are done")
    for version in reversed(VERSIONS):
        machine.run("sh", "-c", f"ln -s {version} /opt/pulse.new && mv -T /opt/pulse.new /opt/pulse")
        machine.systemctl("restart", SERVER)
        machine.systemctl("restart", WORKERS)
        assert installed(machine, SERVER) == version
    until(lambda: all(one["status"] == "COMPLETED" for one in listed()), "all are done", SOON_S)
    assert {one["id"] for one in listed()} == set(ids)
    assert {one["attempts"] - one["uncharged"] for one in listed()} == {1}


def test_a_mistake_stays(machine: Machine) -> None:
    """An invalid setting is one line; the service is tried ten times, and then has failed."""
    machine.systemctl("stop", SERVER)
    machine.write("/etc/pulse/pulse.env", "PULSE_LEASE_S=soon\n", 0o600)
    machine.systemctl("start", SERVER, check=False)
    until(lambda: machine.shows(SERVER, "ActiveState") == "failed", "it has failed", SOON_S)
    assert machine.shows(SERVER, "NRestarts") == "10"
    assert "pulse-supervisor: PULSE_LEASE_S is 'soon': a length of time" in machine.journal(SERVER)
    machine.write("/etc/pulse/pulse.env", "", 0o600)
    machine.systemctl("reset-failed", SERVER)


def test_a_reload_takes_the_certificate_anew(machine: Machine, tmp_path: Path) -> None:
    """The process goes on with the new one; its directory, whose mode the manager sets, lets other accounts pass."""
    ca = Authority(tmp_path)
    ann = confidential("s3cret-of-ann", "password of ann")
    settings = f'listen = "127.0.0.1:7420"\nauth_users = "ann:{ann}"\nallow_users = "nobody:viewer"\n'
    settings += 'tls_cert = "/etc/pulse/tls.pem"\ntls_key = "/etc/pulse/tls.key"\n'

    def serve(name: str) -> None:
        pair = ca.issue(name, "localhost")
        machine.write("/etc/pulse/tls.pem", pair.cert.read_text())
        machine.write("/etc/pulse/tls.key", pair.key.read_text())

    serve("first")
    machine.write("/etc/pulse/pulse.toml", settings)
    try:
        machine.systemctl("restart", SERVER)
        former = machine.main_pid(SERVER)
        assert machine.run("stat", "-c", "%a", "/run/pulse", "/run/pulse/pulse.sock").split() == ["711", "666"]
        serve("second")
        machine.systemctl("reload", SERVER)
        until(lambda: "certificate_reloaded" in machine.journal(SERVER), "it is read anew", SOON_S)
        assert machine.main_pid(SERVER) == former
    finally:
        machine.run("rm", "/etc/pulse/pulse.toml")
        machine.systemctl("restart", SERVER)
    assert machine.run("stat", "-c", "%a", "/run/pulse/pulse.sock").split() == ["600"]
