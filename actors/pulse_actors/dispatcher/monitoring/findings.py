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

from pulse.ops.doctor.checks import CHECKS
from pulse.ops.doctor.finding import Finding, State, bad_of
from pulse.ops.doctor.verdicts import CheckContext, verdicts
from pulse.store.admin.doctor import FindingStore, expected_indexes

EVERY_S: Final = 5.0  # between two looks
SHARE: Final = 0.02  # of the time, for looking
WAIT_S: Final = 0.3  # for a look that a client asked for; then the last one is returned
OLD_S: Final = 60.0  # older findings are dropped
GRACE_S: Final = 60.0  # as in the doctor
ASKED: Final = {one.question for one in CHECKS.values() if one.everywhere and one.question}

Row = Mapping[str, Any]


class Findings:
    """
    The newest look.

    Args:
        served: Returns the topics that connected workers serve.
        own_findings: Returns findings of this process.
    """

    def __init__(
        self,
        store: FindingStore,
        served: Callable[[], Collection[str]] = tuple,
        own_findings: Callable[[], Sequence[Finding]] = tuple,
    ) -> None:
        self._store = store
        self._served = served
        self._own_findings = own_findings
        self._expected = expected_indexes()
        self._found: list[Finding] = []
        self._looked_s = float("-inf")
        self._wanted = anyio.Event()
        self._looked = anyio.Event()

    async def run(self) -> None:
        """Look while clients ask, until cancelled; a look is never interrupted."""
        while True:
            await self._wanted.wait()
            self._wanted = anyio.Event()
            began_s = time.monotonic()
            rows = {question: await self._store.ask(question) for question in sorted(ASKED)}
            self._found = judge(rows, CheckContext(expected=self._expected, served=self._served()))
            self._looked_s = time.monotonic()
            looked, self._looked = self._looked, anyio.Event()
            looked.set()
            await anyio.sleep(max(EVERY_S, (self._looked_s - began_s) / SHARE))

    async def current(self, wait_s: float = WAIT_S) -> list[Finding]:
        """What is wrong, and the warnings, as of the last seconds; waits up to *wait_s* for a look that is due."""
        if time.monotonic() - self._looked_s >= EVERY_S:
            looked = self._looked
            self._wanted.set()
            with anyio.move_on_after(wait_s):
                await looked.wait()
        is_old = time.monotonic() - self._looked_s >= OLD_S
        return bad_of([*self._own_findings(), *([] if is_old else self._found)])

    async def snapshot(self) -> Finding | None:
        """What keeps dead rows from being removed; None: nothing."""
        return next((one for one in await self.current() if one.check == "xmin"), None)


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
