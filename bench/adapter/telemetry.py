"""The records on stdout: one descriptor, then the metrics at every tick of the wall clock."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.adapter.histogram import Counters, percentiles_ms, reading
from bench.adapter.producer import Depth, Producer
from bench.adapter.settings import Settings
from pulse.common.version import VERSION

MANIFEST: Final[Mapping[str, object]] = json.loads(Path(__file__).with_name("adapter.json").read_text("utf-8"))
WINDOW_S: Final = 30.0
PERCENTILES: Final = {"claim_p50_ms": 0.50, "claim_p95_ms": 0.95, "claim_p99_ms": 0.99}
OF_THE_WHOLE: Final = {"queue_depth", "producer_target_rate"}  # reported by replica 0 alone


@dataclass(frozen=True, slots=True)
class Reading:
    """All counters at a moment of the monotonic clock."""

    at_s: float
    enqueued: int
    calls: Counters


def descriptor(settings: Settings, schema_version: str) -> Mapping[str, object]:
    """The first record."""
    return {
        "kind": "descriptor",
        "system": MANIFEST["system"],
        "event_tables": MANIFEST["event_tables"],
        "event_indexes": MANIFEST["event_indexes"],
        "extensions": MANIFEST["extensions"],
        "version": VERSION,
        "schema_version": schema_version,
        "db_name": settings.db_name,
        "started_at": iso(time.time()),
        "instance_id": settings.instance,
    }


def emit(record: Mapping[str, object]) -> None:
    """One line, at once."""
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


def iso(at_s: float) -> str:
    """UTC with milliseconds, as the contract writes it."""
    moment = dt.datetime.fromtimestamp(at_s, dt.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Sampler:
    """
    Reports at every multiple of the period, so that the ticks of all systems fall together.

    Args:
        calls: The directory of what the handlers count.
    """

    def __init__(self, settings: Settings, producer: Producer, calls: Path, depth: Depth) -> None:
        self._settings, self._producer, self._calls, self._depth = settings, producer, calls, depth
        self._readings: deque[Reading] = deque(maxlen=1 + max(1, round(WINDOW_S / settings.sample_s)))

    async def run(self) -> None:
        """Until cancelled."""
        self._read()
        period_s = self._settings.sample_s
        tick_s = 0.0
        while True:
            tick_s = max(tick_s, time.time() // period_s * period_s) + period_s  # never the same, should it wake early
            await asyncio.sleep(max(0.0, tick_s - time.time()))
            self._read()
            for metric, value, window_s in self._metrics():
                if metric not in OF_THE_WHOLE or self._settings.observes:
                    emit(self._record(tick_s, metric, value, window_s))

    def _read(self) -> None:
        self._readings.append(Reading(time.monotonic(), self._producer.enqueued, reading(self._calls)))

    def _metrics(self) -> Iterator[tuple[str, float, float]]:
        oldest, before, now = self._readings[0], self._readings[-2], self._readings[-1]
        period_s = self._settings.sample_s
        values = percentiles_ms(oldest.calls, now.calls, list(PERCENTILES.values()))
        for metric, value in zip(PERCENTILES, values, strict=True):
            yield metric, value, WINDOW_S
        passed_s = now.at_s - before.at_s
        window_s = min(period_s, passed_s)  # the first one is shorter; the harness multiplies it with the rate
        yield "enqueue_rate", (now.enqueued - before.enqueued) / passed_s, window_s
        yield "completion_rate", (now.calls[0] - before.calls[0]) / passed_s, window_s
        yield "queue_depth", float(self._depth.seen), 0.0
        yield "producer_target_rate", self._producer.target_rate, 0.0

    def _record(self, tick_s: float, metric: str, value: float, window_s: float) -> Mapping[str, object]:
        return {
            "t": iso(tick_s),
            "system": MANIFEST["system"],
            "kind": "adapter",
            "subject_kind": "adapter",
            "subject": "",
            "metric": metric,
            "value": value,
            "window_s": window_s,
            "instance_id": self._settings.instance,
        }
