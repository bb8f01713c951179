"""The statements that the database refuses now: this process's own, and those that other actors tell of."""

from __future__ import annotations

import time
from typing import Final, cast

import msgspec

from pulse.ops.doctor import refusals as failing
from pulse.ops.doctor.finding import Finding, State
from pulse.ops.doctor.refusals import StatementFailure
from pulse.store.failures import Failing
from pulse_actors.runtime.actor import DISPATCHER, refusal

OLD_S: Final = 5.0  # each actor tells every second, as long as it lasts
MANY: Final = 2  # times in a row: the first may be a victim of somebody's restart


class RefusedStatements:
    """
    Who is refused what.

    Args:
        own: Of this process.
    """

    def __init__(self, own: Failing) -> None:
        self._own = own
        self._reported: dict[str, tuple[float, list[StatementFailure]]] = {}

    def heard(self, actor: str, statements: object) -> None:
        """What another actor tells; a later version may tell it otherwise, then it is left alone."""
        try:
            refused = [msgspec.convert(one, StatementFailure) for one in cast("list[object]", statements)]
        except (TypeError, msgspec.ValidationError):
            return
        self._reported[actor] = time.monotonic(), refused

    def findings(self) -> list[Finding]:
        """What is wrong, if anything is."""
        now_s = time.monotonic()
        refusals = [refusal(DISPATCHER, one, now_s) for one in self._own.now()]
        for heard_s, refused in self._reported.values():
            refusals += refused if now_s - heard_s < OLD_S else []
        found = failing.statements(one for one in refusals if one.times >= MANY)
        return [] if found.state is State.OK else [found]
