"""``python -m bench.adapter`` as the public harness runs it: its input, its output, its end."""

from __future__ import annotations

import asyncio
import json
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import pytest

from bench.adapter import histogram
from bench.adapter.settings import SettingsError, read
from tests.support.servers.postgres import Postgres
from tests.support.systems.system_kit import ROOT, clean_environment

if TYPE_CHECKING:
    from asyncpg import Connection

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system, pytest.mark.rest]

SAMPLE_S: Final = 1
TICKS: Final = 3
DEADLINE_S: Final = 60.0
END_S: Final = 5.0  # what the contract gives it after SIGTERM
RATE: Final = 200
TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
MANIFEST: Final = json.loads((ROOT / "bench/adapter/adapter.json").read_text("utf-8"))
REQUIRED: Final = {"claim_p50_ms", "claim_p95_ms", "claim_p99_ms", "enqueue_rate", "completion_rate", "queue_depth"}
WINDOWS: Final = {"claim_p50_ms": 30, "claim_p95_ms": 30, "claim_p99_ms": 30, "queue_depth": 0}

Record = Mapping[str, Any]


class Adapter:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def record(self) -> Record:
        line = self._lines.get(timeout=DEADLINE_S)
        assert line is not None, f"it ended with {self.process.wait()}"
        found: Record = json.loads(line)
        return found

    def ticks(self) -> Iterator[Mapping[str, Record]]:
        """The records of each tick, by metric, from the first tick that saw jobs end."""
        by_time: defaultdict[str, dict[str, Record]] = defaultdict(dict)
        while True:
            record = self.record()
            tick = by_time[record["t"]]
            assert record["metric"] not in tick
            tick[record["metric"]] = record
            if tick.keys() >= REQUIRED and tick["completion_rate"]["value"] > 0:
                yield by_time.pop(record["t"])

    def tell(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(END_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._thread.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@contextmanager
def adapter(dsn: str, **more: str) -> Iterator[Adapter]:
    asked = {
        "DATABASE_URL": dsn, "SCENARIO": "long_horizon", "PRODUCER_MODE": "fixed", "PRODUCER_RATE": str(RATE),
        "WORKER_COUNT": "8", "JOB_WORK_MS": "1", "SAMPLE_EVERY_S": str(SAMPLE_S),
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.adapter"], cwd=ROOT, env={**clean_environment(), **asked, **more},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    made = Adapter(process)
    try:
        yield made
    finally:
        made.close()


def test_it_speaks_as_the_contract_says(newest_server: Postgres) -> None:
    """A descriptor that covers the manifest, then every metric at every tick; SIGTERM ends it with 0 in time."""
    with newest_server.database() as dsn, adapter(dsn) as running:
        descriptor = running.record()
        assert (descriptor["kind"], descriptor["system"]) == ("descriptor", MANIFEST["system"])
        assert set(descriptor["event_tables"]) >= set(MANIFEST["event_tables"])
        assert set(descriptor["extensions"]) >= set(MANIFEST["extensions"])
        assert descriptor["version"]
        assert int(descriptor["schema_version"]) > 0
        assert descriptor["db_name"] in dsn
        assert TIME.fullmatch(descriptor["started_at"])
        seen = running.ticks()
        ticks = [next(seen) for _ in range(TICKS)]
        for tick in ticks:
            check_form(tick)
            values = [tick[f"claim_p{part}_ms"]["value"] for part in (50, 95, 99)]
            assert 0 < values[0] <= values[1] <= values[2]
        assert ticks[-1]["enqueue_rate"]["value"] == pytest.approx(RATE, rel=0.5)
        assert running.end() == 0


def check_form(tick: Mapping[str, Record]) -> None:
    for metric, record in tick.items():
        assert (record["system"], record["kind"]) == (MANIFEST["system"], "adapter")
        assert (record["subject_kind"], record["subject"]) == ("adapter", "")
        assert isinstance(record["value"], float)
        if metric in WINDOWS:
            assert record["window_s"] == WINDOWS[metric]
        elif metric in REQUIRED:
            assert 0 < record["window_s"] <= SAMPLE_S
        assert TIME.fullmatch(record["t"])
        assert datetime.fromisoformat(record["t"]).timestamp() % SAMPLE_S == 0


def test_a_replica_keeps_the_time_of_the_harness(newest_server: Postgres) -> None:
    """
    With ``PRODUCER_PACING=harness`` exactly the jobs of the ENQUEUE lines are submitted.

    A replica that is not the first one leaves out figures of the whole, and says which one it is.
    """
    more = {"PRODUCER_PACING": "harness", "BENCH_INSTANCE_ID": "1"}
    with newest_server.database() as dsn, adapter(dsn, **more) as running:
        first = running.record()
        assert (first["kind"], first["instance_id"]) == ("descriptor", 1)
        running.tell("ENQUEUE 30\nnonsense\nENQUEUE -5\nENQUEUE 12")
        metrics: set[str] = set()
        deadline_s = time.monotonic() + DEADLINE_S
        while asyncio.run(completed(dsn)) < 42:
            assert time.monotonic() < deadline_s
            metrics.add(running.record()["metric"])
        metrics |= {running.record()["metric"] for _ in range(2 * len(REQUIRED))}
        assert metrics == REQUIRED - {"queue_depth"}
        assert running.end() == 0
        assert asyncio.run(completed(dsn)) == 42


async def completed(dsn: str) -> int:
    connection: Connection[asyncpg.Record] = await asyncpg.connect(dsn)
    found: int = await connection.fetchval("SELECT count(*) FROM pulse.jobs WHERE status = 'COMPLETED'")
    await connection.close()
    return found


def test_a_depth_can_be_asked_for(newest_server: Postgres) -> None:
    """With ``PRODUCER_MODE=depth-target`` the producer fills the queue that the workers empty."""
    more = {"PRODUCER_MODE": "depth-target", "TARGET_DEPTH": "50", "WORKER_COUNT": "1", "JOB_WORK_MS": "20"}
    with newest_server.database() as dsn, adapter(dsn, **more) as running:
        assert running.record()["kind"] == "descriptor"
        deadline_s = time.monotonic() + DEADLINE_S
        while (depth := next(running.ticks())["queue_depth"]["value"]) < 25:
            assert time.monotonic() < deadline_s
        assert depth <= 60  # what was submitted since the last look is not submitted again
        assert running.end() == 0


@pytest.mark.parametrize(
    ("key", "value"),
    [("SCENARIO", "chaos"), ("PRODUCER_MODE", "random"), ("PRODUCER_RATE", "many"), ("DATABASE_URL", "")],
)
def test_what_it_cannot_do_is_refused(key: str, value: str) -> None:
    """The error names the setting and its value."""
    with pytest.raises(SettingsError, match=key):
        read({"DATABASE_URL": "postgres://u@h/d", key: value})


@pytest.mark.parametrize("value_us", [0, 1, 999, 2047, 2048, 2049, 123_456, 9_876_543_210])
def test_a_latency_keeps_three_figures(value_us: int) -> None:
    assert histogram.value_of(histogram.slot_of(value_us)) == pytest.approx(value_us, rel=1e-3)


def test_slots_are_as_many_as_the_file_has() -> None:
    assert histogram.slot_of(1 << 60) == histogram.SLOTS - 1


def test_percentiles_are_of_the_window() -> None:
    before = [0] * histogram.WIDTH
    before[1 + histogram.slot_of(5_000_000)] = 1000
    after = list(before)
    for value_us in range(1000, 101_000, 1000):
        after[1 + histogram.slot_of(value_us)] += 1
    assert list(histogram.percentiles_ms(before, after, [0.5, 0.99])) == pytest.approx([50.0, 99.0], rel=1e-3)
    assert list(histogram.percentiles_ms(after, after, [0.5])) == [0.0]
