"""Handlers that run in the test itself: what becomes of their jobs, and what code under test sees of it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import anyio
import pytest

import pulse
from pulse.errors import InlineError
from pulse.testing import Inline, InlineJob, RecordingContext
from tests.support.checking.codecs import Backwards
from tests.support.checking.every import every

app: Final = pulse.App()


@dataclass
class Size:
    width: int
    height: int


@app.handler("resize", topic="images", max_attempts=3, backoff="fixed:7")
async def resize(ctx: pulse.Context, path: Path, size: Size) -> Size:
    await ctx.progress(0.5, "half way")
    assert isinstance(path, Path)
    return Size(size.width * ctx.attempt, size.height)


@app.handler("count", retry_on={OSError: 30, KeyError: pulse.Discard})
def count(ctx: pulse.Context, kind: str) -> int | pulse.Snooze:
    seen = ctx.previous.checkpoint if ctx.previous is not None else 0
    assert isinstance(seen, int)
    ctx.checkpoint(seen + 1)
    if kind == "fails" or ctx.attempt == 1:
        match kind:
            case "snoozes":
                return pulse.Snooze(60)
            case "waits":
                raise pulse.RetryAfter(5, "later")
            case "fails":
                raise ValueError("no")
            case "disk":
                raise OSError("full")
            case "lost":
                raise KeyError("gone")
            case "gives up":
                raise pulse.Discard("never")
            case "exits":
                raise SystemExit(3)
            case _:
                pass
    return seen + 1


@app.handler("forever")
def forever() -> pulse.Snooze:
    return pulse.Snooze(0)


@app.handler("slow", timeout_s=0.05, max_attempts=1)
async def slow(*, stubborn: bool = False) -> str:
    try:
        await anyio.sleep_forever()
    finally:
        if stubborn:
            raise ValueError("while it ended")
    return "never"


@pytest.fixture
def inline() -> Inline:
    return Inline(app)


def test_a_job_gets_its_arguments_and_its_result_as_in_a_worker(inline: Inline) -> None:
    job = inline.run(resize, Path("a.png"), Size(3, 4))
    assert (job.status, job.result, job.topic, job.attempts) == ("COMPLETED", {"width": 3, "height": 4}, "images", 1)
    assert job.result_as(Size) == Size(3, 4)
    with pytest.raises(pulse.BadRequestError, match=r"^resize: args are given beside those of the call$"):
        inline.run(pulse.call(resize, Path("a.png"), Size(3, 4)), 3)  # type: ignore[call-overload]
    assert job.progress_reports == ({"value": 0.5, "text": "half way"},)
    assert job.error is None


def test_outcomes_are_those_of_the_server(inline: Inline) -> None:
    def check(row: tuple[str, str, int, int, tuple[float, ...], str]) -> None:
        kind, status, attempts, uncharged, delays_s, reason = row
        job = inline.run(count, kind)
        assert (job.status, job.attempts, job.uncharged, job.delays_s) == (status, attempts, uncharged, delays_s)
        assert (job.last_error or "").partition("\n")[0] == reason

    every(
        [
            ("succeeds", "COMPLETED", 1, 0, (), ""),
            ("snoozes", "COMPLETED", 2, 1, (60.0,), ""),
            ("waits", "COMPLETED", 2, 0, (5.0,), "later"),
            ("disk", "COMPLETED", 2, 0, (30.0,), "OSError: full"),
            ("fails", "DEAD_LETTERED", 5, 0, (1.0, 4.0, 9.0, 16.0), "ValueError: no"),
            ("lost", "DEAD_LETTERED", 1, 0, (), "KeyError: 'gone'"),
            ("gives up", "DEAD_LETTERED", 1, 0, (), "never"),
            ("exits", "COMPLETED", 2, 0, (1.0,), "SystemExit: the handler called sys.exit(3)"),
        ],
        check,
    )


def test_the_next_attempt_knows_the_one_before(inline: Inline) -> None:
    job = inline.run(count, "waits")
    assert (job.result, job.checkpoint) == (2, 2)
    assert [(entry.attempt, entry.outcome, entry.error) for entry in job.history] == [(1, "retry", "later")]


def test_the_exception_of_the_last_attempt_is_at_hand_and_its_traceback_begins_in_the_handler(inline: Inline) -> None:
    job = inline.run(count, "fails")
    assert isinstance(job.error, ValueError)
    calls = [line for line in str(job.last_error).splitlines() if line.startswith("  File")]
    assert len(calls) == 1
    assert "test_inline.py" in calls[0]


def test_arguments_that_do_not_decode_are_a_dead_letter(inline: Inline) -> None:
    job = inline.run_job(inline.submit("resize", {"path": "a.png", "size": {"width": "wide", "height": 1}}))
    assert (job.status, job.attempts) == ("DEAD_LETTERED", 1)
    assert "size.width" in str(job.last_error)


def test_a_handler_that_outlasts_its_time_is_stopped() -> None:
    def check(row: tuple[str, bool, str]) -> None:
        backend, stubborn, reason = row
        job = Inline(app, backend=backend).run(slow, stubborn=stubborn)
        assert (job.status, job.history[0].outcome) == ("DEAD_LETTERED", "timeout")
        assert str(job.last_error).splitlines()[:2] == ["timed out after 0.05 s", *([reason] if reason else [])]

    rows = [("asyncio", False, ""), ("trio", False, ""), ("trio", True, "ValueError: while it ended")]
    every(rows, check)


def test_what_ends_the_test_is_no_outcome(inline: Inline) -> None:
    inner = pulse.App()

    @inner.handler("fail")
    def fail() -> None:
        pytest.fail("from within")

    with pytest.raises(pytest.fail.Exception, match="from within"):
        Inline(inner).run(fail)


NO_APP: Any = None
NO_NUMBER: Any = "1h"


@pytest.mark.parametrize(("call", "message"), [
    (lambda: Inline(NO_APP), "^inline: app is None; a pulse.App is allowed$"),
    (lambda: Inline(app, backend="curio"), "^inline: backend is 'curio'; 'asyncio' and 'trio' are allowed$"),
    (lambda: Inline(app).advance(NO_NUMBER), "^advance: unsupported type .*: str; numbers are allowed$"),
    (lambda: Inline(app).advance(math.nan), "^advance: cannot convert float NaN .*; numbers are allowed$"),
    (lambda: Inline(app).advance(hours=1, minutes=-61), "^advance: -60 s would be back; 0 and more are allowed$"),
    (lambda: Inline(app).submitted(resize, path=object()), "^submitted: args has no form in JSON"),
])  # fmt: skip
def test_a_mistake_in_a_test_is_one_clear_error(call: Callable[[], object], message: str) -> None:
    with pytest.raises(pulse.PulseError, match=message):
        call()


@pytest.mark.rest
def test_a_job_without_an_end_is_an_error(inline: Inline) -> None:
    inline.submit(forever)
    with pytest.raises(InlineError, match="the jobs did not end within 10000 attempts"):
        inline.run_until_idle()
    with pytest.raises(InlineError, match="forever did not end within 10000 attempts"):
        inline.run(forever)


# Step by step.


def test_jobs_run_in_the_order_in_which_a_worker_gets_them(inline: Inline) -> None:
    ids = [inline.submit(count, {"kind": "succeeds"}, priority=priority) for priority in (0, 5, 5)]
    assert [job.id for job in inline.run_until_idle()] == [ids[1], ids[2], ids[0]]


def test_what_is_not_due_waits_for_the_clock(inline: Inline) -> None:
    delayed = inline.submit(count, {"kind": "succeeds"}, delay_s=7200)
    failing = inline.submit(count, {"kind": "waits"})
    (ran,) = inline.run_until_idle()
    assert (ran.id, ran.status) == (failing, "RETRYING")
    inline.advance(4)
    assert inline.run_until_idle() == []
    inline.advance(2)
    assert [job.id for job in inline.run_until_idle()] == [failing]
    inline.advance(hours=2)
    assert [(job.id, job.status) for job in inline.run_until_idle()] == [(delayed, "COMPLETED")]


def test_a_job_that_is_not_started_in_time_expires(inline: Inline) -> None:
    inline.submit(count, {"kind": "succeeds"}, delay_s=10, expires_in_s=5)
    inline.advance(minutes=1)
    (job,) = inline.run_until_idle()
    assert (job.status, job.attempts, job.history[0].outcome, job.history[0].attempt) == (
        "DEAD_LETTERED", 0, "expired", 0,
    )  # fmt: skip
    assert str(job.last_error).startswith("expired: not started by ")


def test_jobs_of_other_applications_wait(inline: Inline) -> None:
    with warnings.catch_warnings(action="error"):
        job_id = inline.submit("bill", {"order": 7})
    assert inline.run_until_idle() == []
    assert inline.submitted("bill", order=7)[0].status == "PENDING"
    with pytest.raises(InlineError, match="the app has no handler named 'bill'"):
        inline.run_job(job_id)


def test_a_submit_says_what_its_server_would_say(inline: Inline) -> None:
    with pytest.raises(pulse.BadRequestError, match=r"priority is 1000; allowed is a whole number from -100 to 100"):
        inline.submit(count, {"kind": "x"}, priority=1000)
    with pytest.raises(pulse.BadRequestError, match=r"count: .*kind"):
        inline.submit(count, {})
    with pytest.raises(pulse.BadRequestError, match=r"^count: kind is 3; allowed is text$"):
        inline.run(count, 3)  # type: ignore[call-overload]  # type checkers say so, too
    assert not inline.submitted()


def test_an_id_stands_for_one_job(inline: Inline) -> None:
    same = UUID(int=7)
    ids = [inline.submit("count", {"kind": "succeeds"}, id=same) for _ in range(2)]
    assert ids == [same, same]
    with pytest.raises(pulse.ConflictError):
        inline.submit("count", {"kind": "other"}, id=same)
    assert len(inline.submitted()) == 1


def test_a_canceled_job_never_runs(inline: Inline) -> None:
    job_id = inline.submit(count, {"kind": "succeeds"})
    assert inline.client.cancel(job_id, UUID(int=1)).refused == ((UUID(int=1), "not_found"),)
    assert inline.run_until_idle() == []
    assert inline.job(job_id).status == "CANCELED"
    assert inline.client.cancel(job_id).refused == ((job_id, "invalid_transition"),)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_handler_can_lose_its_job_while_it_runs(backend: str) -> None:
    inner, seen = pulse.App(), list[tuple[bool, bool]]()
    inline = Inline(inner, backend=backend)
    moves: dict[str, Callable[[UUID], None]] = {"cancel": inline.cancel, "lose": inline.lose_lease}

    @inner.handler("plain")
    def plain(ctx: pulse.Context, move: str) -> str:
        if ctx.attempt == 1:
            moves[move](ctx.job_id)
            seen.append((ctx.cancelled, ctx.lease_lost))
        return "done"

    @inner.handler("waiting")
    async def waiting(ctx: pulse.Context, move: str) -> str:
        if ctx.attempt == 1:
            moves[move](ctx.job_id)
            await anyio.sleep_forever()
        return "done"

    def check(handler: Callable[..., object]) -> None:
        canceled, lost = inline.run(handler, "cancel"), inline.run(handler, "lose")
        assert (canceled.status, canceled.attempts, canceled.history[0].outcome) == ("CANCELED", 1, "canceled")
        assert (lost.status, lost.result, lost.attempts) == ("COMPLETED", "done", 2)
        assert (lost.history[0].outcome, lost.history[0].error) == ("lease_expired", "worker lease expired")

    every([plain, waiting], check)
    assert seen == [(True, False), (True, True)]


# What code under test has.


def test_code_under_test_has_a_client_as_ever(inline: Inline) -> None:
    client: pulse.Client = inline.client
    with client:
        assert client.result(client.submit(pulse.call(count, "waits")), int) == 2
        assert client.ping() >= 0
        ids = client.submit_many([{"name": "count", "args": {"kind": "fails"}, "max_attempts": 1}, pulse.call(forever)])
        assert client.get(ids[1]).status == "PENDING"
        with pytest.raises(pulse.ResultError, match="DEAD_LETTERED: ValueError: no"):
            client.result(ids[0])
        with pytest.raises(InlineError, match=r"^jobs\.list needs a server: the fixture pulse_server has one"):
            client.jobs()


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_in_an_event_loop_all_has_an_async_form(anyio_backend: str, inline: Inline) -> None:
    assert (await inline.arun(resize, Path("a"), Size(1, 1))).status == "COMPLETED"
    assert (await inline.arun(pulse.call(count, "waits"))).result == 2
    async with inline.async_client as client:
        job_id = await client.submit(count, {"kind": "succeeds"})
        assert await client.result(job_id, int) == 1
        await client.submit(resize, {"path": "b", "size": Size(2, 2)})
    assert [job.name for job in await inline.run_until_idle_async()] == ["resize"]
    await client.submit(resize, {"path": "d", "size": Size(2, 2)}, delay_s=1, expires_in_s=2)
    inline.advance(3)
    assert [job.history[0].outcome for job in await inline.run_until_idle_async()] == ["expired"]
    await inline.async_client.submit(resize, {"path": "c", "size": Size(2, 2)})
    with pytest.raises(InlineError, match="resize is async, and an event loop runs here"):
        inline.run_until_idle()
    assert inline.submitted(resize, path=Path("c"))[0].attempts == 0


def test_a_handler_may_wait_for_another_job_but_not_for_its_own() -> None:
    inner = pulse.App()
    inline = Inline(inner)

    @inner.handler("leaf")
    def leaf() -> int:
        return 7

    @inner.handler("root")
    def root(ctx: pulse.Context, own: bool) -> int:
        return inline.client.result(ctx.job_id if own else inline.submit(leaf), int)

    assert inline.run(root, own=False).result == 7
    assert "root waits for a job that waits for it" in str(inline.run(root, own=True).last_error)


def test_encrypted_arguments_are_read_by_the_handler_and_by_the_test() -> None:
    inner = pulse.App(codec=Backwards())

    @inner.handler("mail")
    def mail(to: str) -> str:
        return to.upper()

    inline = Inline(inner)
    job = inline.run(mail, to="ada")
    assert (job.result, type(job)) == ("ADA", InlineJob)
    assert inline.submitted(mail, to="ada")


def test_a_handler_is_a_function_to_be_called_with_a_context() -> None:
    ctx = RecordingContext(attempt=2)
    ctx.link.cancelled = True
    assert count(ctx, "succeeds") == 1
    ctx.progress(0.5)
    assert (ctx.link.checkpoints, ctx.link.progress_reports, ctx.cancelled) == ([1], [{"value": 0.5}], True)
    assert not ctx.lease_lost
