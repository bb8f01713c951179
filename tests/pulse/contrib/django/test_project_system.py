"""The project in examples/django, as its developer runs it: its own tests, its commands, a worker that is a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg.conninfo
import pytest

from tests.support.servers.postgres import Postgres
from tests.support.systems.system_kit import END_S, ROOT, Pool, Whole, run
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system]

MANAGE = "examples.django.manage"
KEPT = """
from examples.django.settings import *
DATABASES["default"] |= {"CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True}
"""
POST = """
import json, sys, django
django.setup()
from django.test import Client
print(Client().post("/orders", {"customer": "Ada", "cents": sys.argv[1]}).content.decode())
"""


def database_of(dsn: str) -> dict[str, str]:
    parts = psycopg.conninfo.conninfo_to_dict(dsn)
    names = {"NAME": "dbname", "HOST": "host", "PORT": "port", "USER": "user", "PASSWORD": "password"}
    return {f"DATABASE_{key}": str(parts.get(name) or "") for key, name in names.items()}


class Project:
    """Its commands, in an environment that says nothing of pulse: what they know, they know from the settings."""

    def __init__(self, env: Mapping[str, str], dsn: str, **more: str) -> None:
        kept = {key: value for key, value in env.items() if not key.startswith("PULSE_")}
        self.env = {**kept, **database_of(dsn), "DJANGO_SETTINGS_MODULE": "examples.django.settings", **more}

    def manage(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return run(MANAGE, words, {**self.env, **more}, within_s=60)

    def done(self, *words: str) -> str:
        done = self.manage(*words)
        assert done.returncode == 0, done
        return done.stdout

    def post(self, cents: int) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-c", POST, str(cents)], env=self.env, cwd=ROOT, capture_output=True, text=True, check=True
        )
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer


@pytest.fixture(scope="module")
def project(whole: Whole) -> Project:
    made = Project(whole.env, whole.dsn, SHOP_SERVER=f"unix://{whole.path}")
    made.done("migrate")
    return made


@pytest.fixture
def elsewhere(project: Project, tmp_path: Path) -> Path:
    """Another directory; the settings there keep connections, as projects in production do."""
    (tmp_path / "kept.py").write_text(KEPT)
    return tmp_path


@pytest.fixture
def pool(whole: Whole, project: Project, elsewhere: Path) -> Iterator[Pool]:
    """What ``manage.py pulse_worker`` becomes, started from another directory."""
    env = {**project.env, "PYTHONPATH": os.pathsep.join((project.env["PYTHONPATH"], str(elsewhere)))}
    words = ["pulse_worker", "--processes", "1", "--spares=0", "--settings", "kept", "--log-format", "json"]
    errors = elsewhere / "errors"
    with errors.open("wb") as sink:
        process = subprocess.Popen([sys.executable, "-m", MANAGE, *words], env=env, stderr=sink, cwd=elsewhere)
    made = Pool(process, errors)
    try:
        until(lambda: process.poll() is not None or whole.is_connected(made), "the pool connects", END_S)
        assert process.poll() is None, made.said
        yield made
    finally:
        made.bury()


@pytest.mark.rest
def test_the_tests_of_the_project(newest_server: Postgres, whole: Whole) -> None:
    """Its database was made by ``migrate`` alone: so is the schema of pulse in it."""
    with newest_server.database(installed=False) as dsn:
        done = Project(whole.env, dsn).manage("test", "examples.django.shop.tests", "--noinput")
    assert "Ran 5 tests" in done.stderr, done.stderr
    assert done.returncode == 0, done.stderr


@pytest.mark.rest
def test_checks_of_the_project(newest_server: Postgres, whole: Whole, tmp_path: Path) -> None:
    """Those of the schema where the database is named, all others before any command."""
    with newest_server.database(installed=False) as dsn:
        empty = Project(whole.env, dsn)
        done = empty.manage("check", "--database", "default")
        assert (done.returncode, done.stderr.count("(pulse.W002)")) == (0, 1), done
        (tmp_path / "wrong.py").write_text("from examples.django.settings import *\nPULSE = {'USR': 'x'}\n")
        path = os.pathsep.join((empty.env["PYTHONPATH"], str(tmp_path)))
        done = empty.manage("pulse_worker", "--settings", "wrong", PYTHONPATH=path)
    assert done.returncode == 1
    assert "?: (pulse.E001) PULSE['USR'] is no setting; the nearest that is: USER" in done.stderr


@pytest.mark.rest
def test_a_worker_of_the_project(whole: Whole, project: Project, pool: Pool) -> None:
    """It confirms what was committed, on connections that are as good as those of a request, and stops when asked."""
    jobs = whole.jobs()
    first = project.post(1200)
    assert jobs.wait(UUID(first["job"])).result == f"order {first['order']} is confirmed"
    assert jobs.wait(jobs.submit("count-orders", {"customer": "Ada"}, topic="orders")).result == 1
    ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = ANY ($1)"
    whole.rows(ended, until(lambda: _sessions(whole, pool), "kept connections"))
    again = jobs.wait(UUID(project.post(800)["job"]))
    counted = jobs.wait(jobs.submit("count-orders", {"customer": "Ada"}, topic="orders"))
    assert (again.attempts, counted.attempts, counted.result) == (1, 1, 2)
    assert "error" in project.post(200_000)
    assert whole.rows("SELECT count(*) FROM shop_order WHERE confirmed_at IS NULL")[0][0] == 0
    pool.process.send_signal(signal.SIGTERM)
    assert pool.process.wait(END_S) == 0, pool.said


def _sessions(whole: Whole, _pool: Pool) -> list[int]:
    """Backends of the worker's connections."""
    rows = whole.rows(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%shop_order%'"
        " AND pid <> pg_backend_pid()"
    )
    return [row[0] for row in rows]
