"""`pulse doctor` on a real PostgreSQL: each possible fault is made, and named."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import time
from collections.abc import Iterator
from typing import Final
from urllib.parse import parse_qsl, urlsplit

import asyncpg
import pytest
from anyio.lowlevel import checkpoint

from pulse.ops.doctor.finding import State
from pulse.ops.doctor.verdicts import CheckContext, judge
from pulse.store.admin import doctor, schema
from pulse.store.admin.doctor import QUESTIONS, expected_indexes, look
from tests.support.admin.doctor_kit import WITHIN_S, Patient, check_age, said, until_true
from tests.support.confidential import confidential
from tests.support.servers.bouncer import bouncer
from tests.support.servers.postgres import Postgres

SECRET: Final = confidential("s3cret-word", "password of a DSN")
LEASE: Final = (
    "UPDATE pulse.jobs SET status = 'RUNNING', attempts = 1, started_at = now(), locked_by = $1,"
    " lease_until = now() + $2::int * interval '1 s'"
)


async def test_a_sound_database(patient: Patient) -> None:
    found = await patient.found(served=set())
    assert {name: one.text for name, one in found.items() if one.state is not State.OK} == {}
    assert "pooler" in found
    assert found["database"].text.startswith("PostgreSQL 1")


async def test_every_question_is_understood(module_database: str) -> None:
    """By the oldest PostgreSQL as by the newest; settings that these servers lack are named, nothing is skipped."""
    seen = await look(module_database, WITHIN_S)
    await checkpoint()
    assert (seen.away, seen.failed) == (None, {})
    found = {
        one.check: one for one in judge(seen, CheckContext(expected=expected_indexes(), served=set()), grace_s=60.0)
    }
    assert "fsync is off" in said(found["settings"])


@pytest.fixture(params=["LATIN1", "SQL_ASCII"])
def encoding(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def encoded_otherwise(server: Postgres, encoding: str) -> Iterator[str]:
    with server.database(encoding=encoding) as dsn:
        yield dsn


async def test_a_database_that_is_not_utf8(encoded_otherwise: str, encoding: str) -> None:
    seen = await look(encoded_otherwise, WITHIN_S)
    found = {
        one.check: one for one in judge(seen, CheckContext(expected=expected_indexes(), served=set()), grace_s=60.0)
    }
    assert found["database"].state is State.WRONG
    assert f" stores text as {encoding}, not UTF8: " in found["database"].text


async def test_who_keeps_a_snapshot(patient: Patient) -> None:
    began_s = time.monotonic()
    # The slot first: its making waits for transactions that are open, prepared ones too.
    await patient.sql.execute("SELECT pg_create_logical_replication_slot('gone_subscriber', 'pgoutput')")
    session = await patient.session()
    await session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pulse.jobs")
    await patient.sql.execute("BEGIN; DELETE FROM pulse.hosts; PREPARE TRANSACTION 'left behind'")
    try:
        finding = (await patient.found(grace_s=1e-3))["xmin"]
        pid = await session.fetchval("SELECT pg_backend_pid()")
    finally:
        await patient.sql.execute("ROLLBACK PREPARED 'left behind'")
        await patient.sql.execute("SELECT pg_drop_replication_slot('gone_subscriber')")
    assert finding.state is State.WARNING
    text = said(finding)
    session_is = rf"session {pid} \(\w+, night report\) has been"
    check_age(rf"{session_is} idle in transaction for (\d+) s: .*SELECT count\(\*\)", text, began_s)
    check_age(r"prepared transaction left behind of \w+, prepared (\d+) s ago", text, began_s)
    assert "replication slot gone_subscriber (pgoutput, inactive)" in text


async def test_an_open_transaction(patient: Patient) -> None:
    await (await patient.session()).execute("BEGIN; SELECT 1")
    assert "night report) has been idle in transaction" in said((await patient.found(grace_s=1e-3))["transactions"])


async def test_locks(patient: Patient) -> None:
    """It names the holder of a table, and waiters with their blockers; only the locked table's checks are skipped."""
    began_s = time.monotonic()
    holder, waiter = await patient.session(), await patient.session()
    await holder.execute("BEGIN; LOCK TABLE pulse.schedules IN ACCESS EXCLUSIVE MODE")
    waiting = asyncio.ensure_future(waiter.execute("UPDATE pulse.schedules SET paused = true"))
    await until_true(
        patient.sql,
        "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()",
    )
    found = await patient.found()
    held_by = holder.get_server_pid()
    await holder.execute("ROLLBACK")
    await waiting
    text = said(found["locks"])
    assert f"pid {held_by} " in text
    assert "holds AccessExclusiveLock on pulse.schedules" in text
    waits = r"waits for RowExclusiveLock on pulse\.schedules"
    check_age(rf"{waits} for (\d+) s, behind pid {held_by}: UPDATE", text, began_s)
    assert found["schedules"].text.startswith("another session locks what is looked at")
    assert {name for name, one in found.items() if one.state is State.SKIPPED} == {"schedules", "tables"}


async def test_indexes(patient: Patient) -> None:
    await patient.sql.execute("DROP INDEX pulse.idx_jobs_held")
    await patient.sql.execute("INSERT INTO pulse.handlers (name, topic) VALUES ('a', 't'), ('b', 't')")
    with contextlib.suppress(asyncpg.UniqueViolationError):
        await patient.sql.execute("CREATE UNIQUE INDEX CONCURRENTLY broken ON pulse.handlers (topic)")
    finding = (await patient.found())["indexes"]
    assert finding.state is State.WRONG
    assert (
        said(finding) == "index idx_jobs_held is missing\nindex broken of pulse.handlers is not valid: nobody uses it"
    )


async def test_settings_and_rights_of_a_role(patient: Patient, sound: Postgres) -> None:
    """A role's settings count as the server's own, and its missing rights are listed."""
    role = f"doctor_{sound.major}"
    await patient.sql.execute(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 3")
    dsn = re.sub(r"user=[^&]*", f"user={role}", patient.dsn)
    try:
        for setting in (
            "synchronous_commit = off",
            "default_transaction_isolation = 'serializable'",
            "statement_timeout = '1s'",
        ):
            await patient.sql.execute(f"ALTER ROLE {role} SET {setting}")
        found = await patient.found(dsn=dsn)
    finally:
        await patient.sql.execute(f"DROP ROLE {role}")
    assert found["settings"].state is State.WRONG
    text = said(found["settings"])
    assert all(
        word in text
        for word in ("synchronous_commit is off", "isolation is serializable", "statement_timeout is 1000 ms")
    )
    assert said(found["rights"]).startswith("the role may not use the schema pulse\nnor ")
    assert "pg_read_all_stats" in said(found["rights"])
    assert found["connections"].text == "1 of 3 connections of the role are in use"
    assert found["connections"].state is State.WRONG


async def test_tables(patient: Patient) -> None:
    await patient.sql.execute("ALTER TABLE pulse.jobs SET (autovacuum_enabled = false)")
    await patient.sql.execute(
        "SELECT count(pulse.submit('x')) FROM generate_series(1, 50); UPDATE pulse.jobs SET priority = 1"
    )
    await until_true(patient.sql, "SELECT n_dead_tup = 50 FROM pg_stat_user_tables WHERE relname = 'jobs'")
    finding = (await patient.found(served={"default"}))["tables"]
    assert (finding.state, finding.text) == (State.WRONG, "autovacuum is off for pulse.jobs")
    seen = await look(patient.dsn, WITHIN_S)
    assert {row["name"]: row["dead"] for row in seen.rows["tables"]}["jobs"] == 50


async def test_schema(patient: Patient, empty: str) -> None:
    await patient.sql.execute("UPDATE pulse.schema_version SET release = 'mine'")
    development = await patient.found()
    await patient.sql.execute("INSERT INTO pulse.schema_version VALUES (99, 'newer')")
    newer = await patient.found()
    none = await patient.found(dsn=empty)
    assert "is at version 99; this program has " in newer["schema"].text
    assert none["schema"].text == "the schema pulse is not installed"
    assert development["schema"].text.endswith("made the schema pulse (as version 1): nothing upgrades it")
    assert development["schema"].advice[0].endswith("then DROP SCHEMA pulse CASCADE.")
    for found in (newer, none, development):
        assert found["schema"].state is State.WRONG
        assert found["leases"].state is State.SKIPPED
        assert found["xmin"].state is State.OK


@pytest.mark.parametrize(("change", "todo"), [
    ("INSERT INTO pulse.schema_version VALUES (2, 'newer')", "Upgrade pulse here: a newer one has "),
    ("UPDATE pulse.schema_version SET version = 1", "pulse migrate"),
])  # fmt: skip
async def test_schema_of_the_release_before_or_after(
    patient: Patient, monkeypatch: pytest.MonkeyPatch, change: str, todo: str
) -> None:
    """Only a warning, since pulse works with it; all other checks are made."""
    if todo == "pulse migrate":
        monkeypatch.setattr(schema, "SCHEMA_VERSION", 2)
        monkeypatch.setattr(doctor, "SCHEMA_VERSION", 2)
        monkeypatch.setitem(schema.RELEASES, 2, "made up")
    await patient.sql.execute(change)
    found = await patient.found()
    assert found["schema"].state is State.WARNING
    assert found["schema"].advice[0].startswith(todo)
    assert found["schema"].text.endswith(", and works with that, too")
    assert found["leases"].state is State.OK


async def test_jobs_that_nobody_runs(patient: Patient) -> None:
    await patient.sql.execute(
        "INSERT INTO pulse.hosts (host, boot, pidns, seen_at) VALUES ('dead', 'b', 1, now() - interval '3 h')"
    )
    await patient.sql.execute("SELECT pulse.submit('x')")
    await patient.sql.execute(LEASE, "here/b/1/12.34/w", -600)
    lapsed = await patient.found()
    assert said(lapsed["leases"]) == "worker w on here, pid 12: 1 job, the lease lapsed 10 min ago"
    await patient.sql.execute(LEASE, "dead/b/1/12.34/w", 600)
    away = await patient.found()
    assert said(away["leases"]) == "worker w on dead, pid 12: 1 job, and its host was last seen 3 h ago"
    assert said(away["hosts"]) == "host dead was last seen 3 h ago, and holds 1 job, of worker w"
    assert {away["leases"].state, away["hosts"].state, lapsed["leases"].state} == {State.WRONG}


@pytest.mark.rest
async def test_topics(patient: Patient) -> None:
    """A due job of a topic without workers is wrong, unless it is paused; elsewhere they may be served."""
    await patient.sql.execute(
        "SELECT pulse.submit('x', topic => 'mail', priority => p) FROM generate_series(1, 3) AS p"
    )
    await patient.sql.execute("SELECT pulse.submit('x', topic => 'later', run_at => now() + interval '1 h')")
    await patient.sql.execute(
        "UPDATE pulse.jobs SET next_run_at = now() - interval '20 min' WHERE topic = 'mail' AND priority = 1"
    )
    unserved = (await patient.found(served={"default"}))["topics"]
    assert unserved.state is State.WRONG
    assert said(unserved).endswith("topic 'mail': a job has been due for 20 min")
    assert "although workers serve it" in said((await patient.found(served={"mail"}))["topics"])
    assert (await patient.found(served=None))["topics"].state is State.SKIPPED
    await patient.sql.execute("INSERT INTO pulse.hosts (host, boot, pidns) VALUES ('other', 'b', 1)")
    assert (await patient.found(served={"default"}))["topics"].state is State.WARNING
    await patient.sql.execute(
        "UPDATE pulse.dispatch_control SET paused = true, paused_at = now() - interval '2 h', "
        " paused_by = 'uid 0 (root)', reason = 'disk'"
    )
    found = await patient.found(served={"default"})
    assert found["topics"].state is State.OK
    assert (
        said(found["gate"]) == "everything was paused 2 h ago by uid 0 (root), until somebody resumes it; reason: disk"
    )


async def test_schedules_watchdog_and_endings(patient: Patient) -> None:
    await patient.sql.execute(
        "SELECT pulse.create_schedule('tick', every_s => 60), pulse.create_schedule('bad', every_s => 60)"
    )
    await patient.sql.execute("UPDATE pulse.schedules SET error = 'no such zone' WHERE name = 'bad'")
    await patient.sql.execute("UPDATE pulse.schedules SET next_run_at = now() - interval '5 min' WHERE name = 'tick'")
    await patient.sql.execute("UPDATE pulse.sweep_mark SET swept_at = now() - interval '5 min'")
    job = await patient.sql.fetchval("SELECT pulse.submit('burn', topic => 'gpu')")
    await patient.sql.execute(
        "UPDATE pulse.jobs SET status = 'DEAD_LETTERED', completed_at = now() - interval '5 min', attempts = 1,"
        " started_at = now() - interval '5 min', last_error = 'worker process died: SIGSEGV'"
    )
    await patient.sql.execute(
        "INSERT INTO pulse.attempts (job_id, ended_at, attempt, outcome, error, exit_code)"
        " SELECT $1::uuid, now() - interval '5 min', n, 'crashed', 'worker process died: SIGSEGV', -11"
        " FROM generate_series(1, 3) n"
        " UNION ALL SELECT $1::uuid, now() - interval '5 min', 4, 'stalled', 'no progress for 60 s', -9",
        job,
    )
    found = await patient.found()
    assert re.fullmatch(
        r"schedule \S+ \(bad\): no such zone\nschedule \S+ \(tick\) is 5 min late", said(found["schedules"])
    )
    assert found["watchdog"].text == "no watchdog has swept for 5 min"
    what = "within the last hour, the newest 5 min ago: worker process died: SIGSEGV"
    crashed = f"handler 'burn' of topic 'gpu': 3 crashes {what}"
    assert (found["crashes"].state, said(found["crashes"])) == (
        State.WRONG,
        crashed + "; 1 job of it is a dead letter now",
    )
    assert "1 stall within the last hour, the newest 5 min ago: no progress for 60 s" in said(found["hung"])
    assert said(found["dead-letters"]) == crashed.replace("3 crashes", "1 dead letter")


async def test_only_the_newest_endings_are_looked_at(patient: Patient) -> None:
    """For any number: dead letters with the newest ids, or ids that are no times; attempts that ended last."""
    await patient.sql.execute(
        """INSERT INTO pulse.jobs
               (id, topic, max_attempts, status, attempts, started_at, completed_at, last_error, name)
           SELECT (lpad(to_hex(n), 12, '0') || '70008000000000000000')::uuid, 't', 5, 'DEAD_LETTERED', 1, now(), now(),
                  'e', CASE WHEN n <= 10 THEN 'old' ELSE 'new' END
           FROM generate_series(1, 10010) n"""
    )
    own = await patient.sql.fetchval("SELECT pulse.submit('own', id => 'ffffffff-0000-4000-8000-000000000000')")
    await patient.sql.execute(
        "UPDATE pulse.jobs SET status = 'DEAD_LETTERED', completed_at = now(), attempts = 1, started_at = now(),"
        " last_error = 'e' WHERE id = $1",
        own,
    )
    await patient.sql.execute(
        "INSERT INTO pulse.attempts (job_id, attempt, outcome, error) SELECT id, 1, 'crashed', 'e' FROM pulse.jobs"
    )
    found = await patient.found()
    for check, new in (("crashes", "9,999"), ("dead-letters", "10,000")):
        assert sorted(re.findall(r"handler '(\w+)' of topic '\w+': ([0-9,]+) ", said(found[check]))) == [
            ("new", new),
            ("own", "1"),
        ]


async def test_what_died_where(patient: Patient) -> None:
    """Of failed attempts the newest is shown with job and worker; a host with the jobs that it lost."""
    job, other = [str(await patient.sql.fetchval("SELECT pulse.submit('burn', topic => 'gpu')")) for _ in range(2)]
    await patient.sql.execute(
        "INSERT INTO pulse.hosts (host, boot, pidns, seen_at) VALUES ('dead', 'b', 1, now() - interval '3 h')"
    )
    await patient.sql.execute(
        "INSERT INTO pulse.attempts (job_id, attempt, outcome, worker, exit_code, ended_at, error) VALUES"
        " ($1, 1, 'lease_expired', 'dead/b/1/12.34/w', NULL, now() - interval '2 min', 'old'),"
        " ($2, 1, 'lease_expired', 'dead/b/1/12.34/x', -9, now() - interval '1 min', 'new'),"
        " ($1, 2, 'lease_expired', 'dead/b/1/12.34/y', NULL, now() - interval '2 h', 'long ago'),"
        " ($1, 3, 'error', 'dead/b/1/12.34/z', NULL, now(), 'its own')",
        job,
        other,
    )
    rows = (await look(patient.dsn, WITHIN_S)).rows
    (row,) = rows["queue_attempts"]
    assert {key: row[key] for key in ("attempts", "killed", "job", "worker", "error", "jobs_dead")} == {
        "attempts": 2, "killed": 1, "job": other, "worker": "dead/b/1/12.34/x", "error": "new", "jobs_dead": 0,
    }  # fmt: skip
    hosts = {row["host"]: (row["running"], row["lapsed"]) for row in rows["queue_hosts"]}
    assert hosts == {"here": (0, 0), "dead": (0, 2)}
    told = said((await patient.found())["hosts"])
    assert told == "host dead was last seen 3 h ago; 2 of its attempts were taken back, as lapsed leases"


async def test_what_nothing_would_end(patient: Patient) -> None:
    """Jobs that run without a limit of their own, of their handler or of their topic; the oldest of each handler."""
    for name, topic in ("at", "at", "bt", "au"):
        await patient.sql.execute("SELECT pulse.submit($1, topic => $2)", name, topic)
    await patient.sql.execute("SELECT pulse.submit('a', topic => 't', timeout_s => 5)")
    await patient.sql.execute("INSERT INTO pulse.handlers (name, topic, stall_s) VALUES ('b', 't', 1)")
    await patient.sql.execute("INSERT INTO pulse.topics (topic, stall_s) VALUES ('u', 1)")
    await patient.sql.execute(LEASE, "here/b/1/12.34/w", 60)
    await patient.sql.execute("UPDATE pulse.jobs SET started_at = now() - interval '20 min'")
    (row,) = (await look(patient.dsn, WITHIN_S)).rows["queue_running"]
    assert (row["name"], row["topic"], row["jobs"], row["worker"]) == ("a", "t", 2, "here/b/1/12.34/w")
    text = said((await patient.found())["running"])
    what = "2 jobs run, the first one for 20 min, and no timeout_s or stall_s would end it"
    assert text == f"handler 'a' of topic 't': {what}"


async def test_what_a_server_asks_is_bounded(patient: Patient) -> None:
    await patient.sql.execute(
        "INSERT INTO pulse.attempts (job_id, attempt, outcome, ended_at)"
        " SELECT gen_random_uuid(), 1, CASE n % 100 WHEN 0 THEN 'crashed' ELSE 'error' END, now() - n * interval '1 s'"
        " FROM generate_series(1, 50000) n"
    )
    await patient.sql.execute("ANALYZE pulse.attempts")
    for question in ("queue_attempts", "queue_hosts"):
        plan = "\n".join(row[0] for row in await patient.sql.fetch(f"EXPLAIN {QUESTIONS[question].sql}"))
        assert "idx_attempts_lost" in plan, plan
        assert "Seq Scan on attempts" not in plan, plan


async def test_a_database_that_is_away(patient: Patient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        silent = f"postgresql://ann:{SECRET}@127.0.0.1:{mute.getsockname()[1]}/x"
        with socket.create_server(("127.0.0.1", 0)) as closed:
            nobody = f"postgresql://ann:{SECRET}@127.0.0.1:{closed.getsockname()[1]}/x"
        for dsn in (silent, nobody, re.sub(r"/pulse_test_\w+", "/no_such_database", patient.dsn)):
            from_s = time.monotonic()
            seen = await look(dsn, 1.0)
            assert time.monotonic() - from_s < 3.0
            database, *others = judge(seen, CheckContext(), grace_s=60.0)
            assert (database.check, database.state) == ("database", State.WRONG)
            assert SECRET not in database.text
            assert {one.state for one in others} == {State.SKIPPED}


@pytest.mark.parametrize(("mode", "state"), [("session", State.WARNING), ("transaction", State.WRONG)])
async def test_pooler(patient: Patient, mode: str, state: State) -> None:
    """The doctor sees a PgBouncer in between, and says what it does to sessions; all other checks work through it."""
    with bouncer(patient.dsn, mode) as dsn:
        found = await patient.found(dsn=dsn, served=set())
        assert await limits_left(dsn) == {"0", "on"}
    assert found.get("pooler", found["database"]).state is state, found
    assert {name: one.text for name, one in found.items() if name != "pooler" and one.state is not State.OK} == {}


async def limits_left(dsn: str) -> set[str]:
    """Settings in the sessions that a pooler hands on to others."""
    sessions = [await asyncpg.connect(dsn, statement_cache_size=0) for _ in range(2)]
    for session in sessions:  # each in a transaction of its own: then they have different ones
        await session.execute("BEGIN")
    found = {
        await session.fetchval(f"SELECT current_setting('{name}')")
        for session in sessions
        for name in ("statement_timeout", "lock_timeout", "enable_seqscan", "enable_bitmapscan")
    }
    for session in sessions:
        session.terminate()
    await checkpoint()
    return found


@pytest.mark.rest
async def test_hosts_of_two_clusters(patient: Patient, empty_dsn: str) -> None:
    """A DSN with a host of another cluster is wrong; one that names a host twice, or one that is down, is not."""
    mine, other = (dict(parse_qsl(urlsplit(one).query)) for one in (patient.dsn, empty_dsn))
    both = f"postgresql:///postgres?user={mine['user']}&port={mine['port']},{other['port']}&host={mine['host']},"
    assert (await patient.found())["clusters"].state is State.OK
    assert (await patient.found(dsn=both + mine["host"]))["clusters"].state is State.OK
    assert (await patient.found(dsn=f"{both}/nowhere"))["clusters"].state is State.OK
    found = (await patient.found(dsn=both + other["host"]))["clusters"]
    assert (found.state, found.text) == (State.WRONG, "PULSE_DSN names hosts of 2 clusters")
    assert len({line.rpartition(" ")[2] for line in found.advice[:2]}) == 2
    roles = f"{both}{other['host']}&target_session_attrs=standby"  # what the DSN asks for is not asked of each host
    assert (await patient.found(dsn=roles))["clusters"].state is State.WRONG


async def test_what_others_have_added(patient: Patient) -> None:
    assert (await patient.found())["additions"].state is State.OK
    await patient.sql.execute(
        """
        CREATE SCHEMA mine;
        CREATE FUNCTION mine.nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
        CREATE TRIGGER swallow BEFORE INSERT ON pulse.jobs FOR EACH ROW EXECUTE FUNCTION mine.nothing();
        CREATE RULE aside AS ON DELETE TO pulse.schedules DO INSTEAD NOTHING;
        CREATE TABLE public.orders (job uuid REFERENCES pulse.jobs);
        CREATE TRIGGER elsewhere BEFORE INSERT ON public.orders FOR EACH ROW EXECUTE FUNCTION mine.nothing();
        ALTER TABLE pulse.topics ENABLE ROW LEVEL SECURITY;
        """
    )
    finding = (await patient.found())["additions"]
    assert finding.state is State.WARNING
    assert [line.split(" ", 2)[:2] for line in said(finding).splitlines()] == [
        ["reference", "of"], ["trigger", "swallow"], ["rule", "aside"], ["row", "security"],
    ]  # fmt: skip
    await patient.sql.execute("ALTER TABLE pulse.hosts SET UNLOGGED")
    finding = (await patient.found())["additions"]
    assert (finding.state, finding.text) == (State.WRONG, "pulse.hosts is unlogged: a crash of the server empties it")
