"""A row that is written without its progress, because the database refused it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest

from pulse.errors import StatementError
from pulse.store.rows import Completion
from pulse_actors.dispatcher.writes.report import _write_bare

pytestmark = pytest.mark.anyio

BARE: Final = Completion(bytes(16), 1, "w", None)
OF_A_VALUE: Final = StatementError("no", sqlstate="22P02", statement="complete_jobs", is_value=True)
OF_A_TRIGGER: Final = StatementError("no", sqlstate="P0001", statement="complete_jobs")


async def test_the_progress_was_the_cause() -> None:
    written: list[Completion] = []

    async def write(some: Sequence[Completion]) -> None:
        written.extend(some)

    assert await _write_bare(BARE, write) is None
    assert written == [BARE]


async def test_it_was_not() -> None:
    """Another value is at fault; or none of them, and the statement is not this row's to answer for."""

    async def refuse(_some: Sequence[Completion]) -> None:
        raise errors.pop()

    errors = [OF_A_TRIGGER, OF_A_VALUE]
    assert await _write_bare(BARE, refuse) is OF_A_VALUE
    with pytest.raises(StatementError) as caught:
        await _write_bare(BARE, refuse)
    assert caught.value is OF_A_TRIGGER
