"""Isolated jobs of every kind at once, stopped, killed and robbed of their zygote at random: each has one result."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from tests.pulse.worker.isolation.test_run_system import APP
from tests.support.servers.fake_server import FakeServer, Peer, job, pair
from tests.support.systems.worker_kit import WorkerProcess, args, worker
from tests.support.waiting import until
from tests.support.whole import WHOLE

pytestmark = [pytest.mark.process, pytest.mark.timed, pytest.mark.rest]

STORM_S: Final = 5.0
KINDS: Final = ["who", "who-plain", "wait", "wait-plain", "deaf", "deaf-plain", "kill-itself", "fault", "exit", "here"]
REASONS: Final = ["canceled", "lost", "timeout", "recall"]


def jobs(chance: random.Random, directory: Path) -> Iterator[list[Any]]:
    while True:
        name = chance.choice(KINDS)
        files = {key: directory / f"{key}-{chance.getrandbits(64):x}" for key in ("gate", "started")}
        given: dict[str, object] = {}
        if name.startswith("wait"):
            given = {**files}
        elif name.startswith("deaf"):
            given = {"started": files["started"]}
        elif name == "kill-itself":
            given = {"number": chance.choice([9, 11, 15])}  # the last one does nothing, and it hangs
        limit_s = chance.choice([None, 0.05, 0.2]) if name.startswith(("wait", "deaf")) else None
        yield job(name, args(**given), timeout_s=limit_s)


class Storm:
    """Keeps a worker busy, and a list of the results that it owes."""

    def __init__(self, child: Peer, pool: WorkerProcess, chance: random.Random, directory: Path) -> None:
        self._child = child
        self._pool = pool
        self._chance = chance
        self._jobs = jobs(chance, directory)
        self.open: dict[bytes, list[Any]] = {}
        self.ended: set[bytes] = set()
        self._reports = 0

    def assign(self) -> None:
        new = [next(self._jobs) for _ in range(self._chance.randint(1, 8))]
        self.open |= {one[0]: one for one in new}
        self._child.assign(new)

    def stop(self, likely: float) -> None:
        for one in self._chance.sample(list(self.open.values()), min(3, len(self.open))):
            if self._chance.random() < likely:
                self._child.send("stop", None, {"jobs": [[*pair(one), self._chance.choice(REASONS)]]})

    def kill_zygote(self) -> None:
        (host,) = self._pool.children()
        for zygote in host.children():
            zygote.kill()

    def take_results(self) -> None:
        while self._child.count("report") > self._reports:
            self._reports += 1
            for result in self._child.take("report").body["results"]:
                assert result[0] not in self.ended, "a second result"
                self.ended.add(result[0])
                del self.open[result[0]]


@pytest.mark.parametrize("backend", ["asyncio", "trio"] if WHOLE else ["asyncio"])
def test_each_job_has_one_result(backend: str, tmp_path: Path) -> None:
    """At any moment, with any fate of cells and zygotes; and at the end nothing of them is left."""
    chance = random.Random(3)  # what is done; when it hits is chance all the same
    options = ("--concurrency", "12", "--backend", backend)
    with (
        FakeServer(heartbeat_s=0.3, lease_s=0.9) as server,
        worker(server, *options, app=APP, env={"PULSE_OBEY_S": "0.2"}) as pool,
    ):
        storm = Storm(server.wait_child(), pool, chance, tmp_path)
        over_s, kills_s = time.monotonic() + STORM_S, [time.monotonic() + STORM_S * part for part in (0.4, 0.8)]
        while (now_s := time.monotonic()) < over_s:
            if len(storm.open) < 30:
                storm.assign()
            storm.stop(0.1)
            if kills_s and now_s > kills_s[0]:
                kills_s.pop(0)
                storm.kill_zygote()
            storm.take_results()

        def is_calm() -> bool:
            storm.stop(0.5)
            storm.take_results()
            return not storm.open

        until(is_calm, f"the end of {[one[2] for one in storm.open.values()]}")
        (host,) = pool.children()
        until(lambda: not [cell for zygote in host.children() for cell in zygote.children()], "the end of all cells")
        assert all(process.status() != psutil.STATUS_ZOMBIE for process in host.children(recursive=True))
        events = {line.split('"event": "')[1].split('"')[0] for line in pool.stderr.splitlines()}
        assert events <= {
            "pool_started", "connected_to_server", "zygote_ready", "zygote_died", "cell_killed", "handler_failed",
            "job_failed",
        }  # fmt: skip
