"""Starting, stopping and restarting as one does every week: nothing of it is a warning."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.servers.postgres import Postgres
from tests.support.systems.system_kit import Whole, place
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system]


@pytest.fixture
def whole(newest_server: Postgres) -> Iterator[Whole]:
    with newest_server.database() as dsn, place(dsn, PULSE_LOG_LEVEL="info", PULSE_LOG_FORMAT="json") as whole:
        yield whole


def test_an_ordinary_restart_logs_no_warning(whole: Whole) -> None:
    """The workers come first, then the server, which is restarted while a job runs; then its dispatcher, and they."""
    pool = whole.pool("--processes", "2", wait=False)
    until(lambda: "waiting_for_server" in pool.said, "they wait")
    whole.start()
    until(lambda: whole.is_connected(pool), "they are connected")
    jobs, gate = whole.jobs(), whole.gate("restart")
    held = jobs.submit("hold", {"gate": str(gate)})
    whole.wait_entry(held)
    assert whole.stop() == 0
    whole.start()
    until(lambda: whole.is_connected(pool), "they are connected again")
    gate.touch()
    assert jobs.wait(held).attempts == 1
    assert whole.command("ctl", "actors", "restart", "dispatcher").returncode == 0
    until(lambda: whole.is_connected(pool), "they are connected once more")
    assert pool.stop() == 0
    assert whole.stop() == 0
    lines = [json.loads(line) for line in (whole.errors.read_text("utf-8") + pool.said).splitlines()]
    assert [line for line in lines if line["level"] not in {"debug", "info"}] == []
