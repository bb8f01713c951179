"""All mutants of code."""

from __future__ import annotations

from typing import Final

from tests.mutants.code import CodeMutant, Guarded
from tests.mutants.guards import (
    claims,
    cursors,
    deaths,
    desk,
    identity,
    leases,
    machine,
    machine_rows,
    news,
    others,
    overdue,
    reconcile,
    restarts,
    results,
    schedules,
    silence,
    sweeps,
    visit,
    worker,
)

GUARDED: Final[list[Guarded]] = [
    machine.MACHINE,
    restarts.POLICY,
    restarts.RESTARTS,
    sweeps.SWEEPS,
    sweeps.WATCHDOG,
    identity.IDENTITY,
    desk.DESK,
    cursors.CURSORS,
    reconcile.RECONCILE,
    deaths.DEATHS,
    silence.SILENCE,
    claims.CLAIMS,
    claims.ASSIGNMENTS,
    results.RESULTS,
    leases.LEASES,
    news.NEWS,
    news.PAUSE,
    news.RETENTION,
    overdue.OVERDUE,
    overdue.STACKS,
    visit.VISIT,
    visit.SERVICE,
    schedules.CRON,
    schedules.CATCH_UP,
    schedules.SCHEDULER,
    others.REQUESTS,
    others.SERVICE,
    others.PROTOCOL,
    others.CONNECTION,
    others.BATCHING,
    others.TREES,
    others.LANES,
    others.PROCS,
    worker.DESK,
    worker.CHECKPOINTS,
    worker.BEAT_SHEET,
    worker.DEADLINES,
    worker.POLICY,
    worker.BEATS,
]
CODE_MUTANTS: Final[list[CodeMutant]] = [
    *machine_rows.ROWS,
    *(mutant for guarded in GUARDED for mutant in guarded.mutants),
]
