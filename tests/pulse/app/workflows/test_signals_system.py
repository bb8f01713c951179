"""Handlers that wait for signals, on a server with a codec."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
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
WITHIN_S: Final = 60.0
WAITED: Final = 1  # the attempt that waits
PAYLOAD: Final = {"by": "ann", "cents": 7}


def die_once(ctx: pulse.Context) -> None:
    """In the first attempt that has come so far: the one before has waited."""
    if ctx.attempt == WAITED + 1:
        os.kill(os.getpid(), signal.SIGKILL)


def _told(signals: list[pulse.Signal | None]) -> list[Any]:
    return [None if one is None else one.payload for one in signals]


@app.handler("waits", topic="waits")
async def waits(ctx: pulse.Context) -> list[Any]:
    first = await ctx.wait_for("approval")
    die_once(ctx)
    second = await ctx.wait_for("approval", timeout_s=3600)
    return _told([first, second])


@app.handler("waits_plain", topic="waits_plain")
def waits_plain(ctx: pulse.Context) -> list[Any]:
    first = ctx.wait_for("approval")
    die_once(ctx)
    second = ctx.wait_for("approval", timeout_s=3600)
    return _told([first, second])


app.handler("waits_isolated", topic="waits_isolated", isolate=True)(waits_plain)
app.handler("waits_isolated_async", topic="waits_isolated_async", isolate=True)(waits)


@app.handler("polls", topic="polls")
def polls(ctx: pulse.Context) -> list[Any]:
    """Waits for nothing."""
    return _told([ctx.wait_for(name, timeout_s=0) for name in ("a", "a", "b", "a")])


@app.handler("in_batch", topic="in_batch", batch=2)
def in_batch(jobs: list[pulse.BatchJob[dict[str, str]]]) -> list[Any]:
    found: list[str] = []
    for one in jobs:
        with pytest.raises(pulse.HandlerError) as caught:
            one.ctx.wait_for("approval")
        found.append(str(caught.value))
    return found


@pytest.fixture(scope="module")
def pulse_server_process() -> Iterator[PulseServer]:
    """Of this module alone: the kit has one server for all tests of a process."""
    confidential(KEY, "the key of the codec of this test")
    with running_pulse(app, dsn=None) as server:
        yield server


def _until_it_waits(client: pulse.Client, job: UUID) -> None:
    until(lambda: client.get(job).awaited_signal == "approval", "it waits", WITHIN_S)


@pytest.mark.parametrize("name", ["waits", "waits_plain", "waits_isolated", "waits_isolated_async"])
def test_a_signal_and_a_wait_that_is_over(pulse_server: PulseServer, name: str) -> None:
    """Killed when it has the signal, the handler gets the same one again; the second wait ends without."""
    client = pulse_server.client
    job_id = client.submit(name)
    _until_it_waits(client, job_id)
    waiting = client.get(job_id)
    assert (waiting.status, waiting.uncharged) == ("PENDING", 1)
    assert client.signal(job_id, "approval", PAYLOAD, key="k")
    assert not client.signal(job_id, "approval", PAYLOAD, key="k")
    outcomes = ["snoozed", "crashed", "snoozed"]
    until(lambda: [one.outcome for one in client.get(job_id).history] == outcomes, "it waits again", WITHIN_S)
    pulse_server.advance(hours=1)
    pulse_server.run_until_idle(timeout_s=WITHIN_S)
    job = client.get(job_id)
    assert (job.status, job.result, job.attempts, job.awaited_signal) == ("COMPLETED", [PAYLOAD, None], 4, None)
    assert [(one.name, one.payload) for one in job.signals] == [("approval", PAYLOAD)]
    with pytest.raises(pulse.ConflictError, match="is COMPLETED; one that has not ended"):
        client.signal(job_id, "approval")


def test_signals_before_the_wait(pulse_server: PulseServer) -> None:
    """Are kept, and given to the waits in their order; in memory it is the same."""
    inline = Inline(app)
    for client, advance, run in (
        (pulse_server.client, pulse_server.advance, pulse_server.run_until_idle),
        (inline.client, inline.advance, inline.run_until_idle),
    ):
        job_id = client.submit(polls, delay_s=600.0)
        for name, payload in (("a", 1), ("b", None), ("a", {"n": 2})):
            assert client.signal(job_id, name, payload)
        advance(minutes=10)
        run()
        job = client.get(job_id)
        assert (job.status, job.result, job.attempts) == ("COMPLETED", [1, {"n": 2}, None, None], 1)


def test_what_is_wrong(pulse_server: PulseServer) -> None:
    """Each is refused by itself, and in a line that says what is allowed."""
    client = pulse_server.client
    job = client.submit("waits", delay_s=600.0)
    with pytest.raises(pulse.NotFoundError, match="there is no job"):
        client.signal(UUID(int=1), "approval")
    with pytest.raises(pulse.BadRequestError, match="the payload is not JSON"):
        client.signal(job, "approval", object())
    with pytest.raises(pulse.BadRequestError, match="at most 65536 are allowed"):
        client.signal(job, "approval", "x" * 65_536)
    with pytest.raises(pulse.BadRequestError, match="name"):
        client.signal(job, "x" * 201)
    assert client.get(job).signals == ()


def test_a_batch_gets_none(pulse_server: PulseServer) -> None:
    client = pulse_server.client
    jobs = [client.submit("in_batch", {"path": "a"}) for _ in range(2)]
    pulse_server.run_until_idle(timeout_s=WITHIN_S)
    said = "a handler of batches cannot sleep: all jobs of its call would"
    assert [client.get(one).result for one in jobs] == [said] * 2
