"""Jobs that tell of dead letters and of crashes, in a whole system."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.servers.postgres import Postgres
from tests.support.systems.system_kit import END_S, SHORT_LEASE, Whole, place
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system, pytest.mark.rest]

WARN = "on_dead_letter:tests.support.apps.event_app.warn"
NOTE = "on_crash:tests.support.apps.event_app.note"


@pytest.fixture(scope="module")
def whole(newest_server: Postgres) -> Iterator[Whole]:
    with newest_server.database() as dsn, place(dsn, **SHORT_LEASE) as made:
        made.start()
        made.pool("--processes", "1", app="tests.support.apps.event_app:app")
        yield made


def told(whole: Whole, name: str) -> list[str]:
    rows = whole.rows("SELECT result #>> '{}' AS said FROM pulse.jobs WHERE name = $1 AND status = 'COMPLETED'", name)
    return sorted(row["said"] for row in rows)


def test_a_job_tells_of_each_end(whole: Whole) -> None:
    """Also where no process is left to call a function; such a job is tried again like any other."""
    jobs = whole.jobs()
    refused = jobs.submit("charge", {"way": "discard"})
    jobs.wait(refused, "DEAD_LETTERED")
    gone = jobs.submit("charge", {"way": "die"})
    jobs.wait(gone, "DEAD_LETTERED")
    until(lambda: len(told(whole, WARN)) == 2 and len(told(whole, NOTE)) == 2, "what is told", END_S)
    died = "worker process died: SIGKILL"
    assert told(whole, NOTE) == [f"charge {attempt} {died}" for attempt in (1, 2)]
    assert set(told(whole, WARN)) == {f"charge {gone} 2 crashed {died}", f"charge {refused} 1 discarded no account"}
    assert {row["name"] for row in whole.rows("SELECT DISTINCT name FROM pulse.jobs")} == {"charge", WARN, NOTE}
