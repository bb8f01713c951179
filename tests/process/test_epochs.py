"""A database that has gone back: no attempt is handed out twice, and the system says so and goes on."""

from __future__ import annotations

import json

import pytest

from tests.process.epoch_kit import SPEED_S, Load, overlaps, restorable, starts, twice
from tests.process.system_kit import measured, until

pytestmark = [pytest.mark.process, pytest.mark.postgres]


def test_a_restore_of_a_base_backup_under_running_workers() -> None:
    """Nothing runs twice under one number, or twice at once; new jobs run within 3 s; it is told."""
    with restorable() as (whole, backups, sql):
        whole.pool("--processes", "2", "--concurrency", "5")
        jobs = whole.jobs()
        with Load(whole):
            until(lambda: len(starts(whole)) > 50, "the load runs")
            held = [jobs.submit("hold", {"gate": str(whole.gate("held"))}) for _ in range(3)]
            for job in held:
                whole.wait_entry(job)
            backups.take()
            done_before = len(starts(whole))
            until(lambda: len(starts(whole)) > done_before + 100, "there is more than the backup knows")
            late = jobs.submit("hold", {"gate": str(whole.gate("late"))})
            whole.wait_entry(late)
            back_s = backups.restore()
            first = until(lambda: [one for one in starts(whole) if one.at_s > back_s], "jobs run again")[0]
            assert measured("until a job runs", first.at_s - back_s) < SPEED_S
            for gate in ("held", "late"):
                whole.gate(gate).touch()
            for job in held:
                jobs.wait(job)
        assert twice(whole) == []
        assert overlaps(whole) == []
        (epoch,) = sql.rows("SELECT * FROM pulse.epochs WHERE epoch > 1")
        assert (epoch["epoch"], epoch["attempts_floor"]) == (2, 1000)
        assert epoch["reopened"] > 0
        (line,) = whole.log("database_went_back")
        assert line["reopened"] == epoch["reopened"]
        assert (
            sql.value(
                "SELECT count(*) FROM pulse.jobs WHERE attempts BETWEEN 1 AND 1000 AND id < $1", epoch["first_id"]
            )
            != 0
        )
        assert json.loads(epoch["detail"])["hosts"] == []
