"""No job dies unlogged: each dead letter is one line, of the process that saw the end, whatever the end was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from tests.support.servers.postgres import Postgres
from tests.support.systems.system_kit import END_S, SHORT_LEASE, Pool, Whole, place
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system]

FACTS = ("id", "name", "topic", "attempt", "outcome", "error")


@pytest.fixture(scope="module")
def whole(server: Postgres) -> Iterator[Whole]:
    with server.database() as dsn, place(dsn, **SHORT_LEASE) as whole:
        whole.start()
        yield whole


def lines_of(whole: Whole, pool: Pool) -> dict[str, list[tuple[object, ...]]]:
    """Every line about a dead letter, by job: whose log has it, then its facts."""
    found: dict[str, list[tuple[object, ...]]] = {}
    said: list[dict[str, Any]] = [json.loads(line) for line in pool.said.splitlines() if line.startswith("{")]
    told = [one for one in said if one.get("event") == "job_dead_lettered"]
    for where, entries in (("worker", told), ("server", whole.log("job_dead_lettered"))):
        for one in entries:
            assert one["level"] == "warning"
            found.setdefault(str(one["id"]), []).append((where, *(one[fact] for fact in FACTS[1:])))
    return found


@pytest.mark.rest
def test_each_dead_letter_is_logged_once(whole: Whole) -> None:
    pool, jobs = whole.pool("--processes", "1"), whole.jobs()
    expected: dict[UUID, tuple[object, ...]] = {
        jobs.submit("give-up", {"text": "no"}): ("worker", "give-up", "default", 1, "discarded", "ValueError: no"),
        jobs.submit("give-up", {"txet": "no"}): (
            "worker", "give-up", "default", 1, "discarded",
            "the handler does not take these args: argument 'text' is missing; it takes text",
        ),
        jobs.submit("discard"): ("worker", "discard", "default", 1, "discarded", "no such customer"),
        jobs.submit("retry-after", max_attempts=1): ("worker", "retry-after", "default", 1, "retry", "rate limited"),
        jobs.submit("fail", {"text": "twice"}, max_attempts=2): (
            "worker", "fail", "default", 2, "error", "ValueError: twice"
        ),
        jobs.submit("not-json", max_attempts=1): (
            "worker", "not-json", "default", 1, "error",
            "result is not JSON: Object of type object is not JSON serializable",
        ),
        jobs.submit("die-apart"): ("worker", "die-apart", "default", 1, "crashed", "worker process died: SIGKILL"),
        jobs.submit("return-text", {"size": 5_000_000}, max_attempts=1): (
            "server", "return-text", "default", 1, "error",
            "result is too large: 5000002 bytes; at most 4194304 are stored",
        ),
        jobs.submit("hold", {"gate": "never"}, timeout_s=0.3, max_attempts=1): (
            "worker", "hold", "default", 1, "timeout", "timed out after 0.3 s"
        ),
    }  # fmt: skip
    late = jobs.submit("mark", topic="nobody", expires_in_s=0.1)
    ((long,),) = whole.rows("SELECT pulse.submit('mark', jsonb_build_object('a', repeat('x', 9000000)))")
    for job in (*expected, late, UUID(str(long))):
        jobs.wait(job, "DEAD_LETTERED")
    old = "SELECT max(completed_at) < now() - interval '1 s' FROM pulse.jobs"  # of the last ones it might log nothing
    until(lambda: whole.rows(old)[0][0], "an end long ago", END_S)
    last = jobs.submit("die-once")  # alone: others would crash with it
    lapsed = jobs.submit("mark", topic="nobody", max_attempts=1)
    whole.rows(
        "UPDATE pulse.jobs SET status = 'RUNNING', attempts = 1, started_at = now(), locked_by = 'elsewhere/w', "
        "lease_until = now() WHERE id = $1",
        lapsed,
    )
    for job in (last, lapsed):
        jobs.wait(job, "DEAD_LETTERED")
    rows = whole.rows("SELECT split_part(last_error, E'\\n', 1) FROM pulse.jobs WHERE id = $1", late)
    expected |= {
        late: ("server", "mark", "nobody", 0, "expired", rows[0][0]),
        UUID(str(long)): (
            "server", "mark", "default", 1, "discarded",
            "args have 9000009 bytes as the database prints them; at most 8372224 can be sent",
        ),
        last: ("server", "die-once", "default", 1, "crashed", "worker process died: SIGKILL"),
        lapsed: ("server", "mark", "nobody", 1, "lease_expired", "worker lease expired"),
    }  # fmt: skip
    until(lambda: len(lines_of(whole, pool)) == len(expected), "a line for each", END_S)
    assert lines_of(whole, pool) == {str(job): [line] for job, line in expected.items()}
    failed = [json.loads(line) for line in pool.said.splitlines() if '"job_failed"' in line]
    assert [(one["level"], one["name"], one["attempt"], one["error"]) for one in failed] == [
        ("info", "fail", 1, "ValueError: twice")
    ]
