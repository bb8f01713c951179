"""Two supervisors with workers on one database, each with a schema of its own; one of them has a hostile name."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import pytest

from pulse.security.schema_name import DEFAULT, quoted
from pulse.store.connections.pool import Target, connect
from tests.support.hostile import HOSTILE
from tests.support.servers.postgres import Postgres
from tests.support.store.helpers import forge
from tests.support.systems.system_kit import SHORT_LEASE, Whole, place
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system, pytest.mark.rest]

POLL_S: Final = 60.0  # what begins sooner has begun because of a notification
SOON_S: Final = 20.0
FENCED: Final = "tests.support.apps.fenced_app:app"
_EFFECTS: Final = """
    CREATE TABLE public.runs (job uuid, attempt int, worker text, at timestamptz DEFAULT clock_timestamp());
    CREATE TABLE public.effects (job uuid, attempt int)
"""
_JOB: Final = "SELECT status::text || ' ' || coalesce(last_error, '') FROM pulse.jobs WHERE id = $1"


class Tenant:
    """One of the two: its system with a pool, and a session whose SQL is rendered for its schema."""

    def __init__(self, whole: Whole, schema: str) -> None:
        self.whole = whole
        self.schema = schema
        self.jobs = whole.jobs()
        self._runner = asyncio.Runner()
        self._session = self._runner.run(connect(Target(whole.dsn, "pulse-tests", schema), {}))

    def ask(self, sql: str, *given: object) -> Any:
        return self._runner.run(self._session.fetchval(sql, *given))

    def forge_lapsed(self) -> UUID:
        """A job whose worker, on another host, has been silent for long."""
        now = datetime.now(tz=UTC)
        times = dict.fromkeys(("submitted_at", "next_run_at", "started_at", "lease_until"), now)
        held = {"locked_by": "gone/b/1/2.3/w", "topic": "nobody"}
        return UUID(bytes=self._runner.run(forge(self._session, "RUNNING", **times, **held)))

    def told(self, *words: str) -> Any:
        """What a command says, whether it finds something wrong or not: the database of the tests has no fsync."""
        return json.loads(self.whole.command(*words, "--json").stdout)

    def close(self) -> None:
        self._runner.run(self._session.close(timeout=5))
        self._runner.close()


@pytest.fixture(scope="module")
def tenants(newest_server: Postgres) -> Iterator[list[Tenant]]:
    settings = {**SHORT_LEASE, "PULSE_POLL_S": str(POLL_S), "PULSE_DSN": ""}
    with newest_server.database(installed=False) as dsn, contextlib.ExitStack() as stack:
        made: list[Tenant] = []
        for schema in (DEFAULT, HOSTILE):
            named = {} if schema == DEFAULT else {"PULSE_SCHEMA": schema}
            whole = stack.enter_context(place(dsn, **settings, **named))
            whole.start()
            whole.pool("--processes", "2")
            made.append(stack.enter_context(contextlib.closing(Tenant(whole, schema))))
            done = whole.command("check", "--dsn", dsn, "--install-audit")
            assert done.returncode == 0, done
        yield made


def test_jobs_begin_at_once_and_only_in_their_own_queue(tenants: list[Tenant]) -> None:
    """Of the client, and of SQL, whose notification wakes the one that is meant; the same id is another job."""
    ours, theirs = tenants
    for one in tenants:
        for _ in range(5):
            job = one.ask("""SELECT pulse.submit('mark', '{"n": 1}')""")
            one.whole.wait_entry(job, "end", within_s=SOON_S)
        one.jobs.wait(one.jobs.submit("mark", {"n": 2}), within_s=SOON_S)
    same = UUID(int=7)
    for one in tenants:
        one.jobs.submit("mark", {"n": one.schema}, id=same)
        assert one.jobs.wait(same, within_s=SOON_S).result == {"n": one.schema}
    starts = [{entry.job for entry in one.whole.entries(event="start")} for one in tenants]
    assert starts[0] & starts[1] == {same}
    assert [one.ask("SELECT count(*) FROM pulse.jobs WHERE name = 'mark'") for one in tenants] == [7, 7]
    assert [ours.whole.log("listen_failed"), theirs.whole.log("listen_failed")] == [[], []]


def test_schedules_fire_and_leases_lapse_in_both(tenants: list[Tenant]) -> None:
    lapsed = [one.forge_lapsed() for one in tenants]
    plans = [one.ask("""SELECT pulse.create_schedule('mark', args => '{"n": 3}', every_s => 1)""") for one in tenants]
    for one, plan, job in zip(tenants, plans, lapsed, strict=True):
        fired = "SELECT count(*) FROM pulse.jobs WHERE schedule_id = $1 AND status = 'COMPLETED'"
        until(lambda: one.ask(fired, plan) >= 2, "it fires", SOON_S)  # noqa: B023 - it is called here
        assert one.ask("SELECT pulse.delete_schedule($1)", plan)
        until(lambda: "worker lease expired" in one.ask(_JOB, job), "it is reaped", SOON_S)  # noqa: B023
        one.jobs.client.cancel(job)


def test_a_worker_dies_in_one(tenants: list[Tenant]) -> None:
    """Its job runs again there; the other queue has nothing to do with it."""
    ours, theirs = tenants
    gate = theirs.whole.gate("dies")
    job = theirs.jobs.submit("hold", {"gate": str(gate)})
    os.kill(theirs.whole.wait_entry(job).pid, signal.SIGKILL)
    theirs.whole.wait_entry(job, attempt=2, within_s=SOON_S)
    gate.touch()
    assert theirs.jobs.wait(job).attempts == 2
    assert (len(theirs.whole.log("worker_died")), ours.whole.log("worker_died")) == (1, [])


def test_transactions_of_handlers_complete_their_job_there(tenants: list[Tenant]) -> None:
    """The server tells workers the schema: their environment does not name it, also not in isolated jobs."""
    tenants[0].whole.rows(_EFFECTS.split(";")[0])
    tenants[0].whole.rows(_EFFECTS.split(";")[1])
    for one in tenants:
        one.whole.pool("--topic", "pay", app=FENCED, env={"PULSE_SCHEMA": ""})
        for handler in ("pay-async", "pay-plain", "pay-apart"):
            dsn = one.whole.dsn
            job = one.jobs.submit(handler, {"direct": dsn, "dsn": dsn}, topic="pay")
            assert one.jobs.wait(job, within_s=SOON_S).result == {"attempt": 1}
            assert [row[0] for row in one.whole.rows("SELECT attempt FROM public.effects WHERE job = $1", job)] == [1]


def test_commands_mean_the_schema_of_the_server(tenants: list[Tenant]) -> None:
    """The doctor, the checks with the audit, the status; also those that are not told which schema it is."""
    for one in tenants:
        assert one.told("ctl", "status")["database"]["schema"] == one.schema
        shown = one.whole.command("ctl", "status").stdout
        assert (f"schema {quoted(one.schema)}" in " ".join(shown.split())) == (one.schema != DEFAULT)
        one.whole.env.pop("PULSE_SCHEMA", None)
        checks = {row["name"]: row for row in one.told("doctor")["checks"]}
        assert checks["schema"]["text"].startswith(f"the schema {quoted(one.schema)} is at version ")
        of_database = ("database", "schema", "rights", "indexes", "additions", "watchdog", "leases", "schedules")
        assert {name: checks[name]["state"] for name in of_database} == dict.fromkeys(of_database, "ok"), checks
        found = one.told("check", "--audit")
        assert (found["ok"], {row["state"] for row in found["checks"]}) == (True, {"ok"})
        done = one.whole.command("migrate", "--dsn", one.whole.dsn, "--schema", one.schema)
        assert done.stdout.startswith(f"schema {quoted(one.schema)} is at version "), done
