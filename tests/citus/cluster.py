"""A cluster of Citus: a coordinator and two nodes on loopback, of the PostgreSQL that deploy/citus/build has made."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from pulse.security.schema_name import derived
from pulse.store.connections.citus_installation import distribute
from pulse.store.connections.pool import HOT_SETTINGS, Target, connect
from tests.failover.cluster import Program, free_ports
from tests.support.servers.postgres import base_directory
from tests.support.systems.epoch_kit import SETTINGS, starts
from tests.support.systems.system_kit import Whole, place
from tests.support.waiting import until, until_async

if TYPE_CHECKING:
    from asyncpg import Connection, Record

    from pulse.store.connections.session import Session

GIVEN: Final = "PULSE_CITUS"  # the directory of the programs of a PostgreSQL that has Citus
BOOT_S: Final = 30.0
END_S: Final = 20.0
GO_ON_S: Final = 15.0
JOBS: Final = 40
_SETTINGS: Final = {
    "shared_preload_libraries": "citus",
    "listen_addresses": "127.0.0.1",
    "wal_level": "logical",  # the rebalancer moves shards by it
    "fsync": "off",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "max_worker_processes": "32",
    "citus.enable_statistics_collection": "off",
    "citus.node_conninfo": "sslmode=disable",
}
_PLACE: Final = """
    SELECT s.nodeport FROM citus_shards s JOIN pg_class c ON c.oid = s.table_name
    WHERE c.relname = 'jobs' AND c.relnamespace = $1::text::regnamespace"""
_MOVE: Final = "SELECT citus_schema_move($1::text::regnamespace, '127.0.0.1', $2, $3::text::citus.shard_transfer_mode)"


def why_not() -> str | None:
    """Why no cluster can be made here; None: it can."""
    given = os.environ.get(GIVEN)
    if given is None:
        return f"{GIVEN} is not set: deploy/citus/build makes what it names"
    if not (Path(given) / "postgres").exists():
        return f"{GIVEN}={given} has no postgres"
    return None if os.geteuid() == 0 else "only root can run PostgreSQL's nodes as another user"


class Node:
    """One PostgreSQL of the cluster."""

    def __init__(self, directory: Path, name: str, port: int) -> None:
        self.name, self.port = name, port
        programs = Path(os.environ[GIVEN])
        self._directory, self._data = directory, directory / name
        options = {**_SETTINGS, "port": str(port), "unix_socket_directories": ""}
        words = [str(programs / "postgres"), "-D", str(self._data)]
        self._program = Program(
            directory, name, [*words, *(f"--{key}={value}" for key, value in options.items())], {}, "INT"
        )

    def make(self) -> None:
        self._by("initdb", "-U", "postgres", "-A", "trust", "--no-locale", "-EUTF8")

    def copy(self, primary: Node) -> None:
        """Be its standby."""
        self._by("pg_basebackup", "-R", "-c", "fast", "-U", "postgres", "-h", "127.0.0.1", "-p", str(primary.port))

    def _by(self, program: str, *words: str) -> None:
        """Have a program of PostgreSQL make the directory of the data."""
        made = Program(
            self._directory, f"{self.name}-{program}",
            [str(Path(os.environ[GIVEN]) / program), "-D", str(self._data), *words], {}, "KILL",
        )  # fmt: skip
        made.start()
        assert made.process is not None
        assert made.process.wait(BOOT_S) == 0, made.log.read_text("utf-8", "replace")

    def start(self) -> None:
        self._program.start()
        until(self._answers, f"{self.name} answers", BOOT_S)

    def kill(self) -> None:
        """SIGKILL of the postmaster; its backends follow."""
        self._program.end(signal.SIGKILL)

    def log(self) -> str:
        return self._program.log.read_text("utf-8", "replace")

    def _answers(self) -> bool:
        words = [str(Path(os.environ[GIVEN]) / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(words, check=False).returncode == 0


class Cluster:
    """The coordinator, which has the catalogue and no queue, and the nodes, which have the queues."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        ports = [*free_ports(), free_ports()[0]]
        self.coordinator, *self.nodes = (
            Node(directory, name, port) for name, port in zip(("coordinator", "one", "two"), ports, strict=True)
        )

    def start(self) -> None:
        for node in (self.coordinator, *self.nodes):
            node.make()
            node.start()
            asyncio.run(_create(node))
        asyncio.run(self._join())

    async def _join(self) -> None:
        async with session(self.coordinator) as connection:
            await connection.execute("SELECT citus_set_coordinator_host('127.0.0.1', $1)", self.coordinator.port)
            for node in self.nodes:
                await connection.execute("SELECT citus_add_node('127.0.0.1', $1)", node.port)
            await connection.execute("CREATE ROLE pulse LOGIN")
            await connection.execute("GRANT pg_read_all_stats TO pulse")
            await connection.execute("GRANT CREATE ON DATABASE pulse TO pulse")

    @contextlib.contextmanager
    def standby(self) -> Iterator[Node]:
        """A standby of the coordinator."""
        made = Node(self._directory, "standby", free_ports()[0])
        made.copy(self.coordinator)
        made.start()
        try:
            yield made
        finally:
            made.kill()

    def close(self) -> None:
        for node in (self.coordinator, *self.nodes):
            node.kill()

    def dsn(self, *first: Node) -> str:
        """All nodes; those that are asked first."""
        return dsn_of(*first, *(node for node in (self.coordinator, *self.nodes) if node not in first))

    async def home(self, schema: str) -> tuple[Node, Node]:
        """The node that has the rows of a queue, and the one that has not."""
        async with session(self.coordinator) as connection:
            port = await connection.fetchval(_PLACE, derived("pulse_rows", schema))
        one, two = self.nodes
        return (one, two) if port == one.port else (two, one)

    async def move(self, schema: str, mode: str = "force_logical") -> None:
        """
        Move a queue to the other node, as the rebalancer does.

        Citus removes what a move before has left there first, and gives up when it does not get a lock within 1 s:
        its own cleaner may have it.
        """
        _, other = await self.home(schema)

        async def moved() -> bool:
            try:
                await connection.execute(_MOVE, derived("pulse_rows", schema), other.port, mode)
            except asyncpg.InternalServerError as error:
                if "could not be cleaned up" not in str(error):
                    raise
                return False
            return True

        async with session(self.coordinator) as connection:
            await until_async(moved, "the queue is moved", END_S)


@contextlib.asynccontextmanager
async def queue(nodes: Cluster, schema: str) -> AsyncIterator[Session]:
    """A session of a new queue, on the node that has its rows."""
    target = Target(nodes.dsn(), "tests", schema)
    assert await distribute(target)
    assert not await distribute(target)
    connection = await connect(target, HOT_SETTINGS, statements=0)
    try:
        yield connection
    finally:
        connection.terminate()


@contextlib.contextmanager
def system(nodes: Cluster, schema: str, first: Node) -> Iterator[Whole]:
    """A supervisor and workers for a queue of its own, whose DSN begins with *first*."""
    dsn = nodes.dsn(first)
    with place(dsn, (), **SETTINGS, PULSE_SCHEMA=schema, PULSE_DSN=dsn) as whole:
        done = whole.command("migrate", "--citus")
        assert done.returncode == 0, done.stderr
        whole.start()
        whole.pool("--processes", "1")
        yield whole


def goes_on(whole: Whole) -> None:
    """Jobs run, of those that are submitted now."""
    since_s = time.monotonic()
    until(lambda: len([one for one in starts(whole) if one.at_s > since_s]) > JOBS, "jobs run", GO_ON_S)


def dsn_of(*nodes: Node, who: str = "pulse", database: str = "pulse") -> str:
    hosts = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
    return f"postgresql://{who}@{hosts}/{database}"


@contextlib.asynccontextmanager
async def session(node: Node, database: str = "pulse", **options: Any) -> AsyncIterator[Connection[Record]]:
    connection: Connection[Record] = await asyncpg.connect(dsn_of(node, who="postgres", database=database), **options)
    try:
        yield connection
    finally:
        await connection.close(timeout=5)


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """A cluster that runs; nothing of it is left afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="pulse-citus-", dir=base_directory()))
    directory.chmod(0o777)
    made = Cluster(directory)
    try:
        made.start()
        yield made
    finally:
        made.close()
        shutil.rmtree(directory, ignore_errors=True)


async def _create(node: Node) -> None:
    async with session(node, "postgres") as connection:
        await connection.execute("CREATE DATABASE pulse")
    async with session(node) as connection:
        await connection.execute("CREATE EXTENSION citus")
