"""
What is wrong, for ``status`` and ``stats``: the findings of `pulse doctor`, by the same statements and verdicts.

The statements run every few seconds while a client asks. What only this process knows, its workers and what it keeps
beside the database, is judged at each answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import anyio

from pulse.common.waiting import ConditionVariable, WakeupEvent
from pulse.ops.doctor.checks import CHECKS
from pulse.ops.doctor.finding import Finding, State, bad_of
from pulse.ops.doctor.verdicts import CheckContext, verdicts
from pulse.store.admin.doctor import FindingStore, expected_indexes

EVERY_S: Final = 5.0  # between two looks
SHARE: Final = 0.02  # of the time, for looking
MOST_PAUSE_S: Final = 30.0  # also after a look that took long, as during an outage: what is wrong after it must show
WAIT_S: Final = 0.3  # for a look that a client asked for; then the last one is returned
FIRST_S: Final = 0.5  # for a look without which nothing is known; `status` waits for 1 s
OLD_S: Final = 150.0  # older answers are dropped: a monitoring that asks each minute or two gets the last ones at least
GRACE_S: Final = 60.0  # as in the doctor
ASKED: Final = {one.question for one in CHECKS.values() if one.everywhere and one.question}

Row = Mapping[str, Any]


class Findings:
    """
    The newest look.

    Args:
        served: Returns the topics that connected workers serve; None: they may still be on their way.
        own_findings: Returns findings of this process.
    """

    def __init__(
        self,
        store: FindingStore,
        served: Callable[[], Collection[str] | None] = tuple,
        own_findings: Callable[[], Sequence[Finding]] = tuple,
    ) -> None:
        self._store = store
        self._served = served
        self._own_findings = own_findings
        self._expected = expected_indexes()
        self._answers: dict[str, tuple[float, Sequence[Row]]] = {}  # of each question the last one, and when
        self._found: list[Finding] = []
        self._looked_s = float("-inf")
        self._wanted = WakeupEvent()
        self._looked = ConditionVariable()

    async def run(self) -> None:
        """Look while clients ask, until cancelled; a look is never interrupted."""
        while True:
            await self._wanted.wait()
            began_s = time.monotonic()
            for question in sorted(ASKED):
                rows = await self._store.ask(question)
                if rows is not None:  # else the last answer counts: an outage ends nothing that was wrong before
                    self._answers[question] = time.monotonic(), rows
            self._looked_s = time.monotonic()
            known = {question: rows for question, (at_s, rows) in self._answers.items() if not self._is_old(at_s)}
            context = CheckContext(expected=self._expected, served=self._served(), schema=self._store.schema)
            self._found = judge(known, context)
            self._looked.notify_all()
            await anyio.sleep(pause_s(self._looked_s - began_s))

    async def current(self, wait_s: float = WAIT_S) -> list[Finding]:
        """What is wrong, and the warnings, as of the last seconds; waits up to *wait_s* for a look that is due."""
        if time.monotonic() - self._looked_s >= EVERY_S:
            self._wanted.wake()
            with anyio.move_on_after(FIRST_S if wait_s and self._is_old(self._looked_s) else wait_s):
                await self._looked.wait()
        return bad_of([*self._own_findings(), *([] if self._is_old(self._looked_s) else self._found)])

    @staticmethod
    def _is_old(at_s: float) -> bool:
        return time.monotonic() - at_s >= OLD_S

    async def snapshot(self) -> Finding | None:
        """What keeps dead rows from being removed; None: nothing."""
        return next((one for one in await self.current() if one.check == "xmin"), None)


def pause_s(took_s: float) -> float:
    """The pause after a look that took so long."""
    return min(MOST_PAUSE_S, max(EVERY_S, took_s / SHARE))


def judge(rows: Mapping[str, Sequence[Row] | None], known: CheckContext) -> list[Finding]:
    """What is not well, from the rows of each statement; one without rows says nothing."""
    found: list[Finding] = []
    for check, verdict in verdicts(known).items():
        seen = rows.get(CHECKS[check].question) if CHECKS[check].everywhere else None
        if seen is not None:
            found.append(verdict([_without_query(row) for row in seen], GRACE_S))
    return [one for one in found if one.state in {State.WRONG, State.WARNING}]


def _without_query(row: Row) -> Row:
    """Viewers see this, and in a query there may be args."""
    return {**row, "query": None} if "query" in row else row
