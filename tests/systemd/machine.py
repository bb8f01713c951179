"""
A machine with a real systemd as process 1: a container that boots from this machine's own /usr, with all else empty.

``systemd-nspawn --volatile=yes`` makes it: /etc, /var and /run are new and in memory, so that nothing of this machine
is touched, and it is up within seconds. Below /opt it has two installations as an administrator would make them, of two
versions that are one, and /opt/pulse is a link to the first; their files are those of this checkout, and of the virtual
environment that the tests run in.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import psutil

from tests.support.confidential import search
from tests.support.waiting import until

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
BOOT_S: Final = 60.0
ANSWER_S: Final = 60.0
PULSE: Final = ("setpriv", "--reuid=pulse", "--regid=pulse", "--clear-groups", "/opt/pulse/bin/pulse")
VERSIONS: Final = ("pulse-1", "pulse-2")
PACKAGES: Final = {
    "pulse": "pulse",
    "pulse_supervisor": "supervisor/pulse_supervisor",
    "pulse_actors": "actors/pulse_actors",
}


def why_not() -> str | None:
    """Why there can be no such machine here; None: there can be."""
    if os.geteuid() != 0:
        return "only root can boot a container"
    if shutil.which("systemd-nspawn") is None:
        return "systemd-nspawn is not installed (package systemd-container)"
    if not Path("/usr/lib/systemd/systemd").exists():
        return "systemd is not installed"
    return None


class Machine:
    """A machine that runs; *init* is its process 1, as this machine sees it."""

    def __init__(self, init: int, log: Path) -> None:
        self._init = init
        self._log = log

    @property
    def root(self) -> Path:
        return Path(f"/proc/{self._init}/root")

    def run(self, *words: str, check: bool = True, timeout_s: float = ANSWER_S) -> str:
        """What a command there says, on either stream; it must succeed, unless that is not asked for."""
        done = self._done(words, timeout_s)
        assert not check or done.returncode == 0, f"{' '.join(words)}: {done.returncode}\n{done.stdout}"
        return done.stdout

    def systemctl(self, *words: str, check: bool = True) -> str:
        return self.run("systemctl", "--no-pager", *words, check=check)

    def pulse(self, *words: str, check: bool = True) -> str:
        return self.run(*PULSE, *words, check=check)

    def succeeds(self, *words: str) -> bool:
        return self._done((*PULSE, *words), ANSWER_S).returncode == 0

    def shows(self, unit: str, name: str) -> str:
        return self.systemctl("show", unit, "--property", name, "--value").strip()

    def main_pid(self, unit: str) -> int:
        return int(self.shows(unit, "MainPID"))

    def journal(self, unit: str) -> str:
        return self.run("journalctl", "--no-pager", "--output=cat", "--unit", unit, check=False)

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, "utf-8")
        place.chmod(mode)

    def _done(self, words: tuple[str, ...], timeout_s: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["nsenter", "--target", str(self._init), "--mount", "--uts", "--ipc", "--net", "--pid", "--", *words],
            env={"PATH": "/usr/sbin:/usr/bin", "LANG": "C.UTF-8"}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip


@contextmanager
def booted() -> Iterator[Machine]:
    """A machine that has booted, with pulse installed and no unit started."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(TemporaryDirectory(prefix="pulse-machine-")))
        binds = {**_installation(place, VERSIONS[0]), **_installation(place, VERSIONS[1])}
        log = place / "boot.log"
        with log.open("wb") as sink:
            container = subprocess.Popen(
                [
                    "systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--boot", "--volatile=yes",
                    "--directory=/", f"--machine=pulse-{os.getpid()}", "--console=pipe", "--private-network",
                    *(f"--bind-ro={here}:{there}" for there, here in binds.items()),
                    "--", "--unit=basic.target",
                ],
                stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True,
            )  # fmt: skip
        stack.callback(_end, container)
        machine = Machine(until(lambda: _init_of(container, log), "the container's process 1", BOOT_S), log)
        until(
            lambda: "basic.target" in machine.systemctl("list-units", "--state=active", check=False),
            "its basic target",
            BOOT_S,
        )
        _prepare(machine)
        yield machine
        search(machine.run("journalctl", "--no-pager", "--output=cat", check=False), "the journal of the machine")


def _installation(below: Path, version: str) -> Mapping[str, Path]:
    """An installation below /opt: directories of links; the paths there, and the real ones here."""
    place = below / version
    site = place / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    (place / "bin").mkdir(parents=True)
    site.mkdir(parents=True)
    base = Path(sys.base_prefix)
    home = Path("/usr") if base == Path("/usr") else Path("/opt/python")
    here = Path(sysconfig.get_path("purelib"))
    for entry in here.iterdir():
        if not entry.name.startswith("_pulse") and not entry.name.endswith(".pth") and entry.name not in PACKAGES:
            (site / entry.name).symlink_to(Path("/opt/site") / entry.name)
    for name, where in {**PACKAGES, "schema.sql": "schema.sql"}.items():
        (site / name).symlink_to(Path("/opt/src") / where)
    (place / "pyvenv.cfg").write_text(f"home = {home}/bin\ninclude-system-site-packages = false\n", "utf-8")
    (place / "bin" / "python").symlink_to(home / "bin" / f"python{sysconfig.get_python_version()}")
    for name in ("pulse", "pulse-supervisor"):
        body = (Path(sys.executable).parent / name).read_text("utf-8").partition("\n")[2]
        (place / "bin" / name).write_text(f"#!/opt/{version}/bin/python\n{body}", "utf-8")
        (place / "bin" / name).chmod(0o755)
    binds = {f"/opt/{version}": place, "/opt/site": here, "/opt/src": ROOT}
    return binds if home == Path("/usr") else {**binds, "/opt/python": base}


def _init_of(container: subprocess.Popen[bytes], log: Path) -> int:
    """The container's process 1; 0: it is not there yet."""
    assert container.poll() is None, f"the container did not start: {log.read_text('utf-8', 'replace')}"
    for child in psutil.Process(container.pid).children():
        with suppress(psutil.NoSuchProcess):  # a helper of its start has ended meanwhile
            if child.name() == "systemd":
                return child.pid
    return 0


def _prepare(machine: Machine) -> None:
    """What a package, or the administrator, does once."""
    for unit in DEPLOY.glob("*.service"):
        machine.write(f"/etc/systemd/system/{unit.name}", unit.read_text("utf-8"))
    for kind in ("sysusers.d", "tmpfiles.d"):
        machine.write(f"/etc/{kind}/pulse.conf", (DEPLOY / kind / "pulse.conf").read_text("utf-8"))
    machine.write("/etc/ld.so.conf", "/opt/python/lib\n")  # an interpreter that is not Debian's
    machine.run("ln", "-s", VERSIONS[0], "/opt/pulse")
    machine.run("ldconfig")
    machine.run("systemd-sysusers")
    machine.run("systemd-tmpfiles", "--create", "/etc/tmpfiles.d/pulse.conf")
    machine.systemctl("mask", "--runtime", "systemd-networkd-wait-online.service")  # it has no network
    machine.systemctl("daemon-reload")


def _end(container: subprocess.Popen[bytes]) -> None:
    container.send_signal(signal.SIGTERM)
    try:
        container.wait(20)
    except subprocess.TimeoutExpired:
        for process in psutil.Process(container.pid).children():
            process.kill()
        container.kill()
        container.wait(20)
