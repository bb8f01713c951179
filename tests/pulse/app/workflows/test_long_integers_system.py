"""Integers that int() refuses, which SQL can store (1e5000): each job gets them, or fails with one error, alone."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from uuid import UUID

import pytest

import pulse
from tests.support.servers.postgres import Postgres
from tests.support.systems.system_kit import place

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system]

LONG: Final = 10**5000
APP: Final = "tests.pulse.app.workflows.test_long_integers_system:app"
REFUSED: Final = "Exceeds the limit (4300 digits)"
app: Final = pulse.App()


@app.handler("measures")
def measures(number: int) -> int:
    return number.bit_length()


@app.handler("returns")
def returns(number: int) -> int:
    return number


@app.handler("adds_up")
def adds_up(ctx: pulse.Context) -> list[int]:
    return [parent.result_as(int).bit_length() for parent in ctx.parents()]


@app.handler("asks")
def asks(ctx: pulse.Context) -> None:
    ctx.wait_for("number")


@app.handler("steps")
def steps(path: str, ctx: pulse.Context) -> None:
    ctx.step("touch", Path(path).touch)


def test_on_a_real_system(server: Postgres, tmp_path: Path) -> None:
    with server.database() as dsn, place(dsn) as whole:
        whole.start()
        jobs = whole.jobs()
        jobs.client.pause(reason="until all is prepared")

        def submitted(name: str, args: str = "{}") -> UUID:
            found = whole.rows("SELECT pulse.submit($1, $2::text::jsonb, max_attempts => 1)", name, args)
            return UUID(str(found[0][0]))

        given = submitted("measures", '{"number": 1e5000}')
        returned = submitted("returns", '{"number": 1e5000}')
        parent = submitted("measures", '{"number": 1}')
        child = jobs.client.submit("adds_up", after=[parent])
        asked = submitted("asks")
        whole.rows("SELECT pulse.signal($1, 'number', '-1e5000')", asked)
        stepped = submitted("steps", f'{{"path": "{tmp_path / "again"}"}}')
        kept = '{"$steps": {"touch": 1e5000}, "checkpoint": null}'
        sql = "UPDATE pulse.jobs SET attempts = 1, uncharged = 1, checkpoint = $2::text::jsonb WHERE id = $1"
        whole.rows(sql, stepped, kept)
        done = "UPDATE pulse.jobs SET status = 'COMPLETED', completed_at = now(), result = '1e5000' WHERE id = $1"
        whole.rows(done, parent)
        whole.rows("SELECT pulse.settle(ARRAY[$1::uuid])", parent)
        whole.pool("--processes", "1", app=APP)
        jobs.client.resume()
        assert jobs.wait(given).result == LONG.bit_length()
        assert jobs.wait(child).result == [LONG.bit_length()]
        failed = [jobs.wait(one, "DEAD_LETTERED").last_error or "" for one in (returned, asked, stepped)]
        assert failed[0].startswith(f"result is not JSON: {REFUSED}")
        assert f"the payload of signal 'number' cannot be kept: {REFUSED}" in failed[1]
        assert REFUSED in failed[2]
        assert not (tmp_path / "again").exists()
        assert jobs.get(given).args == {"number": LONG}
        assert [one.payload for one in jobs.get(asked).signals] == [-LONG]
        assert len(jobs.client.jobs().jobs) == 6
        assert whole.command("ctl", "jobs", "list").returncode == 0
        assert {entry["event"] for entry in whole.log("worker_died")} == set()
