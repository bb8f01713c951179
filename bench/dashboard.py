"""
`python -m bench.dashboard`: how soon each page of the dashboard answers with a million jobs in the table.

A system of its own with real rows: most of them completed, some waiting, some dead with errors of many kinds. `pulse
ui` is a process as a user starts it; pages are asked for over HTTP, one after the other, each so long after it was
asked for the last time that no answer of then is shared.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import asyncpg

from bench.load import Figure, spread
from pulse.ops.demo.server import running_server
from pulse.system.directories import CLIENT_SOCKET
from pulse.ui.data.queries import SHARED_S

APP: Final = "bench.recovery_app:app"
WAIT_S: Final = 20.0
POLL_S: Final = 0.05
OK: Final = 200
FILL: Final = """
    INSERT INTO pulse.jobs (id, topic, name, args, max_attempts, status, attempts, submitted_at, next_run_at,
                            started_at, completed_at, last_error)
    SELECT pulse.uuid7(), 'topic-' || n % 20, 'name-' || n % 50, jsonb_build_object('path', 'images/' || n, 'width', n),
           5, status, CASE status WHEN 'PENDING' THEN 0 ELSE 1 END, now(), now() + interval '1 day',
           CASE status WHEN 'PENDING' THEN NULL ELSE now() END, CASE status WHEN 'PENDING' THEN NULL ELSE now() END,
           CASE status WHEN 'DEAD_LETTERED' THEN 'OSError: cannot open images/' || n || ': no such file' END
    FROM (SELECT n, (CASE WHEN n % 100 < 2 THEN 'DEAD_LETTERED' WHEN n % 100 < 12 THEN 'PENDING' ELSE 'COMPLETED' END
                    )::pulse.job_status AS status FROM generate_series($1::int, $2::int) AS n) AS made
    """
BATCH: Final = 50_000
PAGES: Final = (
    "/", "/jobs", "/jobs?status=DEAD_LETTERED&topic=topic-1", "/jobs?status=PENDING&oldest=1", "/jobs?q=no+such+error",
    "/jobs?name=absent", "/jobs?limit=1000", "/dead", "/dead?look=10000", "/topics", "/topics/view?topic=topic-1",
    "/schedules", "/workers", "/actors", "/gate", "/audit", "/jobs/{id}",
)  # fmt: skip


@contextmanager
def served(runtime_dir: Path) -> Iterator[tuple[str, str]]:
    """A dashboard: its host and port, and the cookie of a session."""
    env = {**os.environ, "PULSE_RUNTIME_DIR": str(runtime_dir), "PULSE_AUTH_USERS": "bench:bench"}
    with tempfile.TemporaryFile() as said:
        command = [sys.executable, "-m", "pulse.cli.main", "ui", "--listen", "127.0.0.1:0"]
        process = subprocess.Popen(command, env=env, stdout=said, stderr=said)
        try:
            found = None
            give_up_s = time.monotonic() + WAIT_S
            while found is None and process.poll() is None and time.monotonic() < give_up_s:
                time.sleep(POLL_S)
                said.seek(0)
                found = re.search(rb"listens on http://(\S+)", said.read())
            assert found is not None, "pulse ui does not listen"
            netloc = found[1].decode()
            headers = {"content-type": "application/x-www-form-urlencoded"}
            _, _, cookie = ask(netloc, "POST", "/login", headers, "user=bench&password=bench")
            yield netloc, cookie
        finally:
            process.terminate()
            process.wait(WAIT_S)


def runtime_dir(dsn: str) -> Path:
    """Where the sockets of a system are whose PostgreSQL listens in its state directory."""
    found = re.search(r"host=(\S+?)(?:&|\s|$)", unquote(dsn))
    assert found is not None, dsn
    return next(parent / "run" for parent in Path(found[1]).parents if (parent / "run" / CLIENT_SOCKET).exists())


def ask(
    netloc: str, method: str, path: str, headers: dict[str, str], body: str | None = None
) -> tuple[float, int, str]:
    """One request: how long it took, milliseconds, its code, and the cookie that it set."""
    start_s = time.perf_counter()
    with contextlib.closing(http.client.HTTPConnection(netloc, timeout=WAIT_S)) as connection:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        answer.read()
        cookie = (answer.getheader("set-cookie") or "").partition(";")[0]
        return 1000 * (time.perf_counter() - start_s), answer.status, cookie


async def fill(dsn: str, jobs: int) -> str:
    """Make *jobs* rows; the id of one of them."""
    connection = await asyncpg.connect(dsn)
    for first in range(0, jobs, BATCH):
        await connection.execute(FILL, first, min(first + BATCH, jobs) - 1)
    await connection.execute("VACUUM ANALYZE pulse.jobs")
    found = await connection.fetchval("SELECT id FROM pulse.jobs LIMIT 1")
    await connection.close()
    return str(found)


def measured(jobs: int, rounds: int) -> Iterator[Figure]:
    """The median and the longest time of each page."""
    with running_server(APP, {}, processes=2) as client:
        database = client.status()["database"]
        assert isinstance(database, dict)
        dsn = str(database["dsn"])
        one = asyncio.run(fill(dsn, jobs))
        with served(runtime_dir(dsn)) as (netloc, cookie):
            for name, question in (("status", client.status), ("stats", client.stats)):
                start_s = time.perf_counter()
                question()
                yield Figure(f"the request {name}, asked directly", 1000 * (time.perf_counter() - start_s), "ms")
            yield Figure("the first page after the start", ask(netloc, "GET", "/", {"cookie": cookie})[0], "ms")
            times: dict[str, list[float]] = {page: [] for page in PAGES}
            for _ in range(rounds):
                time.sleep(SHARED_S)
                for page in PAGES:
                    took_ms, code, _ = ask(netloc, "GET", page.format(id=one), {"cookie": cookie})
                    assert code == OK, f"{page}: {code}"
                    times[page].append(took_ms)
            yield from spread(times)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.dashboard", description="pages of the dashboard")
    parser.add_argument("--jobs", type=int, default=1_000_000, help="rows in the table")
    parser.add_argument("--rounds", type=int, default=5, help="how often each page is asked for")
    options = parser.parse_args()
    for figure in measured(options.jobs, options.rounds):
        print(f"{figure.name:<48} {figure.value:8.1f} {figure.unit}", flush=True)


if __name__ == "__main__":
    main()
