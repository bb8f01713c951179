"""What a job says of itself: where and how long it ran."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from pulse.job import HandlerProcess, Job, Status, handler_process

START = datetime(2030, 1, 1, tzinfo=UTC)
ENDED = Job(
    id=UUID(int=1), name="n", topic="t", status=Status.COMPLETED, started_at=START,
    completed_at=START + timedelta(seconds=2.5), ran_by="h0st/b00t/42/1234.99/pool/1",
)  # fmt: skip


def test_a_completed_job_says_where_it_ran_and_how_long() -> None:
    assert ENDED.process == HandlerProcess("pool/1", "h0st", 1234)
    assert ENDED.took_s == 2.5
    assert replace(ENDED, hosts={"h0st": "alpha"}).process == HandlerProcess("pool/1", "alpha", 1234)
    failed = Job(id=ENDED.id, name="n", topic="t", status=Status.CANCELED, started_at=START, completed_at=START)
    assert (failed.process, failed.took_s) == (None, None)


@pytest.mark.parametrize("identity", ["tcp:bob/0123/w", "", "h/b/n/x.1/w"])
def test_an_identity_without_a_process(identity: str) -> None:
    assert handler_process(identity) is None
