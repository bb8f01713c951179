"""A database that has gone back: no attempt is handed out twice, and the system says so and goes on."""

from __future__ import annotations

import json
import time

import pytest

from tests.support.systems.epoch_kit import (
    FLOOR,
    Load,
    ask,
    held_jobs,
    is_sound,
    more,
    replicated,
    restorable,
    runs_again,
    twice,
)
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.patient]


@pytest.mark.rest
def test_a_job_that_was_finished_is_told() -> None:
    """A job that runs in the backup, and ended since, runs again above the floor, and is named."""
    with restorable() as (whole, backups, sql):
        whole.pool()
        (job,) = held_jobs(whole)
        backups.take()
        whole.gate("held").touch()
        assert whole.jobs().wait(job).attempts == 1
        until(lambda: sql.value("SELECT seen_at FROM pulse.witnesses") > whole.jobs().get(job).completed_at, "a tick")  # type: ignore[operator]
        backups.restore()
        whole.wait_entry(job, attempt=FLOOR + 1)
        (line,) = whole.log("database_went_back")
        assert (line["reopened"], line["jobs"]) == (1, [str(job)])
        (epoch,) = sql.rows("SELECT reopened, detail FROM pulse.epochs WHERE epoch = 2")
        assert (epoch["reopened"], json.loads(epoch["detail"])["reopened"]) == (1, [str(job)])
        assert twice(whole) == []


@pytest.mark.rest
def test_a_restore_while_the_supervisor_does_not_run() -> None:
    """What it remembers beside the database is enough; nobody else begins what its workers run."""
    with restorable() as (whole, backups, sql):
        whole.pool("--processes", "2", "--concurrency", "5")
        with Load(whole):
            more(whole, 20)
            backups.take()
            more(whole, 50)
            late = held_jobs(whole, 2)
            whole.stop()
            backups.restore()
            whole.start()
            runs_again(whole, time.monotonic())
            more(whole, 50)
            whole.gate("held").touch()
        is_sound(whole)
        assert sql.value("SELECT max(attempts_floor) FROM pulse.epochs") == FLOOR
        for job in late:  # submitted in the time that is lost
            assert sql.value("SELECT count(*) FROM pulse.jobs WHERE id = $1", job) == 0


@pytest.mark.rest
def test_a_failover_with_a_gap_and_the_old_primary_back() -> None:
    """The gap begins an epoch; the old primary, which comes back and takes writes, is refused and named."""
    with replicated() as (whole, pair):
        whole.pool("--processes", "2", "--concurrency", "5")
        with Load(whole):
            more(whole, 50)
            ask(pair.standby, "ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")
            until(lambda: not pair.streams(), "the standby is cut off")
            more(whole, 60)
            runs_again(whole, pair.promote())
            assert ask(pair.standby, "SELECT max(epoch) FROM pulse.epochs") == 2
            pair.primary.up()
            before = ask(pair.primary, "SELECT count(*) FROM pulse.jobs")
            ask(
                pair.standby,
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE 'pulse %'",
            )
            more(whole, 100)
            assert ask(pair.primary, "SELECT count(*) FROM pulse.jobs") == before
            said = whole.command("ctl", "status").stdout
        assert "is on timeline 1, and this host has seen timeline 2 of it" in said
        told = json.loads(whole.command("doctor", "--json", "--dsn", pair.primary.dsn).stdout)
        (found,) = [one for one in told["checks"] if one["name"] == "timeline"]
        assert found["state"] == "wrong"
        is_sound(whole)


@pytest.mark.rest
def test_a_failover_without_a_gap() -> None:
    """A synchronous one loses nothing: handlers go on, and no epoch begins."""
    with replicated() as (whole, pair):
        ask(pair.primary, "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
        whole.pool("--processes", "2", "--concurrency", "5")
        with Load(whole):
            more(whole, 30)
            held = held_jobs(whole, 3)
            runs_again(whole, pair.promote())
            whole.gate("held").touch()
            for job in held:
                assert whole.jobs().wait(job).attempts == 1
        is_sound(whole)
        assert ask(pair.standby, "SELECT max(epoch) FROM pulse.epochs") == 1
        assert whole.log("database_went_back") == []
