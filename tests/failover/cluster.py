"""A PostgreSQL cluster under Patroni: three nodes, and three etcd to agree by, all of it on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import asyncpg

from pulse_supervisor.postgres import embedded
from pulse_supervisor.postgres.accounts import account_for
from tests.support import waiting
from tests.support.servers.postgres import base_directory
from tests.support.systems.system_kit import ROOT
from tests.support.waiting import is_alive, until

RECIPE: Final = ROOT / "deploy" / "patroni"
PASSWORD: Final = "change-me"
BOOT_S: Final = 90.0
END_S: Final = 20.0
ANSWER_S: Final = 2.0
OK: Final = 200
# Patroni's shortest times: an operator's choice, as any other.
QUICK: Final[Mapping[str, object]] = {"ttl": 5, "loop_wait": 1, "retry_timeout": 3}
_CHILD_EXEC: Final = Path(embedded.__file__).parents[1] / "children" / "child_exec.py"
_CLIENT: Final = Path("/usr/lib/python3/dist-packages/etcd")
_BINARIES: Final = "/usr/lib/postgresql/*/bin/postgres"


def why_not() -> str | None:
    """Why no cluster can be made here; None: it can."""
    if os.geteuid() != 0:
        return "only root can run PostgreSQL's nodes as another user"
    lacking = [name for name in ("patroni", "etcd") if shutil.which(name) is None]
    lacking += [] if _bin_dirs() else ["postgresql"]
    lacking += [] if _CLIENT.exists() else ["python3-etcd"]
    return f"not installed: {', '.join(lacking)}" if lacking else None


def _recipe() -> dict[str, str]:
    """The variables of a node, as a user copies them."""
    lines = (RECIPE / "node.env").read_text("utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def _bin_dirs() -> list[Path]:
    return sorted(Path("/").glob(_BINARIES.lstrip("/")))


class Program:
    """A program of the cluster: started as another user, and ended with this process."""

    def __init__(self, directory: Path, name: str, words: Sequence[str], env: Mapping[str, str], death: str) -> None:
        account = account_for(None, _ignore)
        assert account is not None
        self.log = directory / f"{name}.log"
        told = {"PATH": os.defpath, "LC_ALL": "C.UTF-8", **env}.items()
        self._argv = [
            sys.executable, "-I", "-S", str(_CHILD_EXEC), "--parent", str(os.getpid()), "--death-signal", death,
            "--user", account.name, "--cwd", str(directory), "--log", str(self.log),
            "--log-max-bytes", str(1 << 26),
            *(part for key, value in told for part in ("--env", f"{key}={value}")),
            "--", *words,
        ]  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        if self.process is None:
            self.process = subprocess.Popen(self._argv)

    def end(self, number: signal.Signals) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.send_signal(number)
            process.send_signal(signal.SIGCONT)
            process.wait(END_S)


class Node:
    """A PostgreSQL and its Patroni."""

    def __init__(self, directory: Path, name: str, etcd: str, ports: tuple[int, int]) -> None:
        self.name = name
        self.host = f"127.0.0.1:{ports[0]}"
        self._api = f"127.0.0.1:{ports[1]}"
        self.data_dir = directory / name
        env = _recipe() | {
            "PATRONI_NAME": name,
            "PATRONI_RESTAPI_LISTEN": self._api, "PATRONI_RESTAPI_CONNECT_ADDRESS": self._api,
            "PATRONI_ETCD3_HOSTS": etcd,
            "PATRONI_POSTGRESQL_LISTEN": self.host, "PATRONI_POSTGRESQL_CONNECT_ADDRESS": self.host,
            "PATRONI_POSTGRESQL_DATA_DIR": str(self.data_dir),
            "PATRONI_POSTGRESQL_PGPASS": str(directory / f"{name}.pgpass"),
            "PATRONI_POSTGRESQL_BIN_DIR": str(_bin_dirs()[-1].parent),
        }  # fmt: skip
        assert env.keys() == _recipe().keys(), "the node's variables are those of the recipe"
        self._program = Program(
            directory, name, [shutil.which("patroni") or "", str(RECIPE / "patroni.yml")], env, "TERM"
        )

    def start(self) -> None:
        self._program.start()

    def stop(self) -> None:
        """An orderly end, which hands over."""
        self._program.end(signal.SIGTERM)

    def postmaster(self) -> int:
        """Its pid; 0: none runs."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            pid = int((self.data_dir / "postmaster.pid").read_text("utf-8").splitlines()[0])
            return pid if is_alive(pid) else 0
        return 0

    def kill(self) -> None:
        """The machine is gone: SIGKILL of Patroni and of the postmaster, whose backends follow."""
        self._program.end(signal.SIGKILL)
        self.kill_postgres()

    def lose_disk(self) -> None:
        """Of a node that was killed: when it comes back it is a new standby."""
        shutil.rmtree(self.data_dir)

    @contextlib.contextmanager
    def deaf(self) -> Iterator[None]:
        """Its standbys get nothing more, for the block, or until it dies: its walsenders are stopped."""
        pids = [pid for pid in waiting.children(self.postmaster()) if b"walsender" in _cmdline(pid)]
        with _stopped(pids):
            yield

    def kill_postgres(self) -> None:
        pid = self.postmaster()
        if pid:
            backends = waiting.children(pid)
            for one in (pid, *backends):  # a stopped one would outlive it
                _send(one, signal.SIGKILL)
            until(lambda: not any(map(is_alive, (pid, *backends))), "PostgreSQL is gone", END_S)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """All its processes are stopped for the block: the kernel takes connections for them, and nobody answers."""
        postmaster = self.postmaster()
        with _stopped([self._program.pid, postmaster, *waiting.children(postmaster)]):
            yield

    def log(self) -> str:
        """What Patroni and PostgreSQL have written."""
        return self._program.log.read_text("utf-8", "replace")

    def said(self) -> Mapping[str, Any]:
        """What its Patroni says of it; nothing while it does not answer."""
        return _ask(self._api, "/patroni")[1]

    def is_primary(self) -> bool:
        """Whether it holds the leader's key, and takes writes."""
        said = self.said()
        return said.get("role") in {"master", "primary"} and said.get("state") == "running"

    def configure(self, config: Mapping[str, object]) -> None:
        """As ``patronictl edit-config`` does; Patroni refuses it while the cluster is being made."""
        until(lambda: _ask(self._api, "/config", method="PATCH", body=config)[0] == OK, "the settings are taken", END_S)

    def switch(self, to: Node) -> None:
        """As ``patronictl switchover`` does; Patroni refuses a candidate that it does not know as synchronous yet."""
        wish = {"leader": self.name, "candidate": to.name}

        def is_done() -> bool:
            return _ask(self._api, "/switchover", method="POST", body=wish, within_s=END_S)[0] == OK

        until(is_done, f"{to.name} takes over", END_S)


class Cluster:
    """Nodes and etcd; it is a database of the chaos suite's sites."""

    def __init__(self, directory: Path, nodes: int, etcds: int) -> None:
        self.directory = directory
        peers = [(f"e{number}", *free_ports()) for number in range(etcds)]
        members = ",".join(f"{name}=http://127.0.0.1:{port}" for name, _, port in peers)
        self.etcds = [
            Program(directory, name, [
                shutil.which("etcd") or "", "--name", name, "--data-dir", str(directory / name),
                "--listen-client-urls", f"http://127.0.0.1:{client}", "--advertise-client-urls", f"http://127.0.0.1:{client}",
                "--listen-peer-urls", f"http://127.0.0.1:{peer}", "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
                "--initial-cluster", members, "--log-level", "error",
            ], {}, "KILL")
            for name, client, peer in peers
        ]  # fmt: skip
        where = ",".join(f"127.0.0.1:{client}" for _, client, _ in peers)
        self.nodes = [Node(directory, name, where, free_ports()) for name in "abc"[:nodes]]

    @property
    def given(self) -> str:
        """The supervisor's --dsn."""
        return self.dsn

    @property
    def data_dir(self) -> Path:
        """The primary's."""
        return self.primary().data_dir

    @property
    def dsn(self) -> str:
        return self._dsn("pulse")

    def _dsn(self, who: str) -> str:
        hosts = ",".join(node.host for node in self.nodes)
        return f"postgresql://{who}:{PASSWORD}@{hosts}/{who}?target_session_attrs=read-write"

    def down(self) -> None:
        raise NotImplementedError

    def up(self) -> None:
        """Patroni does that."""

    def start(self, config: Mapping[str, object]) -> None:
        """Boot: the first node makes the cluster, *config* is set, and the others follow it."""
        for etcd in self.etcds:
            etcd.start()
        first, *others = self.nodes
        first.start()
        until(first.is_primary, f"{first.name} is the primary", BOOT_S)
        first.configure({**QUICK, **config})
        for node in others:
            node.start()
        self.settle()
        asyncio.run(_create(self._dsn("postgres")))

    def settle(self) -> None:
        """Return when there is one primary, and all others stream from it, one of them synchronously if that is set."""
        until(lambda: len(self.standbys()) == len(self.nodes) - 1, "the standbys stream", BOOT_S)

    def close(self) -> None:
        for etcd in self.etcds:
            etcd.end(signal.SIGKILL)
        for node in self.nodes:
            node.kill()

    def primary(self) -> Node:
        found: list[Node] = []

        def look() -> bool:
            found[:] = [node for node in self.nodes if node.is_primary()]
            return len(found) == 1

        until(look, "there is one primary", BOOT_S)
        return found[0]

    def standbys(self) -> list[Node]:
        """Those that stream from the primary."""
        following = {
            one["application_name"]
            for one in self.primary().said().get("replication", ())
            if one["state"] == "streaming"
        }
        return [node for node in self.nodes if node.name in following]

    def synchronous(self) -> list[Node]:
        following = {one["application_name"]: one["sync_state"] for one in self.primary().said().get("replication", ())}
        return [node for node in self.nodes if following.get(node.name) in {"sync", "quorum"}]


@contextlib.contextmanager
def cluster(nodes: int = 3, etcds: int = 3, **config: object) -> Iterator[Cluster]:
    """A cluster that runs; nothing of it is left afterwards."""
    with _directory() as directory:
        made = Cluster(directory, nodes, etcds)
        try:
            made.start(config)
            yield made
        finally:
            made.close()


@contextlib.contextmanager
def _directory() -> Iterator[Path]:
    """In memory, where there is enough: what a killed node had not synced is there all the same."""
    place = Path(tempfile.mkdtemp(prefix="pulse-f-", dir=base_directory()))
    place.chmod(0o777)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


async def _create(dsn: str) -> None:
    """As docs/high-availability.md says."""
    connection = await asyncpg.connect(dsn)
    await connection.execute(f"CREATE ROLE pulse LOGIN PASSWORD '{PASSWORD}'")
    await connection.execute("GRANT pg_read_all_stats TO pulse")
    await connection.execute("CREATE DATABASE pulse OWNER pulse")
    await connection.close()


@contextlib.contextmanager
def _stopped(pids: Sequence[int]) -> Iterator[None]:
    for pid in pids:
        _send(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in reversed(pids):
            _send(pid, signal.SIGCONT)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _cmdline(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def free_ports() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        return one.getsockname()[1], two.getsockname()[1]


def _ask(
    where: str, path: str, *, method: str = "GET", body: Mapping[str, object] | None = None, within_s: float = ANSWER_S
) -> tuple[int, Mapping[str, Any]]:
    """Patroni's status and answer; 0 and nothing while there is none."""
    connection = http.client.HTTPConnection(where, timeout=within_s)
    try:
        connection.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        said = answer.read()
        found: Mapping[str, Any] = json.loads(said) if said[:1] == b"{" else {}
    except (OSError, http.client.HTTPException):
        return 0, {}
    else:
        return answer.status, found
    finally:
        connection.close()


def _ignore(event: str, **fields: object) -> None:
    """What `account_for` has to tell interests nobody here."""
