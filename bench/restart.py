"""The scene `restart`: how soon a server works when millions of jobs wait for it."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import datetime
from pathlib import Path
from typing import Final

from bench.drain import install
from bench.recovery_scene import BenchError, until
from bench.results import Sample
from bench.scale import DUE, put
from bench.stage import APP, DEADLINE_S, LOOK_S, Sql, Stage
from pulse.ops.demo.server import running_server

# The jobs have other args than their handler, so that each attempt fails and is on record: in a table that is small.
FIRST: Final = """
    SELECT extract(epoch FROM min(started_at))::float8 FROM pulse.attempts WHERE started_at > to_timestamp($1)"""
STARTS: Final = 3
CONCURRENCY: Final = 100


def restart(stage: Stage) -> list[Sample]:
    """From the start of the supervisor until it is ready; from then, and a worker, to the first claim."""
    rows, ready_ms, claim_ms = stage.size.restart_jobs, list[float](), list[float]()
    with stage.fresh() as dsn, Sql(dsn) as sql:
        asyncio.run(install(dsn))
        put(sql, DUE, rows, 1, 1)
        for number in range(STARTS):
            log, began_s = stage.directory / f"restart-{number}.log", time.time()
            with running_server(APP, {"PULSE_DSN": dsn}, processes=1, concurrency=CONCURRENCY, log=log):
                first_s = _first_s(sql, began_s)
            ready = _event(log, "supervisor_ready")
            ready_ms.append(float(str(ready["start_ms"])))
            claim_ms.append(1000 * (first_s - max(_at_s(ready), _at_s(_event(log, "worker_connected")))))
    return [
        Sample(f"supervisor ready, {rows:,} jobs wait", max(ready_ms), "ms"),
        Sample(f"first claim of {rows:,}, after it and a worker are ready", max(claim_ms), "ms"),
    ]


def _first_s(sql: Sql, began_s: float) -> float:
    """When the first job was started, by the database's clock (Unix seconds)."""
    until(lambda: sql.value(FIRST, began_s) is not None, "a job was started", DEADLINE_S, LOOK_S)
    return float(sql.value(FIRST, began_s))


def _event(log: Path, name: str) -> dict[str, object]:
    for line in log.read_text("utf-8").splitlines():
        if f'"{name}"' in line:
            found: dict[str, object] = json.loads(line)
            return found
    raise BenchError(f"the server has not logged {name}")


def _at_s(event: dict[str, object]) -> float:
    return datetime.fromisoformat(str(event["timestamp"])).timestamp()
