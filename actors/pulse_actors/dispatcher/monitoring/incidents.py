"""
Incidents that counts and workers do not show: sessions that pin dead rows, jobs that die or hang, dead hosts.

The statements and verdicts are those of `pulse doctor`, so that all tools use the same words. They run every few
seconds while a client asks; only present problems are listed, while the doctor looks at an hour.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import anyio

from pulse.ops.doctor import blockers, epochs, queue, refusals
from pulse.ops.doctor.finding import Finding, State
from pulse.store.admin.doctor import ASKED, IncidentStore

EVERY_S: Final = 5.0  # between two looks
SHARE: Final = 0.02  # of the time, for looking
WAIT_S: Final = 0.3  # for a look that a client asked for; then the last one is returned
OLD_S: Final = 60.0  # older findings are dropped
GRACE_S: Final = 60.0  # as in the doctor
NEW_S: Final = 900.0  # older ends of attempts are history, if none has followed
MANY: Final = 3  # handlers that ran out of time and ended when cancelled count as incident from so many on

Row = Mapping[str, Any]


class Incidents:
    """
    The newest look.

    Args:
        own_findings: Returns findings of this process.
    """

    def __init__(self, store: IncidentStore, own_findings: Callable[[], Sequence[Finding]] = tuple) -> None:
        self._store = store
        self._own_findings = own_findings
        self._found: dict[str, Finding] = {}
        self._looked_s = float("-inf")
        self._wanted = anyio.Event()
        self._looked = anyio.Event()

    async def run(self) -> None:
        """Look while clients ask, until cancelled; a look is never interrupted."""
        while True:
            await self._wanted.wait()
            self._wanted = anyio.Event()
            began_s = time.monotonic()
            rows = {question: await self._store.ask(question) for question in ASKED}
            self._found = {one.check: one for one in judge(rows)}
            self._looked_s = time.monotonic()
            looked, self._looked = self._looked, anyio.Event()
            looked.set()
            await anyio.sleep(max(EVERY_S, (self._looked_s - began_s) / SHARE))

    async def current(self, wait_s: float = WAIT_S) -> list[Finding]:
        """The incidents of the last seconds; waits up to *wait_s* for a look that is due."""
        if time.monotonic() - self._looked_s >= EVERY_S:
            looked = self._looked
            self._wanted.set()
            with anyio.move_on_after(wait_s):
                await looked.wait()
        is_old = time.monotonic() - self._looked_s >= OLD_S
        return [*self._own_findings(), *([] if is_old else self._found.values())]

    async def snapshot(self) -> Finding | None:
        """What keeps dead rows from being removed; None: nothing."""
        return next((one for one in await self.current() if one.check == "xmin"), None)


def judge(rows: Mapping[str, Sequence[Row] | None]) -> list[Finding]:
    """The incidents, from the rows of each statement; one without rows says nothing."""
    attempts = [row for row in rows.get("queue_attempts") or () if _is_recent(row)]
    verdicts: Sequence[tuple[Callable[[Sequence[Row], float], Finding], Sequence[Row]]] = (
        (queue.hosts, [row for row in rows.get("queue_hosts") or () if row["running"] or row["lapsed"]]),
        (queue.unhandled, rows.get("queue_unhandled") or ()),
        (queue.crashes, attempts),
        (queue.hung, attempts),
        (epochs.epochs, rows.get("queue_epochs") or ()),
        (refusals.set_aside, rows.get("queue_set_aside") or ()),
        (
            blockers.xmin,
            [{**row, "query": None} for row in rows.get("xmin") or ()],
        ),  # viewers see this, and it may have args
    )
    found = [verdict(some, GRACE_S) for verdict, some in verdicts]
    return [one for one in found if one.state is not State.OK]


def _is_recent(row: Row) -> bool:
    if row["age_s"] > NEW_S:
        return False
    return row["outcome"] in {"crashed", "lease_expired"} or row["killed"] > 0 or row["attempts"] >= MANY
