"""pulse in containers: as process 1, and with pid namespaces of one's own or one that server and workers share."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final, TypeVar
from uuid import UUID

import psutil
import pytest

from tests.support.servers.containers import Container, enter, start, why_not
from tests.support.servers.postgres import Postgres
from tests.support.systems.system import Body
from tests.support.systems.system_kit import APP, ROOT, SHORT_LEASE, Whole, clean_environment, place
from tests.support.systems.worker_kit import handler_processes
from tests.support.waiting import until

pytestmark = [
    pytest.mark.process,
    pytest.mark.postgres,
    pytest.mark.skipif(why_not() is not None, reason=f"no pid namespaces: {why_not()}"),
    pytest.mark.system,
    pytest.mark.rest,
]

SERVER: Final = (sys.executable, "-m", "pulse_supervisor.main")
PULSE: Final = (sys.executable, "-m", "pulse.cli.main")
POOL: Final = (*PULSE, "worker", APP, "--topic", "default")
HANDLERS: Final = "pulse.worker.handler_process"
KILLED: Final = "worker process died: SIGKILL"
LAPSED: Final = "worker lease expired"
T = TypeVar("T")


class Site:
    def __init__(self, whole: Whole, stack: ExitStack) -> None:
        self.whole = whole
        self.jobs: Final = whole.jobs()
        self._stack = stack

    def run(self, *words: str) -> Container:
        made = start(words, self.whole.env, self.whole.errors, ROOT)
        self._stack.callback(made.end)
        return made

    def server(self, *options: str) -> Container:
        where = ["--dsn", self.whole.dsn] if self.whole.dsn else []
        return self._ready(lambda: self.run(*SERVER, *where, *options))

    def server_inside(self, container: Container) -> psutil.Process:
        return self._ready(lambda: self.inside(container, *SERVER, "--dsn", self.whole.dsn))

    def _ready(self, begin: Callable[[], T]) -> T:
        before = len(self.whole.log("supervisor_ready"))
        made = begin()
        until(lambda: len(self.whole.log("supervisor_ready")) > before, "the server is ready")
        return made

    def inside(self, container: Container, *words: str) -> psutil.Process:
        """A command in the pid namespace of a container, as with ``pid: service:NAME`` or ``shareProcessNamespace``."""
        with self.whole.errors.open("ab") as sink:
            process = psutil.Popen(
                [*enter(container.init), f"--wdns={ROOT}", *words], env=self.whole.env, stdout=sink, stderr=sink
            )
        self._stack.callback(process.wait)
        self._stack.callback(container.end)
        return until(process.children, "the command")[0]

    def workers(self, count: int) -> list[Body]:
        until(lambda: len(self.whole.connected()) == count, f"{count} workers")
        return self.whole.connected()

    def hold(self) -> UUID:
        held = self.jobs.submit("hold", {"gate": str(self.whole.gate("held"))})
        self.whole.wait_entry(held)
        return held

    def wait_again(self, held: UUID) -> str | None:
        self.whole.wait_entry(held, attempt=2)
        return self.jobs.get(held).last_error

    def leave_orphan(self, container: Container) -> psutil.Process:
        """A process that a handler has started, and whose parent is dead: its parent is process 1 now."""
        self.jobs.wait(self.jobs.submit("leave-orphan"))
        orphan = container.one("sleep 600")
        assert orphan.ppid() == container.init
        return orphan


@pytest.fixture
def site(newest_server: Postgres) -> Iterator[Site]:
    with newest_server.database() as dsn, place(dsn, **SHORT_LEASE) as whole, ExitStack() as stack:
        yield Site(whole, stack)


def wait_buried(orphan: psutil.Process) -> None:
    """End an orphan; process 1 must reap it."""
    orphan.kill()
    until(lambda: not psutil.pid_exists(orphan.pid), "the orphan is buried")


def test_the_server_is_process_1(site: Site) -> None:
    """It reaps orphans, restarts actors, recovers at once; SIGTERM and SIGINT stop it in order."""
    site.whole.env["PULSE_PRELOAD"] = "0"  # a pool that forks adopts orphans itself
    server = site.server("--app", APP)
    site.workers(1)
    wait_buried(site.leave_orphan(server))
    server.one("pulse_actors dispatcher").kill()
    until(lambda: site.whole.log("child_running", name="dispatcher", restarts=1), "another dispatcher")
    site.workers(1)
    held = site.hold()
    server.one(HANDLERS).kill()
    assert site.wait_again(held) == KILLED
    until(lambda: server.zombies() == [], "nobody is left unburied")

    server.send(signal.SIGTERM)
    until(lambda: site.whole.log("supervisor_stopping", signal="SIGTERM"), "it stops")
    site.whole.gate("held").touch()
    assert server.wait() == 0
    assert site.whole.rows("SELECT status::text FROM pulse.jobs WHERE id = $1", held)[0][0] == "COMPLETED"

    again = site.server()
    again.send(signal.SIGINT)
    assert again.wait() == 0


def test_a_pool_is_process_1(site: Site) -> None:
    """It reaps orphans and drains at SIGTERM; one that dies unseen, with its container, loses its jobs by leases."""
    server = site.server()
    pool, other = site.run(*POOL), site.run(*POOL)
    site.workers(2)  # of one host name, and with the same pid each, as in a pod
    held = site.hold()
    holder = str(site.whole.rows("SELECT locked_by FROM pulse.jobs WHERE id = $1", held)[0][0])
    [busy] = [one for one in (pool, other) if f"-{one.namespace}-" in holder]
    idle = other if busy is pool else pool
    busy.end()
    assert site.wait_again(held) == LAPSED
    wait_buried(site.leave_orphan(idle))

    idle.send(signal.SIGTERM)
    until(lambda: site.whole.log("pool_stopping"), "it stops")
    site.whole.gate("held").touch()
    assert idle.wait() == 0
    assert site.jobs.get(held).status == "COMPLETED"
    server.send(signal.SIGTERM)
    assert server.wait() == 0


def test_server_and_workers_share_pids(site: Site) -> None:
    """Neither is process 1: each can restart without the other, and the kernel reports deaths to the server."""
    pids = site.run("sleep", "infinity")
    server, pool = site.server_inside(pids), site.inside(pids, *POOL)
    assert all(row["recovery"] == "kernel" for row in site.workers(1))
    held = site.hold()
    server.terminate()
    until(lambda: not server.is_running(), "the server ends")
    site.server_inside(pids)
    site.workers(1)
    assert site.jobs.get(held).attempts == 1
    handler_processes(pool.pid)[0].kill()
    assert site.wait_again(held) == KILLED


@pytest.mark.parametrize(("module", "words"), [("pulse_supervisor.main", []), ("pulse.cli.main", POOL[3:])])
def test_what_only_just_starts_can_be_stopped(module: str, words: Sequence[str], tmp_path: Path) -> None:
    """Process 1 gets only signals that it has handlers for: it has one for SIGTERM before it reads its settings."""
    code = f"""
import sys, time
import {module}
from pulse import config

def load(*_, **__):
    while True:  # one long sleep would not hear of a signal that came just before it
        time.sleep(0.01)

config.load = load
sys.exit({module}.main(sys.argv[1:]))
"""
    container = start([sys.executable, "-c", code, *words], clean_environment(), tmp_path / "said", ROOT)
    try:
        until(partial(container.catches, signal.SIGTERM), "it hears SIGTERM")
        container.send(signal.SIGTERM)
        assert container.wait() == 128 + signal.SIGTERM
    finally:
        container.end()


def test_the_embedded_postgresql_outlives_its_container() -> None:
    """A container that is killed leaves a directory that the next one goes on with."""
    with place(None, **SHORT_LEASE) as whole, ExitStack() as stack:
        site = Site(whole, stack)
        server = site.server()
        held = site.jobs.submit("mark")
        server.end()
        again = site.server()
        assert site.jobs.get(held).status == "PENDING"
        again.send(signal.SIGTERM)
        assert again.wait() == 0
