"""What `pulse doctor` finds of workflows: jobs that wait for a day, ends that no broker gets; on a real PostgreSQL."""

from __future__ import annotations

from typing import Any, Final

import pytest

from pulse.ops.doctor import queue
from pulse.ops.doctor.finding import State
from pulse.store.admin.doctor import QUESTIONS
from tests.support.admin.doctor_kit import Patient, said

DAY_S: Final = 86_400
ENDLESS_S: Final = 10**9  # how long a wait without a time limit puts a job off
END: Final = (
    "INSERT INTO pulse.outbox (job_id, ended_at, attempt, status, topic, name, taken_until) VALUES (gen_random_uuid(),"
    " now() - $2::int * interval '1 s', 1, 'COMPLETED', $1, 'n', now() - $3::int * interval '1 s')"
)
SUBMIT: Final = (
    "SELECT pulse.submit($1, topic => $2, after => $3::uuid[], group_key => $4, priority => $5, delay_s => $6)"
)


async def waits(
    patient: Patient, name: str, *parents: Any, topic: str = "t", group: str | None = None, priority: int = 0,
    age_s: int = DAY_S + 60, delay_s: float | None = None,
) -> Any:  # fmt: skip
    """A job that waits for *parents*, submitted so long ago."""
    job = await patient.sql.fetchval(SUBMIT, name, topic, list(parents) or None, group, priority, delay_s)
    ago = "$2::int * interval '1 s'"
    sql = f"UPDATE pulse.jobs SET submitted_at = submitted_at - {ago}, run_after = run_after - {ago} WHERE id = $1"
    await patient.sql.execute(sql, job, age_s)
    return job


async def put_off(patient: Patient, job: Any, signal: str | None, seconds: int, column: str = "next_run_at") -> Any:
    sql = f"UPDATE pulse.jobs SET awaited_signal = $2, {column} = now() + $3::int * interval '1 s' WHERE id = $1"
    await patient.sql.execute(sql, job, signal, seconds)
    return job


async def listed(patient: Patient) -> list[tuple[str, str | None, int]]:
    return [(row["name"], row["signal"], row["jobs"]) for row in await patient.rows("queue_waits")]


async def test_jobs_that_wait_for_others(patient: Patient) -> None:
    """For a day since they were submitted, started last, or are wanted; the oldest first, with its id."""
    parent = await waits(patient, "parent")
    first = await waits(patient, "old", parent, age_s=3 * DAY_S)
    await waits(patient, "old", parent)
    await waits(patient, "less", parent, priority=-5)
    await waits(patient, "young", parent, age_s=DAY_S - 60)
    await waits(patient, "later", parent, delay_s=600.0)
    early = await waits(patient, "wanted earlier", parent, age_s=60)
    await patient.sql.execute("UPDATE pulse.jobs SET run_after = now() - interval '3 days' WHERE id = $1", early)
    again = await waits(patient, "again", parent)
    await patient.sql.execute("UPDATE pulse.jobs SET started_at = now() WHERE id = $1", again)
    held = "UPDATE pulse.jobs SET next_run_at = '9999-12-30 00:00+00' WHERE id = $1"
    await patient.sql.execute(held, await waits(patient, "of a schedule"))
    assert await listed(patient) == [("old", None, 2), ("less", None, 1)]
    found = (await patient.found())["waits"]
    assert (found.state, found.advice) == (State.WARNING, (f"pulse ctl jobs why {first}",))
    told = f"topic 't': 2 jobs named 'old' waiting for other jobs, the oldest, {first}, for 3 d"
    assert found.text == told


async def test_parents_that_wait_themselves(patient: Patient) -> None:
    """One that sleeps or waits explains its children; not if it has ended, or the child is done with it."""
    asleep = await put_off(patient, await waits(patient, "asleep"), None, DAY_S)
    child = await waits(patient, "child", asleep)
    await waits(patient, "grandchild", child)
    gone = await put_off(patient, await waits(patient, "gone"), None, DAY_S)
    await waits(patient, "forgotten", gone)
    sql = "UPDATE pulse.jobs SET status = 'CANCELED', completed_at = now() WHERE id = $1"
    await patient.sql.execute(sql, gone)
    over = await waits(patient, "done with it", asleep, await waits(patient, "due"))
    await patient.sql.execute(
        "UPDATE pulse.dependencies SET is_over = true WHERE (parent_id, child_id) = ($1, $2)", asleep, over
    )
    ordered = await waits(patient, "of a sequence", group="g")
    await waits(patient, "behind it", await put_off(patient, ordered, None, DAY_S, "run_after"))
    assert sorted(await listed(patient)) == [("done with it", None, 1), ("forgotten", None, 1)]


async def test_jobs_that_wait_for_a_signal(patient: Patient) -> None:
    """Without a time limit, for a day; a sleep of the same length is none."""
    first = await put_off(patient, await waits(patient, "ask"), "an answer", ENDLESS_S - 2 * DAY_S)
    await put_off(patient, await waits(patient, "ask"), "an answer", ENDLESS_S - DAY_S - 60)
    await put_off(patient, await waits(patient, "young"), "answer", ENDLESS_S - DAY_S + 60)
    await put_off(patient, await waits(patient, "limited"), "answer", 30 * DAY_S)
    await put_off(patient, await waits(patient, "asleep"), None, ENDLESS_S - 2 * DAY_S)
    both = await waits(patient, "both", await waits(patient, "parent"), topic="u")
    await patient.sql.execute("UPDATE pulse.jobs SET awaited_signal = 'answer' WHERE id = $1", both)
    assert await listed(patient) == [("ask", "an answer", 2), ("both", None, 1)]
    found = (await patient.found())["waits"]
    assert f"2 jobs named 'ask' waiting for signal 'an answer', the oldest, {first}, for 2 d" in found.text
    assert f"pulse ctl jobs signal {first} 'an answer'" in found.advice[0]


async def test_jobs_of_groups_that_wait(patient: Patient) -> None:
    """In each group and at each priority; those of a sequence keep their place while they are put off."""
    parent = await waits(patient, "parent", topic="a")
    for group in ("g", "h"):
        await waits(patient, "due", group=group, priority=5)
        await waits(patient, "child", parent, group=group, priority=1)
        await put_off(patient, await waits(patient, "ask", group=group, priority=-1), "s", ENDLESS_S - 2 * DAY_S)
    for group in ("h", "of this one alone"):
        await waits(patient, "child", parent, group=group, priority=1)
    kept = await waits(patient, "kept", topic="z", group="g")
    await put_off(patient, kept, "s", ENDLESS_S - 2 * DAY_S, "run_after")
    young = await waits(patient, "young", topic="z", group="h")
    await put_off(patient, young, "s", ENDLESS_S - 60, "run_after")
    assert await listed(patient) == [("ask", "s", 2), ("kept", "s", 1), ("child", None, 4)]


async def test_ends_that_no_broker_gets(patient: Patient) -> None:
    """For ten minutes: wrong if nobody has taken them for a minute; a warning if somebody has."""
    await patient.sql.execute(END, "young", 590, DAY_S)
    assert (await patient.found())["outbox"].state is State.OK
    for row in (("an order", 1200, 70), ("an order", 610, DAY_S), ("taken", 1000, DAY_S), ("taken", 700, -20)):
        await patient.sql.execute(END, *row)
    found = (await patient.found())["outbox"]
    assert (found.state, said(found)) == (
        State.WRONG,
        """topic 'an order': 2 ends of jobs in the outbox, the oldest for 20 min, and nothing publishes them
topic 'taken': 2 ends of jobs in the outbox, the oldest for 16 min, though something publishes them""",
    )
    assert found.advice[0] == "pulse bridge nats-outbox"
    assert "topics set 'an order' --no-publish" in found.advice[-1]
    await patient.sql.execute("DELETE FROM pulse.outbox WHERE topic = 'an order'")
    found = (await patient.found())["outbox"]
    assert (found.state, len(found.advice)) == (State.WARNING, 2)
    assert "outbox_publish_failed" in found.advice[0]


@pytest.mark.parametrize(("ends", "told"), [(1, "1 end of"), (9_999, "9,999 ends of"), (10_000, "10,000 ends or more")])
def test_how_many_ends(ends: int, told: str) -> None:
    found = queue.outbox([{"topic": "t", "ends": ends, "age_s": 700.0, "is_taken": False}], 60.0)
    assert f"topic 't': {told}" in found.text


@pytest.mark.rest
async def test_what_a_server_asks_is_bounded(patient: Patient) -> None:
    """Jobs that wait for anything else are not read, however many they are; nor are ends beyond the oldest ones."""
    await patient.sql.execute(
        "INSERT INTO pulse.jobs (id, topic, name, max_attempts, next_run_at, awaited_signal)"
        " SELECT gen_random_uuid(), 't', 'young', 5, now() + interval '1000000000 s', 's' FROM generate_series(1, 3000)"
    )
    await patient.sql.execute(
        "INSERT INTO pulse.jobs (id, topic, name, max_attempts, next_run_at, group_key)"
        " SELECT gen_random_uuid(), 't', 'n', 5, now() + (n - 15000) * interval '1 s', CASE n % 2 WHEN 0 THEN 'g' END"
        " FROM generate_series(1, 30000) n"
    )
    await patient.sql.execute(
        "INSERT INTO pulse.outbox (job_id, ended_at, attempt, status, topic, name)"
        " SELECT gen_random_uuid(), now() - n * interval '1 s', 1, 'COMPLETED', 't', 'n'"
        " FROM generate_series(1, 30000) n"
    )
    await patient.sql.execute("ANALYZE pulse.jobs, pulse.outbox")
    for question, most in (("queue_waits", 50), ("queue_outbox", 11_000)):
        async with patient.sql.transaction():
            await patient.sql.execute(QUESTIONS["limits"].sql, "0", "0")
            rows = await patient.sql.fetch(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) {QUESTIONS[question].sql}")
        plan = "\n".join(row[0] for row in rows)
        assert "Seq Scan" not in plan, plan
        first = next(line for line in plan.splitlines() if "shared hit=" in line)
        assert int(first.partition("shared hit=")[2].split()[0]) < most, plan
