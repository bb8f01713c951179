"""
A host: namespaces of its own for network, pids, host name and mounts, and process 1, which is the program under test.

It has an address on the wire, a machine id and a boot id. The kernel ends all of it when process 1 ends.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final, Self

from tests.chaos.hosts.wire import DEVICE, TUN, Wire
from tests.support.servers import containers
from tests.support.servers.containers import ENDS_S, Container

NETWORK: Final = "10.77.0"  # of the namespaces alone: no way leads out of them
_LIBRARIES: Final = Path("/usr/lib")
_LIBRARY: Final = "*/faketime/libfaketimeMT.so.1"
_ESTABLISHED: Final = "01"  # in /proc/net/tcp
# The network is there when the line has been read: the wire makes the device.
_BOOT: Final = """
set -e
hostname "$1"
[ ! -e /etc/machine-id ] || mount --bind "$2" /etc/machine-id
mount --bind "$3" /proc/sys/kernel/random/boot_id
mount -t tmpfs tmpfs /dev/shm
read -r go
ip link set lo up
ip link set eth0 address "$4" up
ip address add "$5/24" dev eth0
shift 5
exec "$@" < /dev/null
"""


@dataclass(frozen=True, slots=True)
class Nature:
    """
    What a host says of itself.

    Attributes:
        clock_s: How far its wall clock is ahead.
    """

    hostname: str
    machine: str
    boot: str
    clock_s: int = 0

    @classmethod
    def of(cls, hostname: str) -> Self:
        return cls(hostname, secrets.token_hex(16), secrets.token_hex(16))

    def reborn(self, clock_s: int = 0) -> Nature:
        """The same host after a boot."""
        return replace(self, boot=secrets.token_hex(16), clock_s=clock_s)


class Machine:
    def __init__(self, wire: Wire, number: int, directory: Path, nature: Nature | None = None) -> None:
        self.name: Final = f"h{number}"
        self.address: Final = f"{NETWORK}.{number}"
        self.nature = nature or Nature.of(self.name)
        self._wire = wire
        self._mac = f"02:00:00:00:00:{number:02x}"
        self._directory = directory
        self.container: Container | None = None

    def boot(self, command: Sequence[str], env: Mapping[str, str], said: Path) -> Container:
        """Start it with *command* as process 1, which writes to *said*."""
        nature = self.nature
        files = [self._directory / "machine-id", self._directory / "boot-id"]
        for file, text in zip(files, (nature.machine, nature.boot), strict=True):
            file.write_text(f"{text}\n", "ascii")
        words = [nature.hostname, *map(str, files), self._mac, self.address]
        shifted = {**env, **clock(nature.clock_s)} if nature.clock_s else env
        with said.open("ab") as sink:
            process = subprocess.Popen(
                [
                    "setpriv", "--pdeathsig", "KILL", *containers.unshare(), "--net", "--uts",
                    "sh", "-c", _BOOT, "sh", *words, *command,
                ],
                env=shifted, stdin=subprocess.PIPE, stdout=sink, stderr=sink,
            )  # fmt: skip
        made = Container(process)
        self._wire.plug(self.name, made.init)
        assert process.stdin is not None
        with process.stdin as pipe:
            pipe.write(b"go\n")
        self.container = made
        return made

    @property
    def runs(self) -> bool:
        return self.container is not None and self.container.process.poll() is None

    def ports_to(self, port: int) -> set[int]:
        """The local ports of its connections to *port*, by its kernel."""
        assert self.container is not None
        _, *lines = Path(f"/proc/{self.container.init}/net/tcp").read_text("ascii").splitlines()
        rows = [line.split()[1:4] for line in lines]
        return {_port_of(here) for here, there, state in rows if state == _ESTABLISHED and _port_of(there) == port}

    def die(self) -> None:
        """Without a word: what it sends at its end does not get through."""
        if self.container is not None:
            try:
                self._wire.cut(self.name)
            finally:
                self.container.end()


def _port_of(address: str) -> int:
    return int(address.partition(":")[2], 16)


def set_address(pid: int, number: int) -> None:
    """Give the network namespace of *pid*, which is on the wire, its address."""
    for line in (
        "ip link set lo up",
        f"ip link set {DEVICE} address 02:00:00:00:00:{number:02x} up",
        f"ip address add {NETWORK}.{number}/24 dev {DEVICE}",
    ):
        subprocess.run(["nsenter", "--target", str(pid), "--net", *line.split()], check=True, timeout=ENDS_S)


def clock(ahead_s: int) -> dict[str, str]:
    """The environment of programs whose wall clock is so far ahead; the monotonic one is left alone."""
    [library, *_] = map(str, _LIBRARIES.glob(_LIBRARY))
    return {
        "LD_PRELOAD": library, "FAKETIME": f"{ahead_s:+d}s", "FAKETIME_DONT_FAKE_MONOTONIC": "1", "NO_FAKE_STAT": "1",
    }  # fmt: skip


@cache
def why_not() -> str | None:
    """Why there can be no hosts here; None: there can be."""
    if os.geteuid() != 0:
        return "hosts need root: network namespaces, mounts, devices"
    missing = [
        program
        for program in ("ip", "unshare", "nsenter", "setpriv", "mount", "hostname")
        if shutil.which(program) is None
    ]
    if missing:
        return f"{', '.join(missing)} not installed (packages iproute2, util-linux, mount, hostname)"
    try:
        TUN.open("rb").close()
    except OSError as error:
        return f"no devices for hosts: {TUN}: {error.strerror}"
    done = subprocess.run(
        [*containers.unshare(), "--net", "--uts", "hostname", "pulse"], capture_output=True, text=True, check=False,
        timeout=ENDS_S,
    )  # fmt: skip
    return None if done.returncode == 0 else f"no namespaces are allowed here: {done.stderr.strip()}"


def why_no_clock() -> str | None:
    return None if any(_LIBRARIES.glob(_LIBRARY)) else "libfaketime is not installed (package libfaketime)"
