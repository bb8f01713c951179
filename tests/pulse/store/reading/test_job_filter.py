"""Which parts of the table hold all jobs of a filter."""

from __future__ import annotations

from uuid import UUID

import pytest

from pulse.store.reading.listing import JobFilter


@pytest.mark.parametrize(("wanted", "parts"), [
    (JobFilter(), []),
    (JobFilter(prefix="0"), ["prefix"]),
    (JobFilter(worker="w", prefix="0"), ["running"]),
    (JobFilter(schedule=UUID(int=1).bytes, worker="w"), ["schedule"]),
    (JobFilter(statuses=("RUNNING",)), ["running"]),
    (JobFilter(statuses=("RUNNING", "COMPLETED")), []),
])  # fmt: skip
def test_parts(wanted: JobFilter, parts: list[str]) -> None:
    assert wanted.parts() == parts
