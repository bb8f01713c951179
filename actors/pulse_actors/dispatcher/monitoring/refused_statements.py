"""The statements that the database refuses now: of this process, and of other actors."""

from __future__ import annotations

import time
from typing import Final, cast

import msgspec

from pulse.ops.doctor import refusals as failing
from pulse.ops.doctor.finding import Finding, State
from pulse.ops.doctor.refusals import StatementFailure
from pulse.store.failures import Failing
from pulse_actors.runtime.actor import DISPATCHER, refusal

OLD_S: Final = 5.0  # each actor reports every second while it lasts
MANY: Final = 2  # refusals in a row: the first may be the effect of a restart


class RefusedStatements:
    """
    Collects refused statements.

    Args:
        own: Those of this process.
    """

    def __init__(self, own: Failing) -> None:
        self._own = own
        self._reported: dict[str, tuple[float, list[StatementFailure]]] = {}

    def heard(self, actor: str, statements: object) -> None:
        """Another actor's report; a later version may send another form, which is ignored."""
        try:
            refused = [msgspec.convert(one, StatementFailure) for one in cast("list[object]", statements)]
        except (TypeError, msgspec.ValidationError):
            return
        self._reported[actor] = time.monotonic(), refused

    def findings(self) -> list[Finding]:
        """The finding, if there is one."""
        now_s = time.monotonic()
        refusals = [refusal(DISPATCHER, one, now_s) for one in self._own.now()]
        for heard_s, refused in self._reported.values():
            refusals += refused if now_s - heard_s < OLD_S else []
        found = failing.statements(one for one in refusals if one.times >= MANY)
        return [] if found.state is State.OK else [found]
