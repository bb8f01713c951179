"""Signals in memory: what a job that waits for one makes of it, and which are refused."""

from __future__ import annotations

from typing import Any, Final

import pytest

import pulse
from pulse.errors import InlineError
from pulse.testing import Inline

app: Final = pulse.App()


@app.handler("waits")
def waits(ctx: pulse.Context) -> Any:
    found = ctx.wait_for("approval")
    return None if found is None else found.payload


def test_a_job_that_is_run_to_its_end_waits_only_for_what_was_sent() -> None:
    inline = Inline(app)
    job = inline.client.submit(waits)
    with pytest.raises(InlineError, match="waits for the signal 'approval', which nobody has sent"):
        inline.run_job(job)
    assert inline.job(job).awaited_signal == "approval"
    assert [inline.client.signal(job, "approval", 1, key="k") for _ in range(2)] == [True, False]
    assert [one.result for one in inline.run_until_idle()] == [1]


def test_another_signal_ends_no_wait() -> None:
    inline = Inline(app)
    job = inline.client.submit(waits)
    inline.run_until_idle()
    assert inline.client.signal(job, "payment")
    assert inline.run_until_idle() == []
    assert inline.job(job).awaited_signal == "approval"


def test_a_signal_that_comes_before_the_attempt_has_ended() -> None:
    """It was not there when the handler looked: the job runs again at once."""
    own = pulse.App()

    @own.handler("late")
    def late(ctx: pulse.Context) -> Any:
        try:
            found = ctx.wait_for("approval")
        finally:
            inline.client.signal(ctx.job_id, "approval", 1, key="k")
        return None if found is None else found.payload

    inline = Inline(own)
    done = inline.run(late)
    assert (done.result, done.attempts) == (1, 2)


def test_a_job_that_was_completed_or_canceled_gets_none() -> None:
    inline = Inline(app)
    completed, canceled = (inline.client.submit(waits) for _ in range(2))
    inline.client.signal(completed, "approval")
    inline.run_job(completed)
    inline.cancel(canceled)
    for job, status in ((completed, "COMPLETED"), (canceled, "CANCELED")):
        with pytest.raises(pulse.ConflictError, match=f'signal "approval": job {job} is {status}; one that has not'):
            inline.client.signal(job, "approval")
