"""What a running system deletes by itself."""

from __future__ import annotations

import pytest

from tests.support.servers.postgres import Postgres
from tests.support.systems.system_kit import APP, Whole, place
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system]


def is_gone(whole: Whole, job: object) -> bool:
    return not whole.rows("SELECT 1 FROM pulse.jobs WHERE id = $1", job)


def test_old_jobs_go_and_dead_letters_stay(server: Postgres) -> None:
    with server.database() as dsn, place(dsn, PULSE_RETENTION_S="0.5") as whole:
        whole.start()
        whole.pool("--processes", "1", app=APP)
        jobs = whole.jobs()
        done, dead = jobs.submit("mark"), jobs.submit("discard")
        until(lambda: is_gone(whole, done), "the retention", 20)
        until(lambda: "jobs_forgotten" in whole.errors.read_text("utf-8"), "its line", 20)
        assert not is_gone(whole, dead)
