"""Handlers that are part of a workflow, or are one, on a real server with a codec: parents, steps and sleeps."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest

import pulse
from pulse.encryption import FernetCodec
from pulse.testing import Inline, PulseServer
from pulse.testing.server import running_pulse
from tests.support.confidential import confidential
from tests.support.servers.embedded_kit import needs_postgres
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system, needs_postgres, pytest.mark.rest]

KEY: Final = "YSBrZXkgb2YgYSB0ZXN0OiB0aGlydHktdHdvIGJ5dGU="
codec: Final = FernetCodec(KEY)
app: Final = pulse.App(codec=codec)
PARTS: Final = 3
MANY: Final = 10_000  # as many as one job may wait for
WITHIN_S: Final = 60.0


@app.handler("part")
async def part(number: int) -> dict[str, int]:
    if number < 0:
        raise pulse.Discard("no")
    return {"number": number}


def _found(jobs: list[pulse.Job]) -> list[Any]:
    return [[str(one.id), one.name, str(one.status), one.result, one.last_error] for one in jobs]


@app.handler("awaits")
async def awaits(ctx: pulse.Context) -> list[Any]:
    return _found(await ctx.parents())


@app.handler("streams")
async def streams(ctx: pulse.Context) -> list[Any]:
    return _found([job async for job in ctx.parents()])


@app.handler("plain")
def plain(ctx: pulse.Context) -> list[Any]:
    return _found(list(ctx.parents()))


@app.handler("isolated", isolate=True)
def isolated(ctx: pulse.Context) -> list[Any]:
    return _found(list(ctx.parents()))


@app.handler("isolated_async", isolate=True)
async def isolated_async(ctx: pulse.Context) -> list[Any]:
    return _found(await ctx.parents())


@app.handler("adds_up")
async def adds_up(ctx: pulse.Context) -> int:
    return sum([parent.result_as(dict[str, int])["number"] async for parent in ctx.parents()])


@app.handler("grows", max_attempts=1)
def grows(ctx: pulse.Context, first: int = 1) -> list[str]:
    """Submits a graph; in the first attempt it hangs then."""
    batch = pulse.Batch()
    for number in range(PARTS):
        batch.add(pulse.call(part, number), id=ctx.child_id(f"part {number}"))
    batch.then(plain, id=ctx.child_id("whole"))
    with pulse.Client(codec=codec) as client:
        ids = client.submit_batch(batch)
    ctx.progress("submitted")
    while ctx.attempt <= first:
        time.sleep(0.005)
    return [str(one) for one in ids]


def effect(path: str, name: str) -> str:
    """Leaves a line behind."""
    with Path(path).open("a") as file:
        file.write(f"{name} {os.getpid()}\n")
    return name.upper()


def die_once(ctx: pulse.Context) -> None:
    if ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@app.handler("steps_awaits", topic="steps_awaits")
async def steps_awaits(path: str, ctx: pulse.Context) -> list[Any]:
    charged = await ctx.step("charge", effect, path, "charge")
    die_once(ctx)
    mailed = await ctx.step("mail", effect, path, "mail")
    await ctx.sleep(hours=1)
    return [charged, mailed, ctx.attempt]


@app.handler("steps_plain", topic="steps_plain")
def steps_plain(path: str, ctx: pulse.Context) -> list[Any]:
    charged = ctx.step("charge", effect, path, "charge")
    die_once(ctx)
    mailed = ctx.step("mail", effect, path, "mail")
    ctx.sleep(hours=1)
    return [charged, mailed, ctx.attempt]


app.handler("steps_isolated", topic="steps_isolated", isolate=True)(steps_plain)
app.handler("steps_isolated_async", topic="steps_isolated_async", isolate=True)(steps_awaits)


@app.handler("steps_in_batch", topic="steps_in_batch", batch=2)
def steps_in_batch(jobs: list[pulse.BatchJob[dict[str, str]]]) -> list[Any]:
    """Each job of a batch has steps, and cannot sleep."""
    found: list[Any] = []
    for one in jobs:
        done = one.ctx.step("charge", effect, one.args["path"], "charge")
        try:
            one.ctx.sleep(1)
        except pulse.HandlerError as error:
            found.append([done, str(error)])
    return found


@pytest.fixture(scope="module")
def pulse_server_process() -> Iterator[PulseServer]:
    """Of this module alone: the kit has one server for all tests of a process."""
    confidential(KEY, "the key of the codec of this test")
    with running_pulse(app, dsn=None) as server:
        yield server


def _submit(client: pulse.Client, handler: Any) -> tuple[list[UUID], UUID]:
    calls = [pulse.call(part, number) for number in (3, 1, -1)]
    *parents, child = client.submit_batch(calls, then=handler, on_failure="run")
    return parents, child


@pytest.mark.parametrize("handler", [awaits, streams, plain, isolated, isolated_async])
def test_parents(pulse_server: PulseServer, handler: Any) -> None:
    """In the order of the submit; in memory it is the same."""
    inline = Inline(app)
    for client, run in (
        (pulse_server.client, pulse_server.run_until_idle),
        (inline.client, inline.run_until_idle),
    ):
        parents, child = _submit(client, handler)
        run()
        first, second, third = map(str, parents)
        job = client.get(child)
        assert job.status == "COMPLETED", job.last_error
        assert job.result == [
            [first, "part", "COMPLETED", {"number": 3}, None], [second, "part", "COMPLETED", {"number": 1}, None],
            [third, "part", "DEAD_LETTERED", None, "no"],
        ]  # fmt: skip
        page = client.parents(child)
        assert ([one.id for one in page.jobs], page.next) == (parents, None)
        assert page.jobs[0].result == {"number": 3}


def test_a_graph_that_a_handler_submits_twice(pulse_server: PulseServer) -> None:
    """Its worker is killed after the first submit: the second attempt submits the same jobs, and none runs twice."""
    client = pulse_server.client
    parent = client.submit(pulse.call(grows))
    until(lambda: client.get(parent).progress is not None, "it has submitted them", WITHIN_S)
    pulse_server.kill_worker()
    pulse_server.run_until_idle(timeout_s=WITHIN_S)
    job = client.get(parent)
    assert (job.status, job.attempts, len(pulse_server.submitted())) == ("COMPLETED", 2, PARTS + 2)
    jobs = [client.get(one) for one in job.result_as(list[str])]
    assert [(one.status, one.attempts) for one in jobs if one.name == "part"] == [("COMPLETED", 1)] * PARTS
    whole = jobs[-1].result_as(list[list[Any]])
    assert sorted(one[3]["number"] for one in whole) == list(range(PARTS))


def lines(path: Path) -> list[str]:
    return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("name", ["steps_awaits", "steps_plain", "steps_isolated", "steps_isolated_async"])
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
    ids = [client.submit("steps_in_batch", {"path": str(tmp_path / name)}) for name in "ab"]
    pulse_server.run_until_idle(timeout_s=WITHIN_S)
    said = "a handler of batches cannot sleep: all jobs of its call would"
    assert [client.get(one).result for one in ids] == [["CHARGE", said]] * 2


def test_ten_thousand_parents(pulse_server: PulseServer) -> None:
    """One frame takes them, and their child reads them page by page."""
    client = pulse_server.client
    *parts, child = client.submit_batch([pulse.call(part, number) for number in range(MANY)], then=pulse.call(adds_up))
    pulse_server.run_until_idle(timeout_s=2 * WITHIN_S)
    assert len(parts) == MANY
    assert client.result(child, int, timeout_s=WITHIN_S) == sum(range(MANY))
