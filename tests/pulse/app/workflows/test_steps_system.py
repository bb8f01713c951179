"""Steps on a real server, with a codec: a killed worker does not run finished steps again, however it runs handlers."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, Final

import pytest

import pulse
from pulse.encryption import FernetCodec
from pulse.testing import PulseServer
from tests.support.confidential import confidential
from tests.support.servers.embedded_kit import needs_postgres
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system, needs_postgres]

KEY: Final = "YSBrZXkgb2YgYSB0ZXN0OiB0aGlydHktdHdvIGJ5dGU="
codec: Final = FernetCodec(KEY)
app: Final = pulse.App(codec=codec)
WITHIN_S: Final = 60.0


def effect(path: str, name: str) -> str:
    """Leaves a line behind."""
    with Path(path).open("a") as file:
        file.write(f"{name} {os.getpid()}\n")
    return name.upper()


def die_once(ctx: pulse.Context) -> None:
    if ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@app.handler("awaits", topic="awaits")
async def awaits(path: str, ctx: pulse.Context) -> list[Any]:
    charged = await ctx.step("charge", effect, path, "charge")
    die_once(ctx)
    mailed = await ctx.step("mail", effect, path, "mail")
    await ctx.sleep(hours=1)
    return [charged, mailed, ctx.attempt]


@app.handler("plain", topic="plain")
def plain(path: str, ctx: pulse.Context) -> list[Any]:
    charged = ctx.step("charge", effect, path, "charge")
    die_once(ctx)
    mailed = ctx.step("mail", effect, path, "mail")
    ctx.sleep(hours=1)
    return [charged, mailed, ctx.attempt]


app.handler("isolated", topic="isolated", isolate=True)(plain)
app.handler("isolated_async", topic="isolated_async", isolate=True)(awaits)


@app.handler("in_batch", topic="in_batch", batch=2)
def in_batch(jobs: list[pulse.BatchJob[dict[str, str]]]) -> list[Any]:
    """Each job of a batch has steps, and cannot sleep."""
    found: list[Any] = []
    for one in jobs:
        done = one.ctx.step("charge", effect, one.args["path"], "charge")
        try:
            one.ctx.sleep(1)
        except pulse.HandlerError as error:
            found.append([done, str(error)])
    return found


@pytest.fixture(scope="session")
def pulse_app() -> pulse.App:
    confidential(KEY, "the key of the codec of this test")
    return app


def lines(path: Path) -> list[str]:
    return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("name", ["awaits", "plain", "isolated", "isolated_async"])
def test_killed_after_a_step(pulse_server: PulseServer, tmp_path: Path, name: str) -> None:
    """The step had returned, so the server had its result when the process killed itself."""
    path, client = tmp_path / "effects", pulse_server.client
    job_id = client.submit(name, {"path": str(path)})
    until(lambda: len(client.get(job_id).history) == 2, "it sleeps", WITHIN_S)
    assert lines(path) == ["charge", "mail"]
    pulse_server.advance(hours=1)
    pulse_server.run_until_idle(timeout_s=WITHIN_S)
    job = client.get(job_id)
    assert (job.status, job.result, lines(path)) == ("COMPLETED", ["CHARGE", "MAIL", 3], ["charge", "mail"])
    assert [one.outcome for one in job.history] == ["crashed", "snoozed"]


def test_steps_in_a_batch(pulse_server: PulseServer, tmp_path: Path) -> None:
    client = pulse_server.client
    ids = [client.submit("in_batch", {"path": str(tmp_path / name)}) for name in "ab"]
    pulse_server.run_until_idle(timeout_s=WITHIN_S)
    said = "a handler of batches cannot sleep: all jobs of its call would"
    assert [client.get(one).result for one in ids] == [["CHARGE", said]] * 2
