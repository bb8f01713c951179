"""The loops that find many jobs."""

from __future__ import annotations

from pulse.ops.bulk import Body, job_pages, run_blocking
from tests.support.commandline.cli_answers import job


def test_each_page_is_asked_for_once() -> None:
    """Behind the one before, with the same filter."""
    asked: list[Body] = []

    async def ask(kind: str, body: Body) -> Body:
        asked.append(body)
        assert (kind, len(asked) <= 2) == ("jobs.list", True)
        return {"jobs": [job()], "next": "x" if len(asked) == 1 else None}

    async def all_of_them() -> list[str | None]:
        return [page.next async for page in job_pages(ask, {"topic": "t"}, 1)]

    assert run_blocking(all_of_them()) == ["x", None]
    assert asked == [{"topic": "t", "limit": 1}, {"topic": "t", "limit": 1, "after": "x"}]
