"""Starting, stopping and restarting as one does every week: nothing of it is a warning."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from pulse.cli.server import ServerHandle
from pulse.cli.system.status import ask_both
from pulse.errors import PulseError
from pulse.ops.doctor.finding import Finding
from pulse.ops.doctor.running import findings
from pulse.protocol.answers import StatusAnswer, read
from tests.support.servers.postgres import Postgres
from tests.support.systems.system_kit import APP, Whole, place
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system]


@pytest.fixture
def whole(newest_server: Postgres) -> Iterator[Whole]:
    with newest_server.database() as dsn, place(dsn, PULSE_LOG_LEVEL="info", PULSE_LOG_FORMAT="json") as whole:
        yield whole


@pytest.mark.rest
def test_an_ordinary_start_is_no_incident(whole: Whole) -> None:
    """From the supervisor's first answer until the workers are there, while jobs have been due for long."""
    whole.start()
    job = whole.jobs().submit("mark")
    assert whole.stop() == 0
    whole.rows("UPDATE pulse.jobs SET next_run_at = next_run_at - interval '1 h'")
    seen: list[Finding] = []

    def look() -> bool:
        answers = ask_both(ServerHandle(whole.path, 2.0))
        if isinstance(answers.supervisor, PulseError):
            return False  # it is not there yet
        status = read(StatusAnswer, answers.merged)
        seen.extend(one for one in findings(status, answers.silent) if one.check != "settings")  # the test's PostgreSQL
        return bool(status.workers)

    whole.spawn("--app", APP)
    until(look, "a worker is there")
    assert seen == []
    whole.jobs().wait(job)  # else its pool keeps it for the next server, for as long as a drain may take


@pytest.mark.rest
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
