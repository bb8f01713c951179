"""``pulse migrate --plan``: what an upgrade would do, and nothing done."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import asyncpg
import pytest
from click.testing import CliRunner

from pulse.cli.admin.migrate import migrate
from pulse.store.admin.schema import SCHEMA_VERSION
from pulse.store.admin.upgrade.plan import UPGRADE
from tests.support.admin.upgrade_kit import catalogue, make_upgrades
from tests.support.servers.postgres import Postgres
from tests.support.store.helpers import Patch
from tests.support.systems.releases import STEPS

pytestmark = [pytest.mark.process, pytest.mark.postgres]
NEXT = SCHEMA_VERSION + 1


def told(dsn: str, *words: str) -> str:
    done = CliRunner().invoke(migrate, ["--dsn", dsn, *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


async def seen(dsn: str, *statements: str) -> list[str]:
    """The catalogue, after these statements."""
    connection = await asyncpg.connect(dsn)
    for statement in statements:
        await connection.execute(statement)
    found = await catalogue(connection)
    connection.terminate()
    return found


def test_what_it_says(newest_server: Postgres, monkeypatch: Patch, tmp_path: Path) -> None:
    """Before, in the middle, and afterwards; a plan changes nothing."""
    with newest_server.database(installed=False) as dsn:
        nothing = f"the schema pulse is not there: pulse migrate installs version {SCHEMA_VERSION}\n"
        assert told(dsn, "--plan") == nothing
        told(dsn)
        assert told(dsn, "--plan") == f"schema pulse is at version {SCHEMA_VERSION}: nothing to do\n"
        make_upgrades(monkeypatch, tmp_path, STEPS.read_text())
        before = asyncio.run(seen(dsn))
        lines = told(dsn, "--plan").splitlines()
        assert lines[0] == f"schema pulse is at version {SCHEMA_VERSION}, this pulse brings {NEXT}: 6 of 6 steps to do"
        assert " ".join(lines[1].split()) == "version step state runs lock table rows size what it does"
        assert " ".join(lines[2].split()).startswith(f"{NEXT} add-region to do brief ACCESS EXCLUSIVE pulse.jobs 0 ")
        assert asyncio.run(seen(dsn)) == before

        note = (
            "INSERT INTO pulse.schema_steps "
            f"VALUES ({NEXT}, 'add-region', NULL, 0, now()), ({NEXT}, 'fill-region', 'k', 7, NULL)"
        )
        asyncio.run(seen(dsn, UPGRADE["upgrade_notes"].sql, note))
        document = json.loads(told(dsn, "--plan", "--json"))
        assert (document["found"], document["wanted"]) == (SCHEMA_VERSION, NEXT)
        add, default, fill, *_ = document["steps"]
        assert [one["state"] for one in (add, default, fill)] == ["done", "to do", "under way"]
        assert {key: fill[key] for key in ("version", "name", "kind", "lock", "table", "rows_done")} == {
            "version": NEXT, "name": "fill-region", "kind": "batches", "lock": "ROW EXCLUSIVE", "table": "pulse.jobs",
            "rows_done": 7,
        }  # fmt: skip
        assert "5 of 6 steps to do" in told(dsn, "--plan")
        assert "7 of 0" in told(dsn, "--plan")


def test_what_is_done_is_told(newest_server: Postgres, monkeypatch: Patch, tmp_path: Path) -> None:
    """Each step on stderr, and the result on stdout."""
    with newest_server.database() as dsn:
        make_upgrades(monkeypatch, tmp_path, STEPS.read_text())
        done = CliRunner().invoke(migrate, ["--dsn", dsn], catch_exceptions=False)
        assert done.stdout == f"schema pulse upgraded from version {SCHEMA_VERSION} to {NEXT}\n"
        assert done.stderr.splitlines()[0] == f"version {NEXT}, step 1 of 6: add-region"
        assert told(dsn) == f"schema pulse is at version {NEXT}: nothing to do\n"
