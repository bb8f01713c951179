"""What the judge knows of jobs that wait: in which order they may start, and which signal each wait gets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import trio

from pulse.protocol import SubmittedJob
from tests.simulation.machine.process import Process
from tests.support.store.model import FINISHED, WAITING, ModelJob

if TYPE_CHECKING:
    from tests.simulation.rows.workflow_rows import Edge, WorkflowRows
    from tests.simulation.scenario import SignalPlan
    from tests.simulation.world import World

FAILED: Final = FINISHED - {"COMPLETED"}
ROUNDING_S: Final = 0.01
Wait = tuple[bytes, int]  # of a job: its first one, its second one ...


class WorkflowJudge:
    """
    Looks at all jobs after each statement.

    Attributes:
        by_hand: Jobs that were canceled by SQL which told nobody.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.by_hand: set[bytes] = set()
        self._over: dict[Edge, str] = {}  # how a parent had ended when its child no longer waited for it
        self._since_s: dict[Wait, float] = {}
        self._got: dict[Wait, object] = {}

    @property
    def _rows(self) -> WorkflowRows:
        return self._world.database.rows

    def _fail(self, finding: str) -> None:
        self._world.judge.fail(finding)

    def _label(self, job: bytes) -> str:
        return self._world.label(job)

    # Jobs that wait for others.

    def saw(self, jobs: Sequence[SubmittedJob], ended: Mapping[bytes, str]) -> None:
        """The transaction of a submit has seen the end of these, whatever becomes of them before it commits."""
        for job in jobs:
            for parent in job.after or ():
                if parent in ended and job.id is not None and job.id not in self._rows.jobs:
                    self._over[parent, job.id] = ended[parent]

    def look(self, name: str, before: Mapping[bytes, str]) -> None:
        """After a statement; *before*: the status of each job."""
        rows = self._rows
        if name == "retry":
            self._retried({one: was for one, was in before.items() if was in FINISHED and not rows.is_over(one)})
        for edge in rows.edges.keys() - self._over.keys():
            if rows.is_over(edge[0]):
                self._over[edge] = rows.jobs[edge[0]].status if edge[0] in rows.jobs else "COMPLETED"
        for row in rows.jobs.values():
            if row.waiting_on and row.status not in FINISHED:
                parents = [parent for parent, child in rows.edges if child == row.id]
                if all(rows.is_over(one) and one not in self.by_hand for one in parents):
                    self._fail(f"{name}: {self._label(row.id)} is held although all that it waits for is over")
            if row.awaited_signal is not None and row.status in WAITING:
                self._check_signals(name, row)

    def _retried(self, was: Mapping[bytes, str]) -> None:
        """A child that is held waits again for what has not ended; what a completed job has got no longer counts."""
        rows = self._rows
        for edge in [one for one in self._over if was.keys() & one]:
            child = rows.jobs.get(edge[1])
            if child is not None and child.waiting_on and not rows.is_over(edge[0]):
                del self._over[edge]
        for wait in [one for one in self._since_s if was.get(one[0]) == "COMPLETED"]:
            del self._since_s[wait]
            self._got.pop(wait, None)

    def claimed(self, job: bytes) -> None:
        known = self.by_hand | self._world.retried.keys()
        for (parent, child), one in self._rows.edges.items():
            if child != job:
                continue
            ended = self._over.get((parent, child))
            if ended is None:
                self._fail(f"{self._label(child)} starts before {self._label(parent)} is over")
            elif ended in FAILED and one.on_failure == "cancel" and not {parent, child} & known:
                self._fail(f"{self._label(child)} starts although {self._label(parent)} is {ended}")

    def canceled(self, row: ModelJob) -> None:
        """Nobody has canceled it by its name."""
        self._world.judge.count("canceled with its parent")
        rows = self._rows
        edges = [edge for edge, one in rows.edges.items() if edge[1] == row.id and one.on_failure == "cancel"]
        ends = {rows.jobs[edge[0]].status for edge in edges if edge[0] in rows.jobs}
        if not FAILED & (ends | {self._over.get(edge) for edge in edges}):
            self._fail(f"{self._label(row.id)} was canceled, and no job that it waits for has failed")

    def went_back(self) -> None:
        rows = self._rows
        self._over = {
            edge: rows.jobs[edge[0]].status if edge[0] in rows.jobs and rows.is_over(edge[0]) else "COMPLETED"
            for edge, one in rows.edges.items()
            if one.is_over or rows.is_over(edge[0])
        }
        self._got.clear()

    # Signals.

    def _check_signals(self, name: str, row: ModelJob) -> None:
        had = set(_had(row.checkpoint))
        for one in self._rows.sent.get(row.id, ()):
            if one.name == row.awaited_signal and one.id not in had:
                self._fail(f"{name}: {self._label(row.id)} waits beside its signal {one.key}")

    def waits(self, pair: tuple[bytes, int], number: int) -> None:
        """A handler asks for its next signal."""
        self._since_s.setdefault((pair[0], number), trio.current_time())

    def got(self, process: Process, pair: tuple[bytes, int], number: int, payload: object) -> None:
        """It goes on with that one; None: the time is over. What an attempt gets that is stale is its own affair."""
        job, wait = pair[0], (pair[0], number)
        row, database = self._rows.jobs.get(job), self._world.database
        self._world.trace("gets", process, job=job, wait=number, signal=payload)
        if row is None or (row.status, row.attempts) != ("RUNNING", pair[1]):
            return
        self._world.judge.count("waits over" if payload is None else "signals")
        which, plan = f"wait {number} of {self._label(job)}", self._world.jobs[job].waits[number]
        if self._got.setdefault(wait, payload) != payload:
            self._fail(f"{which} got {self._got[wait]}, and in a later attempt {payload}")
        others = {one for (its, other), one in self._got.items() if its == job and other != number}
        if payload is not None and payload in others and not database.gone_back:
            self._fail(f"{which} got {payload}, which another one had")
        if payload is not None and not any(one.key == payload and one.name == plan.name for one in self._sent(job)):
            self._fail(f"{which} got {payload}, which nobody has sent")
        since_s = self._since_s.get(wait)
        if payload is None and since_s is not None and not database.stepped_s and not database.gone_back:
            is_late = plan.timeout_s is not None and trio.current_time() >= since_s + plan.timeout_s - ROUNDING_S
            if not is_late:
                self._fail(f"{which} was over before its time")

    def _sent(self, job: bytes) -> Iterable[SignalPlan]:
        return (one for one in self._world.scenario.signals if one.job == job)

    def at_the_end(self) -> None:
        for one in self._world.sent:
            there = {signal.key for signal in self._rows.sent.get(one.job, ())}
            if one.job in self._rows.jobs and one.key not in there:
                self._fail(f"signal {one.key} was acknowledged, and is gone")


def _had(checkpoint: str | None) -> Iterable[int]:
    """The signals that the waits of a job have."""
    stored = {} if checkpoint is None else json.loads(checkpoint)
    waits = stored.get("$steps", {}) if isinstance(stored, dict) else {}
    return (one["id"] for one in waits.values() if "id" in one)
