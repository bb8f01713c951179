"""The search for refused jobs, where there is nothing to be learned from another try."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from pulse.errors import StatementError
from pulse.store.recovery.set_aside import Suspect
from pulse.store.rows import Level
from pulse_actors.dispatcher.claims.handout import ClaimRefusedError, Handout
from pulse_actors.dispatcher.claims.refused_jobs import _RefusedSearch
from pulse_actors.dispatcher.workers.registry import ClaimPlan, WorkerRegistry

pytestmark = pytest.mark.anyio

REFUSAL = StatementError("no", sqlstate="XX001", statement="claim_jobs")
SUSPECTS = [Suspect(bytes([number] * 16), Level("t", 0), 0.0) for number in range(2)]


class Refusing:
    """All claims are refused; there is room for so many jobs."""

    def __init__(self, room: int) -> None:
        self.tries = 0
        serving = SimpleNamespace(topics=["t"], plan=lambda _: SimpleNamespace(seats=["w"] * room))
        registry = cast("WorkerRegistry", SimpleNamespace(with_room=lambda **_: [serving] if room else []))
        wanted = cast("ClaimPlan", SimpleNamespace(topics=["t"]))
        self.search = _RefusedSearch(cast("Handout", self), registry, wanted)

    async def claim_these(self, *_asked: Any) -> bool:
        self.tries += 1
        raise ClaimRefusedError(REFUSAL, REFUSAL, is_sure=True)


@pytest.mark.parametrize("room", [0, 1])
async def test_without_room_for_all_nothing_is_tried(room: int) -> None:
    refusing = Refusing(room)
    await refusing.search.through(SUSPECTS)
    assert (refusing.tries, refusing.search.bad) == (0, [])


async def test_one_that_is_refused_alone_is_tried_once() -> None:
    refusing = Refusing(1)
    await refusing.search.through(SUSPECTS[:1])
    assert (refusing.tries, refusing.search.bad) == (1, [(SUSPECTS[0], REFUSAL)])


async def test_who_got_one_job_looks_no_further_for_another_cause() -> None:
    """Some job is good, whatever becomes of others: single jobs are to blame."""
    refusing = Refusing(2)
    refusing.search.has_claimed = True
    assert not await refusing.search.is_about_none(SUSPECTS)
    assert refusing.tries == 0
