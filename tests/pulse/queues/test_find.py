"""Which queue has a job: all are asked, and one that does not answer may have it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from pulse.errors import NobodyAnswersError, NotFoundError
from pulse.queues.async_queues import AsyncQueues
from pulse.queues.queues import Queues
from pulse.routes import Queue, Routes
from tests.support.servers.fake_dispatcher import Body, FakeDispatcher, RuntimeDir

JOB, NONE = UUID(int=1), UUID(int=9)
NO_JOB = f"^there is no job {NONE} in the queues empty, orders$"
MAYBE = f"^the queues that answer have no job {NONE}; queue gone: nobody answers"


def get(body: Body) -> Body | NotFoundError:
    """The answer of the one queue that has the job."""
    if body["id"] != JOB.bytes:
        return NotFoundError("no such job")
    return {"job": {"id": JOB.bytes, "name": "a", "topic": "t", "status": "RUNNING", "history": []}}


@pytest.fixture
def directory() -> Iterator[Path]:
    with RuntimeDir() as made:
        nothing = {"jobs.get": NotFoundError("no such job")}
        with FakeDispatcher(made.path, nothing, name="empty"), FakeDispatcher(made.path, {"jobs.get": get}, name="it"):
            yield made.path


def routes(directory: Path, *, is_whole: bool) -> Routes:
    places = {"empty": "empty", "orders": "it"} if is_whole else {"gone": "gone", "empty": "empty", "orders": "it"}
    return Routes({name: Queue(name, str(directory / place)) for name, place in places.items()}, {})


@pytest.mark.parametrize(("is_whole", "error", "said"), [
    (True, NotFoundError, NO_JOB), (False, NobodyAnswersError, MAYBE),
], ids=["all answer", "one is away"])  # fmt: skip
def test_a_job_that_no_queue_has(directory: Path, error: type[Exception], said: str, *, is_whole: bool) -> None:
    with Queues(routes(directory, is_whole=is_whole)) as queues:
        assert queues.find(JOB) is queues.named("orders")
        with pytest.raises(error, match=said):
            queues.find(NONE)


@pytest.mark.anyio
@pytest.mark.parametrize(("is_whole", "error", "said"), [
    (True, NotFoundError, NO_JOB), (False, NobodyAnswersError, MAYBE),
], ids=["all answer", "one is away"])  # fmt: skip
async def test_nor_for_tasks(directory: Path, error: type[Exception], said: str, *, is_whole: bool) -> None:
    async with AsyncQueues(routes(directory, is_whole=is_whole)) as queues:
        assert await queues.find(JOB) is queues.named("orders")
        with pytest.raises(error, match=said):
            await queues.find(NONE)
