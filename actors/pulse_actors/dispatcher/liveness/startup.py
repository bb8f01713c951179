"""
Before the first claim: ends attempts that are RUNNING in the database but cannot be running on this host.

A worker's identity names host, boot, pid namespace and process. Only for this boot and namespace is it certain that a
process has ended. An older boot of this host is over if it was last seen before this kernel started: cloned machines
share names and ids, and the clone may be alive. Workers of other hosts are never touched. Processes that dead workers
have left behind are killed first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import anyio
import structlog

from pulse.store.rows import Ending, EndingKind
from pulse.store.store import Store
from pulse.system import process_tree, processes
from pulse.system.failure_log import FailureLog
from pulse_actors.shared import identity as identities
from pulse_actors.shared.failures import failed_attempts
from pulse_actors.shared.row_writes import write_merged

OTHERS_S: Final = 3.0  # for another supervisor of this host to end the attempts of its own workers
TWIN_SWEEPS: Final = 2.0  # a clone's supervisor refreshes its row once per sweep

log = structlog.get_logger()


async def bury_forgotten(
    store: Store, host: identities.Host, *, boot: bool, sweep_s: float
) -> tuple[list[str], list[Ending]]:
    """
    End attempts of workers of this host that died while no dispatcher watched.

    Which of them had started is unknown. After a restart of the dispatcher alone each attempt spends the crash budget:
    a job that kills the dispatcher together with its worker must not do so for ever. When the whole server starts,
    nothing is charged: it was stopped, perhaps in a hurry, or the machine was restarted.

    Args:
        boot: Whether the supervisor starts it for the first time.
        sweep_s: How often supervisors say that their hosts are alive.

    Returns:
        Living workers of this host that hold jobs; and those whose rows others have locked.
    """
    await anyio.to_thread.run_sync(process_tree.kill_orphans)  # leftovers must not run beside the next attempts
    kind = EndingKind.RELEASED if boot else EndingKind.CRASHED
    living: list[str] = []
    locked: list[Ending] = []
    workers = await store.running_workers()
    over = ended_boots(await store.host_boots(host.id), host, processes.uptime_s(), TWIN_SWEEPS * sweep_s)
    for identity in workers:
        named = identities.parse(identity)
        process = identities.process_of(host, identity)
        if process is not None and processes.lives(*process):
            living.append(identity)
        elif process is not None:
            locked += await _end(store, identity, kind, "worker process died: nobody saw how")
        elif named is not None and named.host == host.id and named.boot in over:
            reason = "worker process died: its machine was restarted"
            locked += await _end(store, identity, EndingKind.RELEASED, reason)
    return living, locked


async def bury_late(store: Store, host: identities.Host, has_met: Callable[[str], bool]) -> None:
    """
    Give back claims of an earlier dispatcher that were committed after it was killed.

    Args:
        has_met: Whether this dispatcher has seen a worker alive, and so will notice its end.
    """
    dead = {
        identity
        for identity in await store.running_workers()
        if (process := identities.process_of(host, identity)) is not None
        and not processes.lives(*process)
        and not has_met(identity)
    }
    if dead:
        await anyio.sleep(OTHERS_S)
        for identity in dead.intersection(await store.running_workers()):
            await _end(store, identity, EndingKind.UNASSIGNED, None)


async def _end(store: Store, identity: str, kind: EndingKind, reason: str | None) -> list[Ending]:
    held = await store.running_of(identity)
    failures = FailureLog(log)

    async def together(endings: Sequence[Ending]) -> None:
        failures.note(failed_attempts(endings, await store.end(endings)))

    left = await write_merged(store, [Ending(*pair, identity, kind, error=reason) for pair in held], together)
    failures.settle()
    log.warning("worker_died", worker=identity, reason=reason, held=len(held))
    return [one.row for one in left]


def ended_boots(seen_ago_s: Mapping[str, float], host: identities.Host, uptime_s: float, margin_s: float) -> set[str]:
    """
    The boots of this host that are over.

    Args:
        seen_ago_s: Boot -> seconds since it was last seen.
        host: This host, with its present boot.
        uptime_s: Seconds since this kernel started, suspended time included.
        margin_s: How old the last sign of life of a clone may be.
    """
    return {boot for boot, ago_s in seen_ago_s.items() if boot != host.boot and ago_s > uptime_s + margin_s}
