"""Faults inside the database, made for real under a load: the queue lives, and is fast again without a hand."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

import asyncpg
import pytest

from pulse.common.ids import uuid7
from tests.support.admin.notify_queue import NotifyQueue
from tests.support.systems.epoch_kit import Load
from tests.support.systems.fault_kit import Trial, trial
from tests.support.systems.system_kit import ACTORS
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.heavy, pytest.mark.patient]

SHORT_S: Final = 3.0  # how long a fault lasts that touches no lease
FUNCTION: Final = """
    CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'not with me'; END $$"""
RAISE: Final = """
    CREATE TRIGGER refuse_{status} BEFORE UPDATE ON pulse.jobs FOR EACH ROW
    WHEN (new.id = '{job}' AND new.status = '{status}') EXECUTE FUNCTION public.refuse()"""
PARDON: Final = "DROP FUNCTION public.refuse() CASCADE"
TOAST: Final = """
    DO $$
    DECLARE
        place oid := (SELECT reltoastrelid FROM pg_class WHERE oid = 'pulse.jobs'::regclass);
    BEGIN
        UPDATE pg_class SET relkind = 'r' WHERE oid = place;
        EXECUTE format('DELETE FROM %s WHERE chunk_seq > 0', place::regclass);
        UPDATE pg_class SET relkind = 't' WHERE oid = place;
    END $$"""
BIG: Final = """
    SELECT pulse.submit('nap', jsonb_build_object('seconds', 0, 'filling', string_agg(gen_random_uuid()::text, '')),
                        id => $1, run_at => now() + interval '2 s')
    FROM generate_series(1, 2000)"""
SUBMIT: Final = """SELECT pulse.submit('nap', '{"seconds": 0}', id => $1)"""
SET_ASIDE: Final = "SELECT sqlstate FROM pulse.set_aside WHERE job_id = $1"
FROZEN: Final = "SELECT bool_and(age(datfrozenxid) < 1000000000) FROM pg_database"


@pytest.fixture(scope="module")
def one() -> Iterator[Trial]:
    with trial() as made:
        yield made


def made(one: Trial, sql: str, **names: object) -> None:
    async def executed() -> None:
        connection = await asyncpg.connect(one.database.dsn)
        try:
            await connection.execute(sql.format(**names) if names else sql)
        finally:
            await connection.close(timeout=5)

    asyncio.run(executed())


@pytest.mark.rest
def test_a_trigger_that_raises_for_one_job(one: Trial) -> None:
    """Such jobs wait, at their claim or their end; all others run; they end when nothing raises any more."""
    jobs = {status: uuid7() for status in ("RUNNING", "COMPLETED")}
    with one.load() as load:
        made(one, FUNCTION)
        for status, job in jobs.items():
            made(one, RAISE, job=job, status=status)
            one.sql.rows(SUBMIT, job)  # by SQL it is not handed out in its submit
        before = len(load.acked)
        one.hold(SHORT_S)
        assert len(load.acked) > before + 30
        one.completed(load.acked[: len(load.acked) - 20])
        assert [one.sql.value(SET_ASIDE, job) for job in jobs.values()] == ["P0001"] * 2
        assert one.doctor("set-aside")["state"] == "wrong"
        assert "P0001" in str(one.doctor("set-aside"))
        made(one, PARDON)
    one.completed([*jobs.values()])
    assert [one.whole.jobs().get(job).attempts for job in jobs.values()] == [1, 1]


@pytest.mark.rest
def test_a_corrupt_value_in_one_job(one: Trial) -> None:
    """That job is set aside with the database's words; all others of its topic run."""
    job = uuid7()
    with one.load() as load:
        one.sql.rows(BIG, job)
        made(one, TOAST)
        until(lambda: one.refusals("XX001"), "it is found")
        before = len(load.acked)
        one.hold(SHORT_S)
        one.completed(load.acked[: before + 100])
        assert one.sql.value(SET_ASIDE, job) == "XX001"
        assert "XX001" in str(one.doctor("set-aside"))
    made(one, "VACUUM pulse.jobs")  # until then the dead pieces block the living ones
    made(one, "DELETE FROM pulse.jobs WHERE id = '{job}'", job=job)


@pytest.mark.rest
def test_a_constraint_that_was_dropped(one: Trial) -> None:
    """Reports wait for the key that tells attempts apart, and are written when it is there again."""
    with one.load():
        made(one, "ALTER TABLE pulse.attempts DROP CONSTRAINT attempts_pkey")
        job = one.whole.jobs().submit("fail", {"text": "x"}, max_attempts=1)
        until(lambda: one.refusals("42P10"), "it is told")
        one.hold()
        assert "42P10" in one.whole.command("ctl", "status").stdout
        made(one, "ALTER TABLE pulse.attempts ADD PRIMARY KEY (job_id, attempt)")
    assert one.whole.jobs().wait(job, "DEAD_LETTERED").attempts == 1


@pytest.mark.rest
def test_a_full_queue_of_notify(one: Trial) -> None:
    """Jobs run as before, submits by SQL and pauses go on, and the doctor names the session that keeps it full."""
    with asyncio.Runner() as runner:
        queue = NotifyQueue(one.database.dsn)
        with one.load() as load:
            runner.run(queue.fill())
            before = len(load.acked)
            job = uuid7()
            one.sql.rows(SUBMIT, job)
            assert one.whole.command("ctl", "dispatch", "pause", "--topic", "other").returncode == 0
            assert one.whole.command("ctl", "dispatch", "resume", "--topic", "other").returncode == 0
            found = one.doctor("notifications")
            assert found["state"] == "warning"
            assert str(queue.pid) in str(found)
            one.hold(SHORT_S)
            one.completed([job, *load.acked[: before + 100]])
            runner.run(queue.close())


@pytest.mark.rest
def test_a_stop_before_wraparound(one: Trial) -> None:
    """Nothing can be written; jobs from before end when somebody has frozen the old rows."""
    made(one, "CREATE TABLE public.old AS SELECT 1; UPDATE pg_database SET datallowconn = true")
    old = one.database.data_dir / str(one.sql.value("SELECT pg_relation_filepath('public.old')"))
    aside = old.with_suffix(".aside")
    with one.load():
        one.near_wraparound("public.old", lambda: old.rename(aside))  # a table that autovacuum cannot freeze
        until(lambda: one.refusals("54000"), "it is told")
        one.hold()
        until(lambda: "54000" in one.whole.command("ctl", "status").stdout, "status tells it")
        aside.rename(old)
        for name in ("template0", "template1", "postgres"):
            one.program("vacuumdb", *one.place[:-2], "-q", "--freeze", name)
        assert one.sql.value(FROZEN)


def dumped(one: Trial) -> str:
    """The schema and its data, by pg_dump; the file."""
    path = str(one.database.data_dir / "dump")
    one.program("pg_dump", *one.place, "-Fc", "-n", "pulse", "-f", path)
    return path


@pytest.mark.rest
def test_a_restore_into_the_live_database(one: Trial) -> None:
    """pg_restore --clean drops the tables under the actors: they wait, and no attempt number begins twice."""
    before, epoch = one.whole.pids(), one.sql.value("SELECT max(epoch) FROM pulse.epochs")
    dump = dumped(one)
    with Load(one.whole) as load:
        one.hold(1.0)
        one.program("pg_restore", *one.place, "--clean", "--if-exists", dump)
        one.is_fast(load)
    assert one.sql.value("SELECT max(epoch) = $1 + 1 FROM pulse.epochs", epoch)
    assert one.whole.pids() == before
    one.ran_once()


@pytest.mark.rest
def test_a_schema_that_is_away_for_a_while(one: Trial) -> None:
    """Actors wait, and none that starts meanwhile installs one of its own."""
    dump = dumped(one)
    with Load(one.whole) as load:
        one.hold(1.0)
        made(one, "DROP SCHEMA pulse CASCADE")
        killed = {name: one.whole.kill_actor(name) for name in ("dispatcher", "watchdog")}
        one.hold()
        assert one.sql.value("SELECT to_regnamespace('pulse') IS NULL")
        one.program("pg_restore", *one.place, dump)
        one.is_fast(load)
    for name, pid in killed.items():
        one.whole.wait_actor(name, not_pid=pid)
    restarts = {row["name"]: row["restarts"] for row in one.whole.ask_supervisor("status")["actors"]}
    assert restarts == dict.fromkeys(ACTORS, 0) | dict.fromkeys(killed, 1)
    one.ran_once()
