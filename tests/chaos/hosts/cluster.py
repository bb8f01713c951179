"""Hosts with a supervisor and a pool each, hosts with remote workers, one with PostgreSQL; and a ledger of them all."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec

from pulse_supervisor.postgres import embedded
from tests.chaos.database import Own, postmaster
from tests.chaos.hosts.machine import NETWORK, Machine, Nature, set_address
from tests.chaos.hosts.wire import Wire
from tests.chaos.load import ledger
from tests.chaos.site import APP, WAIT_S, Site
from tests.chaos.verdict import Database, Pair
from tests.support.confidential import confidential
from tests.support.servers.certificates import Authority
from tests.support.servers.streams import JsonLines
from tests.support.systems.system import Body, short_directory
from tests.support.systems.system_kit import ACTORS, Whole, clean_environment
from tests.support.waiting import until

# A seventh of the defaults. With a shorter lease, hosts that nothing befell would lose it: two cores run 60 processes.
SETTINGS: Final = {
    "PULSE_LEASE_S": "4.5", "PULSE_HEARTBEAT_S": "1.5", "PULSE_SWEEP_S": "1", "PULSE_DRAIN_S": "3", "PULSE_OBEY_S": "1",
    "PULSE_LOG_LEVEL": "info",
}  # fmt: skip
LEASE_S: Final = float(SETTINGS["PULSE_LEASE_S"])
SWEEP_S: Final = float(SETTINGS["PULSE_SWEEP_S"])
START_S: Final = 60.0
POOL: Final = ("--processes", "1", "--concurrency", "8")
PORT: Final = 7420
POSTGRES_PORT: Final = 5432
USER: Final = "remote"
DATABASE: Final = "db"
ARCHIVE: Final = "archive"  # of its WAL, in its directory
DATABASE_NUMBER: Final = 1  # the last number of its address
FIRST_HOST, FIRST_REMOTE, TWIN = 11, 21, 31
_HBA: Final = f"host all all {NETWORK}.0/24 trust\n"  # nobody but the namespaces of this test gets there
_POSTGRES: Final = {"fsync": "off", "max_connections": "200", "listen_addresses": "*"}
_PORTS: Final = "SELECT client_port FROM pg_stat_activity WHERE client_addr = $1::text::inet"
_LIVES: Final = "SELECT count(*) - count(DISTINCT host) FROM pulse.hosts"
_HELD: Final = """
    SELECT id, attempts, split_part(locked_by, '/', CASE WHEN locked_by LIKE 'tcp:%' THEN 3 ELSE 5 END)
    FROM pulse.jobs WHERE status = 'RUNNING'"""


class Host(Whole):
    """A host with a supervisor, its actors and a pool."""

    def __init__(self, machine: Machine, directory: Path, dsn: str, env: Mapping[str, str]) -> None:
        super().__init__(dsn, directory, {**SETTINGS, **env}, ("--app", APP, *POOL))
        self.machine = machine

    @property
    def name(self) -> str:
        return self.machine.name

    def spawn(self, *options: str) -> subprocess.Popen[bytes]:
        assert self.process is None
        self.process = self.machine.boot([*self._command, *options], self.env, self.errors).process
        return self.process

    def die(self) -> None:
        self.process = None
        self.machine.die()

    def kill(self) -> int:
        self.die()
        return -signal.SIGKILL

    def clock_s(self) -> float:
        """What its clock said when it was ready, Unix time."""
        return datetime.fromisoformat(self.log("supervisor_ready")[-1]["timestamp"]).timestamp()

    def is_whole(self) -> bool:
        """Whether it is up, with the database, all actors and its pool."""
        if not self.machine.runs:
            return False
        try:
            status = self.ask_supervisor("status")
        except (OSError, AssertionError):
            return False
        database, pools = status["database"], status["pools"]
        return (
            {row["name"] for row in status["actors"] if row["state"] == "running"} >= set(ACTORS)
            and database is not None
            and database["ok"]
            and bool(pools)
            and all(pool["state"] == "running" for pool in pools)
            and self.has_worker_of(self.machine.nature.hostname)
        )

    def said(self, event: str) -> int:
        """How often it has logged that."""
        return len(self.log(event))

    def has_worker_of(self, hostname: str) -> bool:
        return any(row["name"].startswith(f"{hostname}-") and row["names"] for row in self.connected())


class Remote:
    """A host with a pool that connects to *server* over TLS."""

    def __init__(self, machine: Machine, directory: Path, server: Host, env: Mapping[str, str]) -> None:
        self.machine = machine
        self.server = server
        self.errors = directory / "errors"
        self.errors.touch()
        self._log = JsonLines[Body](self.errors, dict, lambda entry: entry.get("event"))
        self.env = clean_environment(
            **env, PULSE_CONNECT=f"tls://{server.machine.address}:{PORT}", PULSE_LOG_FORMAT="json",
            PULSE_STATE_DIR=str(directory / "state"),
        )  # fmt: skip

    @property
    def name(self) -> str:
        return self.machine.name

    def said(self, event: str) -> int:
        """How often it has logged that."""
        return len(self._log.read(event))

    def spawn(self) -> None:
        command = [sys.executable, "-m", "pulse.cli.main", "worker", APP, *POOL]
        self.machine.boot(command, self.env, self.errors)

    def die(self) -> None:
        self.machine.die()

    def is_whole(self) -> bool:
        return self.machine.runs and self.server.has_worker_of(self.machine.nature.hostname)


class Cluster(Site):
    """
    All hosts.

    Attributes:
        dark_s: Host -> when it was struck, and until when that may have been felt (monotonic).
    """

    def __init__(
        self, wire: Wire, database: Own, hosts: Sequence[Host], *, remotes: Sequence[Remote], builder: Builder
    ) -> None:
        super().__init__(hosts[0], database)
        self.wire = wire
        self.builder = builder
        self.hosts = hosts
        self.remotes = remotes
        self.dark_s: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        for machine in self.machines:
            self.take_in(machine)

    @property
    def machines(self) -> list[Host | Remote]:
        return [*self.hosts, *self.remotes]

    def take_in(self, machine: Host | Remote) -> None:
        """What its handlers do is in the ledger."""
        machine.env[ledger.VARIABLE] = str(self.ledger.directory / machine.name)

    def start(self, audit: bool = True) -> None:
        super().start(audit)
        for machine in self.machines[1:]:
            machine.spawn()
        self.settle(START_S)

    def close(self) -> None:
        for machine in self.machines:
            machine.die()
        super().close()

    def is_whole(self) -> bool:
        return all(machine.is_whole() for machine in self.machines)

    def settle(self, within_s: float = WAIT_S) -> float:
        started_s = time.monotonic()
        for machine in self.machines:
            until(machine.is_whole, f"{machine.name} is whole", max(0.0, started_s + within_s - time.monotonic()))
        return time.monotonic() - started_s

    def served_by(self, struck: Host | Remote) -> list[Host | Remote]:
        """A host, and those whose workers are connected to it."""
        return [struck, *(one for one in self.remotes if one.server is struck)]

    def running(self, hostname: str | None = None) -> set[Pair]:
        """The attempts that run by the database, of all hosts or of those with this name."""
        head = "" if hostname is None else f"{hostname}-"
        return {(UUID(str(job)), attempt) for job, attempt, name in self.sql.rows(_HELD) if name.startswith(head)}

    def orphans(self, machine: Machine) -> int:
        """How many sessions PostgreSQL has of that host which the host has not."""
        ports = {row["client_port"] for row in self.sql.rows(_PORTS, machine.address)}
        return len(ports - machine.ports_to(POSTGRES_PORT))

    def lives(self) -> int:
        """How often a host was started whose name the database had already."""
        return int(str(self.sql.value(_LIVES)))

    def snapshot(self) -> Database:
        return replace(super().snapshot(), dark_s=self.dark_s)


class Builder:
    """Makes the hosts of a cluster, each in a directory of its own."""

    def __init__(self, stack: contextlib.ExitStack, wire: Wire, place: Path) -> None:
        self._stack = stack
        self._wire = wire
        self._place = place
        self._authority = Authority(place)
        self._password = confidential("Sehr-geheim-remote", "password of remote workers")
        self.dsn = f"postgresql://{embedded.SUPERUSER}@{NETWORK}.{DATABASE_NUMBER}:{POSTGRES_PORT}/{embedded.DATABASE}"

    def database(self) -> Own:
        directory = self._directory(DATABASE)
        directory.chmod(0o711)  # PostgreSQL runs as another user, who has to get through
        archive = directory / ARCHIVE
        archive.mkdir()
        command = f"test ! -f {archive}/%f && cp %p {archive}/%f"
        settings = {**_POSTGRES, "archive_mode": "on", "archive_command": command}
        server = embedded.prepare(directory, embedded_user=None, log=_ignore, settings=settings)
        self._stack.callback(embedded.release, server)
        shutil.copystat(server.data_dir, archive)
        owner = server.data_dir.stat()
        os.chown(archive, owner.st_uid, owner.st_gid)
        with (server.data_dir / "pg_hba.conf").open("a", encoding="ascii") as file:
            file.write(_HBA)
        made = Own(msgspec.structs.replace(server, argv=("unshare", "--net", *server.argv)))
        made.up()
        self._stack.callback(made.down)
        self.plug(made)
        return made

    def plug(self, database: Own) -> None:
        """Give it its address, after each start: it has a new network then."""
        pid = postmaster(database)
        self._wire.plug(DATABASE, pid)
        set_address(pid, DATABASE_NUMBER)

    def host(self, number: int, nature: Nature | None = None) -> Host:
        directory = self._directory(f"h{number}")
        machine = Machine(self._wire, number, directory, nature)
        pair = self._authority.issue(machine.name, machine.address)
        env = {
            "PULSE_LISTEN": f"{machine.address}:{PORT}",
            "PULSE_TLS_CERT": str(pair.cert), "PULSE_TLS_KEY": str(pair.key),
            "PULSE_AUTH_USERS": f"{USER}:{self._password}:worker",
        }  # fmt: skip
        return self._stack.enter_context(contextlib.closing(Host(machine, directory, self.dsn, env)))

    def remote(self, number: int, server: Host) -> Remote:
        directory = self._directory(f"h{number}")
        login = {"PULSE_USER": USER, "PULSE_PASSWORD": self._password, "PULSE_TLS_CA": str(self._authority.file)}
        return Remote(Machine(self._wire, number, directory), directory, server, login)

    def _directory(self, name: str) -> Path:
        made = self._place / name
        made.mkdir()
        return made


@contextlib.contextmanager
def cluster(hosts: int = 5, remotes: int = 2) -> Iterator[Cluster]:
    """Not started yet; nothing of it is left afterwards. The remote hosts are served by the first hosts."""
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(short_directory(0o711))
        wire = stack.enter_context(Wire())
        builder = Builder(stack, wire, place)
        database = builder.database()
        made = [builder.host(FIRST_HOST + number) for number in range(hosts)]
        served = [builder.remote(FIRST_REMOTE + number, made[number]) for number in range(remotes)]
        built = Cluster(wire, database, made, remotes=served, builder=builder)
        stack.callback(built.close)
        yield built


def _ignore(event: str, **fields: object) -> None:
    """What `embedded` has to tell interests nobody here."""
