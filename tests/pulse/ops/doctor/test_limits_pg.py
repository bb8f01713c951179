"""What `pulse doctor` finds of limits and groups: on a real PostgreSQL, and at the edge of each limit."""

from __future__ import annotations

from typing import Any, Final

import pytest

from pulse.ops.doctor import limits
from pulse.ops.doctor.finding import State
from tests.support.admin.doctor_kit import Patient, said
from tests.support.store.helpers import WORKER

SET: Final = "SELECT pulse.set_limit($1, $2, $3::text::jsonb)"
NAMED: Final = "INSERT INTO pulse.topics (topic, limit_name) VALUES ($1, $2)"
DUE: Final = {
    "topic": "mail", "due_s": 3600.0, "is_paused": False, "limit": "api", "concurrency": 2, "running": 2,
}  # fmt: skip


async def waits(patient: Patient, topic: str, group: str | None = None, *, due_s: int = 7200, **columns: object) -> str:
    """A job that is due for so long, or what *columns* say."""
    row: dict[str, object] = {"topic": topic, "group_key": group, "name": "n", "max_attempts": 5, **columns}
    places = ", ".join(f"${number}" for number in range(2, len(row) + 2))
    return str(
        await patient.sql.fetchval(
            f"INSERT INTO pulse.jobs (next_run_at, id, {', '.join(row)})"
            f" VALUES (now() - $1::int * interval '1 s', gen_random_uuid(), {places}) RETURNING id::text",
            due_s, *row.values(),
        )
    )  # fmt: skip


async def is_now(patient: Patient, job: str, status: str, counted_by: str | None = None) -> None:
    ended = status == "DEAD_LETTERED"
    await patient.sql.execute(
        "UPDATE pulse.jobs SET status = $2::text::pulse.job_status, attempts = 1, started_at = now(), counted_by = $3,"
        " locked_by = $4, lease_until = CASE WHEN $4::text IS NOT NULL THEN now() + interval '1 h' END,"
        " completed_at = CASE WHEN $5 THEN now() END, last_error = CASE WHEN $5 THEN 'e' END WHERE id = $1::text::uuid",
        job, status, counted_by, None if ended else WORKER, ended,
    )  # fmt: skip


@pytest.mark.parametrize(("changed", "state"), [
    ({}, State.WARNING), ({"due_s": 3599.9}, State.OK), ({"running": 1}, State.OK), ({"is_paused": True}, State.OK),
    ({"concurrency": None, "running": None}, State.OK), ({"concurrency": 0, "running": 0}, State.WARNING),
], ids=str)  # fmt: skip
def test_a_limit_that_is_full_for_an_hour(changed: dict[str, Any], state: State) -> None:
    found = limits.full_limits([{**DUE, **changed}], 60.0)
    assert found.state is state
    assert state is State.OK or "has been due for 60 min" in found.text


def test_groups_that_wait() -> None:
    """One that is halted is no late one, too; what to look at depends on what was found."""
    late = {"topic": "mail", "group_key": "g", "limit": None, "job": "7", "due_s": 3600.0, "dead_letter": None}
    halted = {**late, "dead_letter": "8"}
    assert limits.groups([{**late, "due_s": 3599.9}], 60.0).state is State.OK
    found = limits.groups([late], 60.0)
    assert said(found) == "group 'g' of topic 'mail': its first job has been due for 60 min"
    assert found.advice == ("pulse ctl jobs why 7",)
    found = limits.groups([halted], 60.0)
    assert (said(found), len(found.advice)) == ("group 'g' of topic 'mail' is halted by a dead letter, 8", 1)


async def test_topics_and_their_limits(patient: Patient) -> None:
    """Of a topic whose jobs have groups the first jobs of these are looked at; a job that is put off is not due."""
    for topic, limit in (("mail", "api"), ("web", "api")):
        await patient.sql.execute(NAMED, topic, limit)
    await patient.sql.execute(SET, "api", None, '{"concurrency": 1}')
    for group, due_s in (("a", 100), ("b", 5000), ("c", -100)):
        await waits(patient, "mail", group, due_s=due_s)
    await waits(patient, "free", "a", due_s=10)
    put_off = await waits(patient, "late", "a")
    await patient.sql.execute(
        "UPDATE pulse.jobs SET run_after = now() + interval '1 h' WHERE id = $1::text::uuid", put_off
    )
    assert [row["limit"] for row in await patient.rows("queue_topics")] == ["api", None]
    await is_now(patient, await waits(patient, "web"), "RUNNING", "api")
    rows = await patient.rows("queue_topics")
    assert [(row["topic"], round(row["due_s"], -2), row["running"]) for row in rows] == [
        ("mail", 5000, 1), ("free", 0, None),
    ]  # fmt: skip
    found = (await patient.found(served={"mail", "free"}))["full-limits"]
    assert said(found) == ("limit 'api' is full, 1 of 1 run, and the first job of topic 'mail' has been due for 83 min")
    assert "pulse ctl limits set api" in found.advice[0]


async def test_a_topic_with_very_many_groups_hides_no_other(patient: Patient) -> None:
    await patient.sql.execute(
        "INSERT INTO pulse.jobs (id, topic, name, group_key, max_attempts)"
        " SELECT gen_random_uuid(), 'a', 'n', 'g' || n, 5 FROM generate_series(1, 300) AS n"
    )
    await waits(patient, "b", "g")
    await waits(patient, "b", "h", due_s=9000)
    assert [(row["topic"], round(row["due_s"], -3)) for row in await patient.rows("queue_topics")] == [
        ("b", 9000), ("a", 0),
    ]  # fmt: skip


async def test_a_sequence_that_is_halted(patient: Patient) -> None:
    """Only where a job waits behind the dead letter, and the policy is to halt; by its own limit or a named one."""
    for topic, policy in (("own", "halt"), ("api", "halt"), ("goes-on", "continue"), ("left", "halt")):
        await patient.sql.execute(SET, topic, None, f'{{"sequence": "{policy}"}}')
    for topic, limit in (("named", "api"), ("left", "none")):
        await patient.sql.execute(NAMED, topic, limit)
    dead: dict[str, str] = {}
    for topic in ("own", "named", "goes-on", "left"):
        for group in ("a", "b"):
            dead[topic] = await waits(patient, topic, group)
            await is_now(patient, dead[topic], "DEAD_LETTERED")
        await waits(patient, topic, "b", due_s=60)
        await waits(patient, topic, "c", due_s=60)
    rows = [row for row in await patient.rows("queue_groups") if row["dead_letter"] is not None]
    assert {(row["topic"], row["group_key"], row["limit"], row["dead_letter"]) for row in rows} == {
        ("own", "b", "own", dead["own"]), ("named", "b", "api", dead["named"]),
    }  # fmt: skip
    found = (await patient.found())["groups"]
    assert found.state is State.WARNING
    assert f"group 'b' of topic 'own' is halted by a dead letter, {dead['own']}" in said(found)
    assert len(found.details) == 1
    assert found.advice[0].startswith(f"pulse ctl jobs get {rows[0]['dead_letter']}; then pulse ctl jobs retry ")


async def test_the_group_that_waits_longest(patient: Patient) -> None:
    """Not one that an operator has paused, by itself or with its topic, and none that waits for less than an hour."""
    await patient.sql.execute(SET, "mail", "off", '{"concurrency": 0}')
    await patient.sql.execute(
        "INSERT INTO pulse.dispatch_control (topic, paused, paused_at) VALUES ('shut', true, now())"
    )
    longest = await waits(patient, "mail", "old")
    for topic, group, due_s in (("mail", "off", 9000), ("shut", "x", 9000), ("web", "y", 3500), ("web", "z", -60)):
        await waits(patient, topic, group, due_s=due_s)
    rows = await patient.rows("queue_groups")
    assert [(row["topic"], row["group_key"], row["limit"]) for row in rows] == [
        ("mail", "old", "mail"), ("web", "y", None),
    ]  # fmt: skip
    found = (await patient.found())["groups"]
    assert said(found) == "group 'old' of topic 'mail', under limit 'mail': its first job has been due for 2 h"
    assert found.advice == (f"pulse ctl jobs why {longest}",)


async def test_limits_that_limit_nothing(patient: Patient) -> None:
    """A topic goes by a limit that it names or that has its name: one that is configured, handled, or has jobs."""
    for name in ("unused", "named", "topic", "handled", "default", "waits", "grouped", "runs", "left"):
        await patient.sql.execute(SET, name, None, '{"concurrency": 9}')
    for topic, limit in (("x", "named"), ("topic", None), ("left", "else")):
        await patient.sql.execute(NAMED, topic, limit)
    await patient.sql.execute("INSERT INTO pulse.handlers (name, topic) VALUES ('a', 'handled'), ('b', NULL)")
    for topic, group in (("waits", None), ("grouped", "g"), ("left", None)):
        await waits(patient, topic, group)
    await is_now(patient, await waits(patient, "runs"), "RUNNING", "runs")
    found = (await patient.found())["unused-limits"]
    assert (found.state, said(found)) == (
        State.WARNING, "no topic goes by limit 'left'\nno topic goes by limit 'unused'",
    )  # fmt: skip


async def test_a_sequence_of_jobs_without_groups(patient: Patient) -> None:
    for topic, limit in (("none", "api"), ("some", "api"), ("plain", None)):
        await patient.sql.execute(NAMED, topic, limit)
    await patient.sql.execute(SET, "api", None, '{"sequence": "continue"}')
    await patient.sql.execute(SET, "plain", None, '{"concurrency": 3}')
    for topic, group in (("some", None), ("some", "g"), ("plain", None)):
        await waits(patient, topic, group)
    assert (await patient.found())["unused-limits"].text == "limits that topics go by: 2"
    await waits(patient, "none")
    assert said((await patient.found())["unused-limits"]) == (
        "limit 'api' asks for sequences, but the jobs of topic 'none' have no group_key"
    )
