"""The simulation finds faults, is deterministic, and exact about stopped processes."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from tests.simulation.__main__ import HASH_SEED
from tests.simulation.machine import clockwork
from tests.simulation.machine.process import PROCESS, Process
from tests.simulation.variants import VARIANTS
from tests.support.whole import WHOLE

pytestmark = pytest.mark.simulation

ROOT = Path(__file__).parents[2]
SEEDS = 1000 if WHOLE else 60


@functools.cache
def simulation(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the program once, in processes of its own: only there is the order of sets the same each time."""
    command = [sys.executable, "-m", "tests.simulation", *words]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, HASH_SEED: "0"}
    )


@pytest.mark.rest
@pytest.mark.long
@pytest.mark.timeout(600)
def test_many_seeds_find_nothing() -> None:
    done = simulation("--seeds", f"1-{SEEDS}")
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    assert done.stdout.startswith(f"{SEEDS} runs")


@pytest.mark.rest
@pytest.mark.timeout(600)
def test_each_guard_is_missed() -> None:
    """With a guard taken out some seed finds it, and the same seed finds nothing when it is there."""
    done = simulation(*(word for one in sorted(VARIANTS) for word in ("--variant", one)))
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    assert done.stdout.count("found by seed") == len(VARIANTS)


@pytest.mark.rest
def test_a_seed_is_a_run() -> None:
    """The same seed makes the same history to the last microsecond, in another process too; others differ."""
    first, other = (simulation("--seed", seed).stdout for seed in ("4", "11"))
    for seed, told in (("4", first), ("11", other)):
        assert told.count("\n") > 50
        assert simulation.__wrapped__("--seed", seed).stdout == told
    assert first != other


@pytest.mark.rest
def test_what_happens_in_a_world() -> None:
    """Every kind of trouble and of ending occurs in these seeds: what is never tried proves nothing."""
    done = simulation("--seeds", f"1-{SEEDS}")
    counts = dict(re.findall(r"([a-z_ ]+?) (\d+)(?:,|$)", done.stdout.partition(": ")[2], re.MULTILINE))
    happened = {what.strip() for what in counts}
    assert happened >= {
        *("completed", "crashed", "timeout", "stalled", "lease_expired", "released", "unassigned", "canceled"),
        *("trap at a word", "reboot", "kill an actor", "stop an actor", "stop a worker", "database away"),
        *("database goes back", "epochs", "rows locked", "table locked", "full", "rate"),
        *("signals", "waits over", "canceled with its parent", *(("by hand",) if WHOLE else ())),
    }


class Bystander:
    def bury(self, process: Process, _status: int) -> None:
        process.dead = True
        process.scope.cancel()
        process.thaw()


def in_a_process(what: Callable[[Process, list[float]], Awaitable[None]]) -> list[float]:
    noted: list[float] = []

    async def ticks() -> None:
        process = PROCESS.get()
        with process.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(note)

    async def note() -> None:
        while True:
            noted.append(trio.current_time() - clockwork.BEGIN_S)
            await trio.sleep(1.0)

    async def main() -> None:
        process = Process(cast("Any", Bystander()), "p", 1, 1, uid=0, pidns=0, parent=None, leads_group=False)
        async with trio.open_nursery() as nursery:
            token = PROCESS.set(process)
            nursery.start_soon(ticks)
            PROCESS.reset(token)
            await what(process, noted)
            process.exit(0)

    clockwork.run(main, 0)
    return noted


def test_a_stopped_process_runs_nothing() -> None:
    """Between SIGSTOP and SIGCONT no code of a process runs, in whichever task; then it goes on where it was."""

    async def stop(process: Process, _noted: list[float]) -> None:
        await trio.sleep(2.5)
        process.freeze(stopped=True)
        await trio.sleep(10.0)
        process.freeze(stopped=False)
        await trio.sleep(1.2)

    assert in_a_process(stop) == pytest.approx([0.0, 1.0, 2.0, 12.5, 13.5], abs=0.01)


def test_a_dead_process_runs_nothing() -> None:
    async def kill(process: Process, _noted: list[float]) -> None:
        await trio.sleep(2.5)
        process.freeze(stopped=True)
        await trio.sleep(10.0)
        process.exit(9)
        await trio.sleep(5.0)

    assert in_a_process(kill) == pytest.approx([0.0, 1.0, 2.0], abs=0.01)
