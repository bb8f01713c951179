"""The nemesis: carries out a plan, one epoch after the other, and judges each."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import asyncpg

from tests.chaos import plan
from tests.chaos.faults.database_faults import FillTablespace
from tests.chaos.faults.fault import Fault
from tests.chaos.faults.faults import FAULTS
from tests.chaos.faults.process_faults import GAVE_UP
from tests.chaos.load.load import Load
from tests.chaos.load.operators import operators
from tests.chaos.plan import Blow, Epoch
from tests.chaos.site import Site, site
from tests.chaos.summary import Summary
from tests.support.waiting import is_alive, until

EPOCH_S: Final = 180.0
RECOVER_S: Final = 60.0  # beyond that it has not recovered
DRAIN_S: Final = 120.0
PROBES: Final = "probes"  # a topic with a pool of its own: how long the others' jobs take says nothing of the fault
PROBE_POOL: Final = ("--topic", PROBES, "--processes", "1", "--concurrency", "2")
TELL_S: Final = 5.0
LEAVE_S: Final = 5.0
_NOT_KEPT: Final = ("*.sock", ".s.*", "postgres", "postgres-copy", "run")
_TABLES: Final = (
    "pulse.jobs", "pulse.attempts", "pulse.schedules", "pulse.topics", "pulse_audit.changes", "pulse_audit.gates",
)  # fmt: skip

Tell = Callable[[str], None]


class Nemesis:
    """
    A run.

    Args:
        duration_s: How long it goes on; the epoch that is under way then still ends.
        keep: Where ledgers, logs and tables are kept; None: only when something is wrong, and then in a new place.
    """

    def __init__(self, seed: int, names: Sequence[str], duration_s: float, keep: Path | None, tell: Tell) -> None:
        self.summary = Summary(seed)
        self._names = names
        self._duration_s = duration_s
        self._keep = keep
        self._tell = tell
        self._began_s = self._told_s = time.monotonic()

    def run(self) -> Summary:
        """All of it; stops at the first epoch in which something is wrong."""
        for epoch in plan.epochs(self.summary.seed, self._names):
            left_s = self._duration_s - self._lasted_s
            if left_s <= 0 or self.summary.wrong:
                break
            self._epoch(epoch, min(EPOCH_S, left_s))
        self.summary.lasted_s = self._lasted_s
        return self.summary

    @property
    def _lasted_s(self) -> float:
        return time.monotonic() - self._began_s

    def _say(self, text: str) -> None:
        self._told_s = time.monotonic()
        self._tell(f"[{self._lasted_s:7.1f} s] {text}")

    def _epoch(self, epoch: Epoch, lasts_s: float) -> None:
        kind = "a database beside it" if epoch.own else "the supervisor's own database"
        self._say(f"epoch {epoch.number}: {epoch.shape}; {kind}")
        with contextlib.ExitStack() as stack:
            made = stack.enter_context(site(own=epoch.own, pool=epoch.pools[0].sizes))
            stack.callback(FillTablespace.clear, made)
            try:
                self._suffer(made, epoch, lasts_s)
                self._judge(made)
                self._stop(made)
            except BaseException as error:
                self.summary.wrong.append(f"epoch {epoch.number}: {type(error).__name__}: {error}")
                if not isinstance(error, Exception):
                    raise
                with contextlib.suppress(Exception):
                    self._judge(made, drained=False)
            finally:
                self.summary.epochs += 1
                if self._keep is not None or self.summary.wrong:
                    self._preserve(made, epoch)

    def _suffer(self, made: Site, epoch: Epoch, lasts_s: float) -> None:
        made.start()
        for pool in epoch.pools[1:]:
            made.pool(*pool.options)
        made.pool(*PROBE_POOL)
        with made.client() as client:
            client.schedules_create("tick", every_s=1.0)
        over_s = time.monotonic() + lasts_s
        with Load(made.whole.path, made.ledger, epoch.shape, epoch.seed, operators(made, epoch.seed)) as load:
            for step in epoch.steps:
                if time.monotonic() >= over_s:
                    break
                self._step(made, step, load)
            load.rest()
            if load.gave_up:
                self.summary.wrong.append(f"epoch {epoch.number}: {load.gave_up} submits were never acknowledged")
            self._manage(made)
            made.settle(RECOVER_S)
            made.drain(DRAIN_S)

    def _step(self, made: Site, step: Sequence[Blow], load: Load) -> None:
        """Let some faults strike, heal them, and see how long it takes until all is well again."""
        struck: list[tuple[Blow, Fault]] = []
        from_s = time.monotonic()
        with contextlib.ExitStack() as stack:
            for blow in step:
                self._rest(made, blow.after_s)
                fault = FAULTS[blow.name](made, random.Random(blow.seed))
                if why := fault.missing(made):
                    self.summary.left_out.setdefault(blow.name, why)
                    continue
                struck.append((blow, fault))
                self._say(f"  {blow.name}, held for {blow.held_s:.1f} s")
                from_s = time.monotonic()
                stack.callback(fault.heal)
                made.strikes += fault.kills
                fault.inject()
                if not blow.held_s:
                    fault.heal()
            if not struck:
                return
            held_s = max(blow.held_s for blow, _ in struck)
            if held_s:
                self._rest(made, held_s, manage=False)
                from_s = time.monotonic()
        took_s = self._recover(made, from_s)
        self.summary.count([fault for _, fault in struck], took_s)
        self._say(f"    whole again after {took_s:.2f} s; {load.acked:,} jobs acked")

    def _recover(self, made: Site, from_s: float) -> float:
        def is_well() -> bool:
            self._manage(made)
            return made.is_whole()

        until(is_well, "all of it is there again", RECOVER_S)
        made.probe(RECOVER_S, topic=PROBES)
        return time.monotonic() - from_s

    def _rest(self, made: Site, seconds: float, *, manage: bool = True) -> None:
        """Wait, show progress, and do what a service manager does."""
        over_s = time.monotonic() + seconds
        while (now_s := time.monotonic()) < over_s:
            if manage:
                self._manage(made)
            if now_s - self._told_s > TELL_S:
                self._say("  …")
            time.sleep(min(0.2, max(0.0, over_s - now_s)))

    def _manage(self, made: Site) -> None:
        process = made.whole.process
        if process is not None and process.poll() is not None:
            assert process.returncode == GAVE_UP, f"the supervisor ended with {process.returncode}"
            made.whole.process = None
            self.summary.gave_up += 1
            made.start(audit=False)

    def _judge(self, made: Site, *, drained: bool = True) -> None:
        report = made.report(drained=drained)
        counts = report.verdict.counts
        self.summary.counts.update(counts)
        self.summary.duplicates.update(report.verdict.duplicates.values())
        self.summary.wrong += report.wrong
        self._say(
            f"  drained: {counts['acked']:,} acked, {counts['completed']:,} completed, {counts['dead']:,} dead, "
            f"{counts['scheduled']:,} of schedules"
        )

    def _stop(self, made: Site) -> None:
        assert made.whole.process is not None
        actors = made.whole.pids()
        code = made.whole.stop()
        assert code == 0, f"the supervisor ended with {code} when it was asked to stop"
        until(lambda: not any(map(is_alive, actors.values())), "its actors end", LEAVE_S)

    def _preserve(self, made: Site, epoch: Epoch) -> None:
        import tempfile

        if self._keep is None:
            self._keep = Path(tempfile.mkdtemp(prefix="pulse-chaos-"))
        place = self._keep / f"seed-{self.summary.seed}-epoch-{epoch.number}"
        shutil.copytree(made.whole.directory, place, ignore=shutil.ignore_patterns(*_NOT_KEPT), dirs_exist_ok=True)
        with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            asyncio.run(_copy_tables(made.database.dsn, place))
        (place / "summary.json").write_text(json.dumps(self.summary.document(), indent=2), "utf-8")
        self._say(f"  kept: {place}")


async def _copy_tables(dsn: str, place: Path) -> None:
    connection = await asyncpg.connect(dsn, timeout=5)
    try:
        for table in _TABLES:
            await connection.copy_from_query(
                f"SELECT * FROM {table}", output=place / f"{table}.csv", format="csv", header=True
            )
    finally:
        connection.terminate()
