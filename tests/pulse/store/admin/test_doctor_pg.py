"""What each question of `pulse doctor` counts, and what it leaves out; the verdicts: test_doctor.py."""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final

import pytest

from pulse.store.admin.doctor import QUEUE_CHECKS, clusters_of, look
from pulse.store.connections.pool import Target
from tests.support.admin.doctor_kit import WITHIN_S, Patient, until_true
from tests.support.admin.roles_kit import CALLS, MAY, SETS
from tests.support.servers.postgres import Postgres

PULSES: Final = (
    "SELECT relname::text FROM pg_class WHERE relnamespace = 'pulse'::regnamespace AND relkind = $1::text::\"char\""
)
BACKENDS: Final = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
WAITING: Final = "SELECT count(*) = {} FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
HOST: Final = (
    "INSERT INTO pulse.hosts (host, boot, pidns, seen_at) VALUES ($1, $2, 1, now() - $3::int * interval '1 s')"
)
PAUSE: Final = (
    "INSERT INTO pulse.dispatch_control (topic, paused, paused_at, paused_until)"
    " VALUES ($1, true, now(), now() + $2::int * interval '1 s')"
)
ENDS_IT: Final = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE application_name = 'pulse doctor' AND datname = current_database() AND wait_event_type = 'Lock'"
)
RUNS: Final = (
    "UPDATE pulse.jobs SET status = 'RUNNING', attempts = 1, started_at = now(), locked_by = $2,"
    " lease_until = now() + $3::int * interval '1 s' WHERE id = $1"
)
ATTEMPT: Final = (
    "INSERT INTO pulse.attempts (job_id, attempt, outcome, error, ended_at)"
    " VALUES ($1, $2, $3, $4, now() - $5::int * interval '1 s')"
)
ENDS: Final = (
    "UPDATE pulse.jobs SET status = $2::text::pulse.job_status, attempts = 1, last_error = $3,"
    " completed_at = now() - $4::int * interval '1 s' WHERE id = $1"
)


async def submitted(
    patient: Patient, *, name: str = "x", topic: str = "default", priority: int = 0, due_s: int = 0
) -> Any:
    job = await patient.sql.fetchval("SELECT pulse.submit($1, topic => $2, priority => $3)", name, topic, priority)
    await patient.sql.execute(
        "UPDATE pulse.jobs SET next_run_at = now() - $2::int * interval '1 s' WHERE id = $1", job, due_s
    )
    return job


@pytest.mark.rest
async def test_connections_are_counted(patient: Patient, empty: str) -> None:
    """Those of all clients, of the role, and of the database; a normal role lacks those reserved for superusers."""
    await patient.session()
    await patient.session(empty)
    role = "doctor_counted"
    await patient.sql.execute(f"CREATE ROLE {role} LOGIN; GRANT pg_read_all_stats TO {role}")
    try:
        others = await patient.sql.fetchval(BACKENDS)
        (mine,) = await patient.rows("connections")
        await until_true(patient.sql, f"SELECT ({BACKENDS}) = {others}")
        (theirs,) = await patient.rows("connections", dsn=re.sub(r"user=[^&]*", f"user={role}", patient.dsn))
    finally:
        await patient.sql.execute(f"DROP ROLE {role}")
    names = ("reserved", "used", "role_used", "database_used")
    assert [mine[name] for name in names] == [0, others + 1, others + 1, 3]
    assert [theirs[name] for name in names] == [3, others + 1, 1, 3]


async def test_what_is_pulses(patient: Patient) -> None:
    """Tables, indexes and rights of other schemas are left out."""
    await patient.sql.execute("CREATE TABLE public.other (id int PRIMARY KEY)")
    tables = {row[0] for row in await patient.sql.fetch(PULSES, "r")}
    assert {row["name"] for row in await patient.rows("tables")} == tables
    assert {row["name"] for row in await patient.rows("indexes")} == {
        row[0] for row in await patient.sql.fetch(PULSES, "i")
    }
    told = {row["what"] for row in await patient.rows("rights")}
    wanted = {f"{what.lower()} pulse.{table}" for table, rights in MAY["server"].items() for what in rights}
    wanted |= {f"call pulse.{name}" for name in CALLS["server"]}
    wanted |= {f"{what} the sequence pulse.{name}" for name in SETS["server"] for what in ("select", "update")}
    assert {what for what in told if " pulse." in what} == wanted
    assert set(MAY["server"]) == tables


async def test_who_pulse_is(patient: Patient, sound: Postgres) -> None:
    """A superuser, an owner of the schema, a member of the owner, and a role with only the rights that it needs."""
    role = f"doctor_who_{sound.major}"
    await patient.sql.execute(f"CREATE ROLE {role} LOGIN; CREATE ROLE {role}_owner; GRANT {role}_owner TO {role}")
    await patient.sql.execute(f"CREATE SCHEMA {role} AUTHORIZATION {role}")  # its own, which is none of pulse
    dsn = re.sub(r"user=[^&]*", f"user={role}", patient.dsn)
    told: list[tuple[bool, bool]] = []
    try:
        for owner in (None, role, f"{role}_owner"):
            await patient.sql.execute(f"ALTER SCHEMA pulse OWNER TO {owner}" if owner else "SELECT 1")
            ((row,)) = await patient.rows("role", dsn=dsn)
            told.append((row["is_super"], row["is_owner"]))
            assert row["name"] == role
    finally:
        await patient.sql.execute(
            f"ALTER SCHEMA pulse OWNER TO CURRENT_USER; DROP SCHEMA {role}; DROP ROLE {role}, {role}_owner"
        )
    assert told == [(False, False), (False, True), (False, True)]
    ((mine,)) = await patient.rows("role")
    assert (mine["is_super"], mine["is_owner"]) == (True, True)


async def test_each_right_is_looked_at(patient: Patient, sound: Postgres) -> None:
    """Also one on a single column, where that is enough."""
    role = f"doctor_rights_{sound.major}"
    await patient.sql.execute(
        f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA pulse TO {role}; GRANT SELECT ON pulse.jobs TO {role};"
        f" GRANT UPDATE (at) ON pulse.audit TO {role}; GRANT EXECUTE ON FUNCTION pulse.wait_again TO {role};"
        " REVOKE UPDATE ON pulse.work_notified FROM PUBLIC"
    )
    try:
        found = await patient.rows("rights", dsn=re.sub(r"user=[^&]*", f"user={role}", patient.dsn))
    finally:
        await patient.sql.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
    told = {row["what"]: row["is_granted"] for row in found}
    assert {what for what, is_granted in told.items() if is_granted and not what.startswith("call ")} == {
        "use the schema pulse", "select pulse.jobs", "update pulse.audit", "select the sequence pulse.work_notified",
    }  # fmt: skip
    assert (told["call pulse.wait_again"], told["call pulse.unique_holder"]) == (True, False)


async def test_snapshots_of_this_database(patient: Patient, empty: str) -> None:
    """Snapshots of another database do no harm here; nor do sessions without one. The oldest comes first."""

    async def looks() -> str:
        session = await patient.session()
        await session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pulse.jobs")
        return str(session.get_server_pid())

    await patient.sql.execute("SELECT pg_create_physical_replication_slot('idle_standby')")
    elsewhere = await patient.session(empty)
    await elsewhere.execute("BEGIN; CREATE TABLE made (); PREPARE TRANSACTION 'left elsewhere'")
    try:
        await elsewhere.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        first = await looks()
        alone = await patient.rows("xmin")
        await elsewhere.execute("ROLLBACK")
    finally:
        await elsewhere.execute("ROLLBACK PREPARED 'left elsewhere'")
        await patient.sql.execute("SELECT pg_drop_replication_slot('idle_standby')")
    await patient.sql.execute("SELECT txid_current()")
    second = await looks()
    assert [[row["name"] for row in rows] for rows in (alone, await patient.rows("xmin"))] == [[first], [first, second]]


async def test_transactions_of_this_database(patient: Patient, empty: str) -> None:
    """Idle ones, the oldest first; not those of others, nor sessions between two of them."""
    first, second = await patient.session(), await patient.session()
    await first.execute("BEGIN; SELECT 1")
    await second.execute("BEGIN; SELECT 1")
    third, elsewhere = await patient.session(), await patient.session(empty)
    await third.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
    await elsewhere.execute("BEGIN; SELECT 1")
    found = await patient.rows("transactions")
    pids = [one.get_server_pid() for one in (first, second)]
    assert [row["pid"] for row in found] == pids
    listed = [row["pid"] for row in await patient.rows("notifications")]  # of all databases, and of the server itself
    assert [pid for pid in listed if pid in pids] == pids


async def test_locks_that_matter(patient: Patient, empty: str) -> None:
    """Locks on a whole table of pulse, and waits for a table or a row; not the locks of other things."""
    await patient.sql.execute("CREATE TABLE public.other ()")
    holder, writer, waiter, third, asking = [await patient.session() for _ in range(5)]
    elsewhere, other = [await patient.session(empty) for _ in range(2)]
    await holder.execute(
        "BEGIN; LOCK TABLE public.other IN ACCESS EXCLUSIVE MODE; LOCK TABLE pulse.hosts IN SHARE MODE;"
        " SELECT pg_advisory_lock(1)"
    )
    await writer.execute("BEGIN; UPDATE pulse.topics SET max_attempts = 4")
    await elsewhere.execute("CREATE TABLE made AS SELECT 1 AS a")
    await elsewhere.execute("BEGIN; UPDATE made SET a = 2")
    waiting = [
        asyncio.ensure_future(waiter.execute("UPDATE pulse.topics SET max_attempts = 3")),
        asyncio.ensure_future(other.execute("UPDATE made SET a = 3")),
        asyncio.ensure_future(asking.execute("SELECT pg_advisory_lock(1)")),
    ]
    await until_true(patient.sql, WAITING.format(3))
    waiting.append(asyncio.ensure_future(third.execute("UPDATE pulse.topics SET max_attempts = 2")))
    await until_true(patient.sql, WAITING.format(4))
    found = {(row["pid"], row["what"], *row["blockers"]) for row in await patient.rows("locks")}
    for session in (holder, writer, elsewhere):
        await session.execute("ROLLBACK; SELECT pg_advisory_unlock_all()")
    await asyncio.gather(*waiting)
    row = "waits for a row that another session has locked"
    assert found == {
        (holder.get_server_pid(), "holds ShareLock on pulse.hosts"),
        (waiter.get_server_pid(), row, writer.get_server_pid()),
        (third.get_server_pid(), row, waiter.get_server_pid()),
    }


async def test_leases_by_worker(patient: Patient) -> None:
    """Of each worker its jobs and the lapsed ones, the longest first; the newest boot of its host counts."""
    for boot, ago_s in (("b", 0), ("a", 9000)):
        await patient.sql.execute("DELETE FROM pulse.hosts WHERE boot = $1", boot)
        await patient.sql.execute(HOST, "here", boot, ago_s)
    for worker, left_s in (("here/b/w", -100), ("here/b/w", 100), ("here/b/v", -500), ("gone/b/w", 100)):
        await patient.sql.execute(RUNS, await submitted(patient), worker, left_s)
    await submitted(patient)
    found = await patient.rows("queue_leases")
    told = [(row["worker"], row["jobs"], row["lapsed"], round(row["lapsed_s"], -2)) for row in found]
    assert told == [("here/b/v", 1, 1, 500), ("here/b/w", 2, 1, 100), ("gone/b/w", 1, 0, 0)]
    assert [row["host_s"] and round(row["host_s"], -2) for row in found] == [0, 0, None]


async def test_hosts_of_today(patient: Patient) -> None:
    """Each once, by its newest boot, the longest away first; one of days ago only while it holds something."""
    for host in (("here", "a", 9000), ("there", "a", 600), ("old", "a", 90_000), ("holds", "a", 180_000)):
        await patient.sql.execute(HOST, *host)
    await patient.sql.execute(RUNS, await submitted(patient), "holds/a/w", 100)
    found = await patient.rows("queue_hosts")
    assert [(row["host"], row["running"]) for row in found] == [("holds", 1), ("there", 0), ("here", 0)]


async def test_due_jobs_by_topic(patient: Patient) -> None:
    """Of each topic how long its first due job waits, the longest first; whether it is paused, by itself or not."""
    due = (
        ("b", 5, 10), ("b", 3, 700), ("b", 3, 60), ("b", 1, 30), ("a", 0, 100), ("c", 0, 90), ("d", 0, 80),
        ("e", 0, -900),
    )  # fmt: skip
    for topic, priority, due_s in due:
        await submitted(patient, topic=topic, priority=priority, due_s=due_s)
    for topic, left_s in (("a", 900), ("c", -1), ("nowhere", 900)):
        await patient.sql.execute(PAUSE, topic, left_s)
    await patient.sql.execute("INSERT INTO pulse.dispatch_control (topic) VALUES ('d')")
    await patient.sql.execute(HOST, "gone", "b", 600)
    await patient.sql.execute(HOST, "here", "a", 1)
    found = await patient.rows("queue_topics")
    assert [(row["topic"], round(row["due_s"], -1), row["is_paused"]) for row in found] == [
        ("b", 700, False), ("a", 100, True), ("c", 90, False), ("d", 80, False),
    ]  # fmt: skip
    assert {row["hosts"] for row in found} == {1}
    assert [row["topic"] for row in await patient.rows("queue_gate")] == ["a", "nowhere"]
    await patient.sql.execute("UPDATE pulse.dispatch_control SET paused = true, paused_at = now() WHERE topic = ''")
    assert {row["is_paused"] for row in await patient.rows("queue_topics")} == {True}


async def test_late_schedules(patient: Patient) -> None:
    """Those without a next occurrence first, then late ones: not those in time, nor paused ones."""
    for name in ("bad", "late", "paused", "in time"):
        await patient.sql.execute("SELECT pulse.create_schedule($1, every_s => 600)", name)
    await patient.sql.execute(
        "UPDATE pulse.schedules SET next_run_at = now() - interval '5 min' WHERE name IN ('late', 'paused')"
    )
    await patient.sql.execute("UPDATE pulse.schedules SET paused = true WHERE name = 'paused'")
    await patient.sql.execute(
        "UPDATE pulse.schedules SET next_run_at = now() + interval '5 min' WHERE name = 'in time'"
    )
    await patient.sql.execute("UPDATE pulse.schedules SET error = 'no such zone' WHERE name = 'bad'")
    assert [row["name"] for row in await patient.rows("queue_schedules")] == ["bad", "late"]


async def test_when_a_watchdog_may_reap(patient: Patient) -> None:
    """How long leases mean nothing yet; NULL after that."""
    for left_s, wanted in ((3600, 3600), (-3600, 0)):
        await patient.sql.execute("UPDATE pulse.sweep_mark SET wait_until = now() + $1::int * interval '1 s'", left_s)
        (row,) = await patient.rows("queue_watchdog")
        assert row["wait_s"] == pytest.approx(wanted, abs=60)
        assert row["wait_s"] >= 0


async def test_endings_of_the_last_hour(patient: Patient) -> None:
    """By handler, topic and outcome, the most first: how many, how old the newest is, and what it says."""
    burn, boil = [await submitted(patient, name=name) for name in ("burn", "boil")]
    for number, outcome in enumerate(("crashed", "timeout", "stalled", "lease_expired", "error")):
        await patient.sql.execute(ATTEMPT, burn, number * 10, outcome, "older", 1800)
        await patient.sql.execute(ATTEMPT, burn, number * 10 + 1, outcome, "newer", 600)
        await patient.sql.execute(ATTEMPT, burn, number * 10 + 2, outcome, "long ago", 4000)
    await patient.sql.execute(ATTEMPT, boil, 1, "timeout", "once", 0)
    found = await patient.rows("queue_attempts")
    told = [(row["name"], row["outcome"], row["attempts"], round(row["age_s"], -2), row["error"]) for row in found]
    assert told == [
        *(("burn", outcome, 2, 600, "newer") for outcome in ("crashed", "lease_expired", "stalled", "timeout")),
        ("boil", "timeout", 1, 0, "once"),
    ]


async def test_dead_letters_of_the_last_hour(patient: Patient) -> None:
    ends = (
        ("burn", "DEAD_LETTERED", "older", 1800), ("burn", "DEAD_LETTERED", "newer", 600),
        ("burn", "DEAD_LETTERED", "long ago", 4000), ("burn", "CANCELED", "canceled", 0),
        ("boil", "DEAD_LETTERED", "once", 0),
    )  # fmt: skip
    for name, *how in ends:
        await patient.sql.execute(ENDS, await submitted(patient, name=name), *how)
    own = await patient.sql.fetchval("SELECT pulse.submit('boil', id => gen_random_uuid())")
    await patient.sql.execute(ENDS, own, "CANCELED", "canceled", 0)
    found = await patient.rows("queue_dead_letters")
    told = [(row["name"], row["jobs"], round(row["age_s"], -2), row["error"]) for row in found]
    assert told == [("burn", 2, 600, "newer"), ("boil", 1, 0, "once")]


async def test_jobs_that_nobody_handles(patient: Patient) -> None:
    """Those that came back twice for that reason, by topic and name; not those that run, or came back for another."""
    for name, status, uncharged, error in (
        *[("mial", "PENDING", 2, 'no handler named "mial" on topic "default"')] * 2,
        ("mial", "RETRYING", 3, 'no handler named "mial" on topic "default"'),
        ("mial", "PENDING", 1, 'no handler named "mial" on topic "default"'),
        ("mial", "COMPLETED", 2, 'no handler named "mial" on topic "default"'),
        ("mial", "PENDING", 2, "ValueError: no handler named Smith"),
        ("thumb", "PENDING", 2, 'no handler named "thumb" on topic "default"'),
    ):
        job = await submitted(patient, name=name)
        await patient.sql.execute(
            "UPDATE pulse.jobs SET status = $2::text::pulse.job_status, attempts = $3, uncharged = $3, last_error = $4,"
            " completed_at = CASE WHEN $2::text = 'COMPLETED' THEN clock_timestamp() END WHERE id = $1",
            job, status, uncharged, error,
        )  # fmt: skip
    await patient.sql.execute("INSERT INTO pulse.handlers (name, topic) VALUES ('mail', NULL), ('other', 'b')")
    found = await patient.rows("queue_unhandled")
    assert [(row["topic"], row["name"], row["jobs"], row["handlers"]) for row in found] == [
        ("default", "mial", 3, ["mail"]),
        ("default", "thumb", 1, ["mail"]),
    ]


async def test_a_session_that_is_ended_in_the_middle(patient: Patient) -> None:
    """Each check that was not done says why."""
    holder = await patient.session()
    await holder.execute("BEGIN; LOCK TABLE pulse.jobs IN ACCESS EXCLUSIVE MODE")
    looking = asyncio.ensure_future(look(patient.dsn, WITHIN_S))
    await until_true(patient.sql, ENDS_IT)
    seen = await looking
    assert seen.away is None
    assert set(seen.failed) >= set(QUEUE_CHECKS)
    (why,) = set(seen.failed.values())
    assert why.endswith("terminating connection due to administrator command")


async def test_a_question_about_citus_that_gets_no_answer(patient: Patient) -> None:
    """It is bounded as all others are, and they are asked."""
    holder = await patient.session()
    await holder.execute("ALTER ROLE CURRENT_USER SET citus.version = 'any'")  # plain PostgreSQL is not asked
    try:
        await holder.execute("BEGIN; LOCK TABLE pg_extension IN ACCESS EXCLUSIVE MODE")
        seen = await look(patient.dsn, WITHIN_S)
        await holder.execute("ROLLBACK")
    finally:
        await holder.execute("ALTER ROLE CURRENT_USER RESET citus.version")
    assert "another session locks" in seen.failed["distributed"]
    assert {"clusters", "indexes", *QUEUE_CHECKS} <= set(seen.rows)


async def test_clusters_are_compared_where_there_are_several_hosts(patient: Patient) -> None:
    twice = re.sub(r"host=([^&]*)", r"host=\1,\1", patient.dsn)
    assert [len(await clusters_of(Target(dsn, "tests"))) for dsn in (patient.dsn, twice)] == [0, 2]


async def test_a_role_that_may_ask_nothing(patient: Patient) -> None:
    role = "doctor_mute"
    await patient.sql.execute(f"CREATE ROLE {role} LOGIN; REVOKE EXECUTE ON FUNCTION pg_control_system() FROM public")
    try:
        seen = await look(re.sub(r"user=[^&]*", f"user={role}", patient.dsn), WITHIN_S)
    finally:
        await patient.sql.execute(f"DROP ROLE {role}")
    assert seen.away == "permission denied for function pg_control_system"
    assert set(seen.failed.values()) == {seen.away, "the database is away"}
