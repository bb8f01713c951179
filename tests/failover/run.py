"""Plays scenes on one cluster, with a system that works on it, and judges each by the ledger of the chaos suite."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.chaos.load.load import Load, Shape
from tests.chaos.site import SETTINGS, Site
from tests.failover import gap
from tests.failover.cluster import Cluster, cluster
from tests.failover.scenes import SCENES, Stage
from tests.support.systems.system_kit import place

RATE: Final = 30.0
FULL: Final = 0.9  # of that
POOL: Final = ("--processes", "2", "--concurrency", "8")
BAR_S: Final = 3.0  # from the promotion to full speed
ENOUGH: Final = 60  # jobs before a scene and after it
SETTLE_S: Final = 30.0
DRAIN_S: Final = 60.0
_NOT_KEPT: Final = ("*.sock", ".s.*", "run")

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Played:
    """
    A scene.

    Attributes:
        away_s: From its begin until a primary took writes.
        first_s: From then until a job was started, which is a claim that was written.
        full_s: From then until jobs were started as fast as before.
    """

    name: str
    away_s: float
    first_s: float
    full_s: float


@dataclass(slots=True)
class Ledger:
    """What the run found; *counts*: of all scenes together, and what a gap lost; *wrong*: what does not hold."""

    played: list[Played] = field(default_factory=list[Played])
    counts: Counter[str] = field(default_factory=Counter[str])
    wrong: list[str] = field(default_factory=list[str])

    def lines(self) -> Iterator[str]:
        for name, count in self.counts.items():
            yield f"{name:<36}{count:>8,}"
        yield ""
        yield f"{'scene':<20}{'no primary':>12}{'to a job':>12}{'to full speed':>16}{'bar':>8}"
        for one in self.played:
            yield f"{one.name:<20}{one.away_s:>10.1f} s{one.first_s:>10.2f} s{one.full_s:>14.2f} s{BAR_S:>6.0f} s"
        yield ""
        yield "every invariant holds" if not self.wrong else f"{len(self.wrong)} invariants or bars do not hold"


def play(names: Sequence[str], tell: Tell, keep: Path | None, *, nodes: int = 3, etcds: int = 3) -> Ledger:
    """
    Play scenes, one after the other; stops at the first in which something is wrong.

    Args:
        keep: Where ledgers and logs are kept if something is wrong.
    """
    ledger, began_s = Ledger(), time.monotonic()

    def say(text: str) -> None:
        tell(f"[{time.monotonic() - began_s:6.1f} s] {text}")

    with staged(nodes, etcds) as stage:
        try:
            for name in names:
                say(name)
                _play(stage, name, ledger, say)
                if ledger.wrong:
                    break
        except BaseException as error:
            ledger.wrong.append(f"{type(error).__name__}: {error}")
            if not isinstance(error, Exception):
                raise
        finally:
            if ledger.wrong and keep is not None:
                ignored = shutil.ignore_patterns(*_NOT_KEPT, *(node.name for node in stage.cluster.nodes), "e[0-9]")
                for source in (stage.site.whole.directory, stage.cluster.directory):
                    shutil.copytree(source, keep / source.name, ignore=ignored, dirs_exist_ok=True)
                say(f"kept: {keep}")
    return ledger


@contextlib.contextmanager
def staged(nodes: int, etcds: int) -> Iterator[Stage]:
    """A system at work on a cluster that replicates synchronously."""
    with contextlib.ExitStack() as stack:
        made: Cluster = stack.enter_context(cluster(nodes, etcds, synchronous_mode=True))
        whole = stack.enter_context(place(made.dsn, (), **SETTINGS))
        site = Site(whole, made)
        stack.callback(site.close)
        site.start()
        site.pool(*POOL)
        load = stack.enter_context(Load(whole.path, site.ledger, Shape(RATE, producers=2), seed=1))
        yield Stage(made, site, load)


def _play(stage: Stage, name: str, ledger: Ledger, say: Tell) -> None:
    stage.cluster.settle()
    stage.load.go_on()
    stage.more(ENOUGH)
    began_s = time.monotonic()
    promoted_s = SCENES[name](stage)
    stage.more(ENOUGH)
    starts_s = [line.at_s for line in stage.site.lines("start") if line.at_s >= promoted_s]
    full_s = next(at_s for at_s in starts_s if sum(at_s <= one < at_s + 1 for one in starts_s) >= FULL * RATE)
    played = Played(name, promoted_s - began_s, starts_s[0] - promoted_s, full_s - promoted_s)
    ledger.played.append(played)
    say(f"  no primary for {played.away_s:.1f} s; full speed {played.full_s:.2f} s after the promotion")
    if played.full_s > BAR_S:
        ledger.wrong.append(f"{name}: full speed {played.full_s:.1f} s after the promotion; the bar is {BAR_S:.0f} s")
    stage.load.rest()
    if stage.load.gave_up:
        ledger.wrong.append(f"{name}: {stage.load.gave_up} submits were never acknowledged")
    stage.cluster.settle()
    stage.site.settle(SETTLE_S)
    stage.site.drain(DRAIN_S)
    report = stage.site.report(drained=not stage.gaps)
    ledger.wrong += [f"{name}: {one}" for one in report.wrong]
    ledger.counts = Counter(report.verdict.counts)
    for one in stage.gaps:
        found, counts = gap.judged(stage.site, one)
        ledger.wrong += found
        ledger.counts.update(counts)
    say(f"  {ledger.counts['acked']:,} acknowledged, {ledger.counts['completed']:,} completed")
