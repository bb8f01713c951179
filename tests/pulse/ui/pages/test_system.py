"""Workers: all together, and what each one runs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.commandline.cli_answers import job
from tests.support.servers.dashboard import Told, browser


@pytest.mark.anyio
async def test_workers_together() -> None:
    size: dict[str, Any] = {"concurrency": 10, "rss_bytes": 3 * 1024**2}
    busy = {"identity": "h/b/1/2.3/a", "name": "a", "started": 2, "held": 2, "running": [bytes(16)] * 2, **size}
    runs = {"jobs": [job(status="RUNNING", name=name, started_at=at) for name, at in (("late", 9.0), ("early", 1.0))]}
    at = browser(Told(jobs_list=runs, status={"workers": [busy, {"identity": "h/b/1/4.5/b", "name": "b", **size}]}))
    text = (await at.ask("GET", "/workers")).text
    assert "2 workers: 2 of 20 places taken (" in text
    assert "; 6 MiB of memory" in text
    assert text.count('href="/jobs?status=RUNNING&amp;worker=h/b/1/2.3/a"') == 1
    assert "worker=h/b/1/4.5/b" not in text.replace("drain?worker=h/b/1/4.5/b", "")
    assert 0 < text.index(">early<") < text.index(">late<")
