"""A whole system whose server logs in with only its role: it does what others do, and says what it lacks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import psutil
import pytest

from tests.support.admin.roles_kit import forget
from tests.support.commandline.cli import environment, run
from tests.support.servers.postgres import Postgres
from tests.support.systems.site_kit import Site
from tests.support.systems.system_kit import SHORT_LEASE, Whole, place
from tests.support.waiting import until

if TYPE_CHECKING:
    from asyncpg import Connection, Record

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system, pytest.mark.rest]

PREFIX: Final = f"w{os.getpid()}_"
MARK: Final = "mark-of-a-secret"  # in every password and key here; nothing that anybody sees may have it
SETTINGS: Final = {
    **SHORT_LEASE, "PULSE_RETENTION_S": "1", "PULSE_LOG_LEVEL": "debug", "PULSE_LISTEN": "127.0.0.1:0",
    "PULSE_AUTH_USERS": f"ann:{MARK}-of-ann,bob:{MARK}-of-bob:viewer",
}  # fmt: skip
END_S: Final = 30.0


class Database:
    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._runner = asyncio.Runner()
        self._sql: Connection[Record] = self._runner.run(asyncpg.connect(dsn))

    def dsn_of(self, name: str) -> str:
        return re.sub(r"user=[^&]*", f"user={PREFIX}{name}", self.dsn)

    def ask(self, sql: str, *given: object) -> Any:
        return self._runner.run(self._sql.fetchval(sql, *given))

    def do(self, sql: str) -> None:
        self._runner.run(self._sql.execute(sql))

    def ask_as(self, name: str, sql: str) -> Any:
        """One value, asked by the login *name*."""
        return self._runner.run(self._asked_as(name, sql))

    async def _asked_as(self, name: str, sql: str) -> Any:
        session = await asyncpg.connect(self.dsn_of(name))
        try:
            return await session.fetchval(sql)
        finally:
            await session.close(timeout=5)

    def close(self) -> None:
        self._runner.run(forget(self._sql, PREFIX))
        self._runner.run(self._sql.close(timeout=5))
        self._runner.close()


@pytest.fixture(scope="module")
def database(newest_server: Postgres) -> Iterator[Database]:
    with newest_server.database(installed=False) as dsn, contextlib.closing(Database(dsn)) as made:
        words = ["migrate", "--roles", "--roles-prefix", PREFIX]
        done = run([*words, "--dsn", dsn], environment())
        assert (done.code, done.err) == (0, "")
        first, second, third, fourth = done.out.splitlines()
        assert first.startswith("schema pulse installed, version ")
        assert second.endswith(f"; new: {PREFIX}owner, {PREFIX}server, {PREFIX}submit, {PREFIX}read")
        assert third == f"members of {PREFIX}owner, who may upgrade: none but superusers"
        assert f"IN ROLE {PREFIX}server;" in fourth
        assert "; new:" not in run(words, environment(PULSE_DSN=dsn)).out
        made.do(f"CREATE ROLE {PREFIX}app LOGIN IN ROLE {PREFIX}server")
        made.do(f"CREATE ROLE {PREFIX}shop LOGIN IN ROLE {PREFIX}submit")
        made.do(f"CREATE ROLE {PREFIX}nobody LOGIN")
        yield made


@pytest.fixture(scope="module")
def whole(database: Database) -> Iterator[Whole]:
    dsn = f"{database.dsn_of('app')}&password={MARK}-of-the-database"  # which lets him in without it
    with place(None, **SETTINGS, PULSE_DSN=dsn) as made:
        made.start()
        made.pool(env={"PULSE_CODEC_KEYS": f"{MARK}-key"})
        yield made


def test_everything_works(site: Site, database: Database) -> None:
    """Jobs of all ends, schedules, pauses, policies, bulk changes, retention, SQL submits: nothing is refused."""
    whole, jobs = site.whole, site.whole.jobs()
    done = [jobs.submit("mark", {"n": number}) for number in range(50)]
    again = [jobs.submit("retry-once", {"seconds": 0.01}), jobs.submit("snooze-once", {"seconds": 0.01})]
    dead = jobs.submit("discard")
    held = jobs.submit("hold", {"gate": str(whole.gate("roles"))})
    expired = jobs.submit("mark", topic=site.topic, expires_in_s=0.2)
    for job in (*done, database.ask_as("shop", "SELECT pulse.submit('mark', '{\"n\": 51}')")):
        whole.wait_entry(job, "end")
    for job in again:
        whole.wait_entry(job, "end", attempt=2)
    whole.wait_entry(held)
    assert jobs.wait(dead, "DEAD_LETTERED").last_error == "no such customer"
    killed = jobs.submit("die", {"how": 9}, max_attempts=1)
    assert "SIGKILL" in str(jobs.wait(killed, "RETRYING", "DEAD_LETTERED").last_error)
    assert "expired" in str(jobs.wait(expired, "DEAD_LETTERED").last_error)
    site.ctl("jobs", "cancel", str(held))
    site.ctl("jobs", "retry", str(dead))
    jobs.wait(dead, "DEAD_LETTERED")
    waiting = site.jobs(3)
    site.ctl("jobs", "change", "--topic", site.topic, "--priority", "3", "--yes")
    site.ctl("jobs", "cancel", "--topic", site.topic, "--yes")
    site.ctl("jobs", "delete", str(waiting[0]))

    schedule = site.told("schedules", "create", "occur", "--every", "0.2", "--jitter", "0.1", "--overlap", "queue")[
        "id"
    ]
    cron = site.told("schedules", "create", "occur", "--cron", "0 7 * * *")["id"]
    count = "SELECT count(*) FROM pulse.schedules WHERE last_run_at IS NOT NULL AND id = $1::text::uuid"
    until(lambda: database.ask(count, schedule), "an occurrence", END_S)
    for command in ("pause", "resume", "trigger", "delete"):
        site.ctl("schedules", command, schedule)
    site.ctl("schedules", "update", cron, "--cron", "0 8 * * *")
    site.told("dispatch", "pause", "--topic", site.topic, "--reason", "a look", "--for", "1")
    site.told("dispatch", "resume", "--topic", site.topic)
    site.ctl("topics", "set", site.topic, "--stall", "5", "--backoff", "fixed:1", "--lease", "60")
    site.ctl("topics", "unset", site.topic)
    for words in (("topics", "list"), ("workers",), ("jobs", "why", str(expired)), ("dispatch", "status")):
        site.told(*words)
    gone = "SELECT count(*) = 0 FROM pulse.jobs WHERE status = 'COMPLETED' AND submitted_at < now() - interval '4 s'"
    until(lambda: database.ask(gone), "the retention", END_S)
    assert {note["user_name"] for note in site.noted()} != {f"{PREFIX}app"}  # who asked, not the server
    log = whole.errors.read_text("utf-8")
    assert [line for line in log.splitlines() if "denied" in line or "actor_failed" in line] == []


def test_what_the_doctor_says(site: Site, database: Database) -> None:
    """The role has no more rights than it must; which right is missing, and its GRANT; what an owner may do."""
    role = f"ok       role: the role {PREFIX}app "
    assert f"{role}owns nothing of pulse and is no superuser\n" in site.whole.command("doctor").stdout
    database.do(f"GRANT pg_read_all_stats TO {PREFIX}app; REVOKE DELETE ON pulse.attempts FROM {PREFIX}server")
    said = site.whole.command("doctor")
    assert said.returncode == 1
    assert "wrong    rights: the role may not delete pulse.attempts\n" in said.stdout
    assert f"GRANT DELETE ON pulse.attempts TO {PREFIX}app;" in said.stdout
    run(["migrate", "--roles", "--roles-prefix", PREFIX, "--dsn", database.dsn], environment())
    assert "ok       rights: the role may do all that pulse does\n" in site.whole.command("doctor").stdout
    database.do(f"GRANT {PREFIX}owner TO {PREFIX}app")
    assert f"{role}owns the schema, and may change or drop it" in site.whole.command("doctor").stdout
    database.do(f"REVOKE {PREFIX}owner FROM {PREFIX}app")
    assert site.whole.command("check").returncode == 0


def test_a_right_that_is_taken_away_meanwhile(site: Site, database: Database) -> None:
    """The server waits, says why, and goes on by itself when the right is back; no job is lost."""
    database.do(f"REVOKE UPDATE ON pulse.jobs FROM {PREFIX}server")
    job = site.whole.jobs().submit("mark", {"n": 1}, delay_s=0.1)
    log = site.whole.errors
    until(lambda: "permission denied for table jobs" in log.read_text("utf-8"), "the reason in the log", END_S)
    database.do(f"GRANT UPDATE ON pulse.jobs TO {PREFIX}server")
    site.whole.wait_entry(job, "end")
    assert "actor_failed" not in log.read_text("utf-8")


def test_no_secret_is_told(whole: Whole, database: Database) -> None:
    """Neither in the output of commands, nor in logs, errors, processes or sessions of the database."""
    seen: dict[str, str] = {}
    for line in (
        "ctl status",
        "ctl status --json",
        "ctl logs --lines 1000",
        "ctl audit --since 1h --json",
        "ctl top --once",
        "doctor",
        "check",
        "migrate",
        "migrate --roles",
        "ctl --connect 127.0.0.1:1 ping",
    ):
        done = whole.command(*line.split())
        seen[line] = done.stdout + done.stderr
    for wrong in (
        "postgresql://u:{}@127.0.0.1:1/x",
        "postgresql://u:{}@host:port/db",
        "host=/nowhere password={}",
        "mysql://u:{}@h/d",
    ):
        refused = run(["migrate"], environment(PULSE_DSN=wrong.format(MARK)))
        assert refused.code != 0, wrong
        seen[f"PULSE_DSN={wrong}"] = refused.out + refused.err
    assert whole.process is not None
    tree = [psutil.Process(whole.process.pid), *psutil.Process(whole.process.pid).children(recursive=True)]
    tree += [one for one in psutil.process_iter() if str(whole.runtime_dir) in str(_env_of(one)) and one not in tree]
    assert len(tree) > 5
    for process in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            seen[f"the title of {process.name()}"] = " ".join(process.cmdline())
    for path in whole.directory.rglob("*"):
        if path.is_file():
            seen[str(path)] = path.read_text("utf-8", "replace")
    assert any("supervisor_ready" in text for text in seen.values())
    assert "password=***" in seen["ctl status"]  # it has one, and
    assert MARK in tree[0].environ()["PULSE_DSN"]  # it is this
    sessions = "SELECT string_agg(a::text, ' ') FROM pg_stat_activity a WHERE datname = current_database()"
    seen["pg_stat_activity"] = re.sub(r"\S*string_agg.*", "", database.ask(sessions))
    assert [where for where, text in seen.items() if MARK in text] == []


def _env_of(process: psutil.Process) -> object:
    try:
        return process.environ().get("PULSE_RUNTIME_DIR")
    except psutil.Error:
        return None


def test_roles_that_cannot_run_a_server(database: Database) -> None:
    """A role that may not even read the schema gets one line that says what to do; no traceback."""
    with place(database.dsn_of("nobody")) as whole:
        assert whole.spawn().wait(END_S) == 1
        last = whole.errors.read_text("utf-8").splitlines()[-1]
        assert f'role "{PREFIX}nobody" may not use the schema pulse' in last.replace("\\", "")
        whole.process = None


def test_migrate_by_whom_may_not(database: Database) -> None:
    """One line with the missing right; --print shows what a superuser may run; a wrong prefix is refused."""
    words = ["migrate", "--roles", "--roles-prefix"]
    done = run([*words, PREFIX, "--dsn", database.dsn_of("app")], environment())
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert f'role "{PREFIX}app" may not do that: ' in done.err
    assert f"pulse migrate --roles --roles-prefix {PREFIX} --print" in done.err
    shown = run([*words, "other_", "--print"], environment())
    assert (shown.code, shown.err) == (0, "")
    assert 'GRANT USAGE ON SCHEMA pulse TO "other_server", "other_submit", "other_read";' in shown.out
    assert ":" + '"' not in shown.out
    for wrong, said in (
        (["--print"], "--print is allowed with --roles only"),
        (["--roles", "--roles-prefix", "pg_x"], "'pg_x'; 1 to 50"),
    ):
        refused = run(["migrate", *wrong], environment())
        assert (refused.code, said in refused.err) == (2, True), refused
