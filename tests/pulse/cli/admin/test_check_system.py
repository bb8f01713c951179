"""``pulse check`` as a whole process, against a real PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import asyncpg
import pytest

from tests.support.commandline.cli import Done, environment, run, run_on_terminal
from tests.support.servers.fake_dispatcher import RuntimeDir
from tests.support.servers.postgres import Postgres
from tests.support.systems.system_kit import place

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system]

BROKEN = "UPDATE pulse.jobs SET uncharged = attempts, started_at = now() WHERE name = 'odd'"


@pytest.fixture
def odd(own_database: str) -> str:
    execute(
        own_database, "SELECT count(*) FROM (SELECT pulse.submit('odd') FROM generate_series(1, 7)) AS made", BROKEN,
        "UPDATE pulse.sweep_mark SET swept_at = clock_timestamp()",
    )  # fmt: skip
    return own_database


def execute(dsn: str, *statements: str) -> None:
    async def run_all() -> None:
        connection = await asyncpg.connect(dsn)
        for statement in statements:
            await connection.execute(statement)
        await connection.close()

    asyncio.run(run_all())


def check(dsn: str, *words: str) -> Done:
    return run(["check", "--dsn", dsn, *words], environment())


def test_a_sound_database(own_database: str) -> None:
    execute(own_database, "UPDATE pulse.sweep_mark SET swept_at = clock_timestamp()")
    done = check(own_database)
    assert (done.code, done.err) == (0, "")
    *lines, last = done.out.splitlines()
    assert all(line.startswith("ok ") for line in lines)
    assert "leases: I3: a RUNNING job has a holder and a lease, and no other job has either (" in done.out
    assert last == f"{len(lines)} invariants hold"


def test_a_stopped_system(own_database: str) -> None:
    """Checks that need a running system are skipped, and named; that alone is no failure."""
    execute(own_database, "UPDATE pulse.sweep_mark SET swept_at = clock_timestamp() - interval '1 h'")
    done = check(own_database)
    assert done.code == 0
    assert re.search(r"\nskipped   lapsed: I13: a lapsed lease is reaped: no watchdog has swept for 36\d\d s", done.out)
    assert done.out.endswith("invariants hold, 3 could not be tested\n")


def test_violations(odd: str) -> None:
    done = check(odd, "--examples", "2")
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert done.err == "pulse: these invariants do not hold: counters\n"
    lines = done.out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("violated"))
    assert ": 7 violations (" in lines[at]
    assert all("PENDING, attempts 0, uncharged 0, crashes 0, started_at 20" in line for line in lines[at + 1 : at + 3])
    assert lines[at + 3] == "          and 5 more"


@pytest.mark.rest
def test_json(odd: str) -> None:
    done = check(odd, "--json", "--examples", "1")
    assert (done.code, done.err.count("\n")) == (1, 1)
    document = json.loads(done.out)
    assert document["ok"] is False
    bad = [one for one in document["checks"] if one["state"] != "ok"]
    [counters] = bad
    assert set(counters) == {"name", "what", "state", "violations", "examples", "reason", "took_s"}
    assert (counters["name"], counters["state"], counters["violations"], counters["reason"]) == (
        "counters", "violated", 7, None,
    )  # fmt: skip
    [example] = counters["examples"]
    assert set(example) == {"id", "detail"}
    execute(odd, "DELETE FROM pulse.jobs")
    done = check(odd, "--json")
    assert (done.code, json.loads(done.out)["ok"]) == (0, True)


def test_on_a_terminal(odd: str) -> None:
    done = run_on_terminal(["check", "--dsn", odd], environment())
    assert "\r\x1b[Kchecking 1 of " in done.out
    assert done.out.rpartition("checking")[2].count("\r\x1b[K") >= 1
    assert "\x1b[1;31mviolated" in done.out


@pytest.mark.rest
def test_the_audit(own_database: str) -> None:
    assert check(own_database, "--audit").err == "pulse: no audit is installed; `pulse check --install-audit` does it\n"
    first = check(own_database, "--install-audit")
    assert (first.code, first.err) == (0, "")
    assert first.out.startswith("audit installed")
    assert check(own_database, "--install-audit").err == "pulse: an audit is installed already\n"
    execute(own_database, "SELECT pulse.submit('x')", "UPDATE pulse.jobs SET args = '{\"changed\": true}'")
    assert check(own_database).code == 0
    assert check(own_database, "--audit").err.endswith("do not hold: unchanged\n")
    assert check(own_database, "--remove-audit").out == "audit removed\n"
    assert check(own_database, "--remove-audit").out == "there was no audit\n"


def test_bad_usage(own_database: str, tmp_path: Path) -> None:
    done = check(own_database, "--audit", "--remove-audit")
    assert (done.code, done.err.count("\n")) == (2, 1)
    with RuntimeDir() as nothing:
        done = run(["check"], environment(nothing.path, PULSE_STATE_DIR=str(tmp_path)))
    assert done.code == 2
    assert f"no embedded PostgreSQL runs in {tmp_path}/postgres" in done.err


def test_a_database_without_pulse(server: Postgres) -> None:
    with server.database(installed=False) as empty:
        done = check(empty)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("pulse: the schema pulse is not installed")


@pytest.mark.rest
def test_the_embedded_database_is_found() -> None:
    """Of the running server, without its state directory; and by the state directory alone."""
    with place(None) as whole:
        whole.start()
        told = {key: value for key, value in whole.env.items() if key != "PULSE_STATE_DIR"}
        found = {key: value for key, value in whole.env.items() if key != "PULSE_RUNTIME_DIR"}
        for env in (told, found):
            done = run(["check"], env)
            assert (done.code, done.err) == (0, "")
            assert done.out.endswith("invariants hold\n")
