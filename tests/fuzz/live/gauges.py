"""What the processes of a system use, and how long a client waits."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.waiting import until

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
SETTLE_S: Final = 20.0  # a connection that is half open is closed by then


@dataclass(frozen=True, slots=True)
class Use:
    rss_bytes: int
    fds: int


def use(pid: int) -> Use:
    directory = Path(f"/proc/{pid}")
    try:
        pages = int((directory / "statm").read_text("ascii").split()[1])
        return Use(pages * _PAGE_BYTES, len(os.listdir(directory / "fd")))  # noqa: PTH208 - names only
    except OSError:
        return Use(0, 0)


def uses(pids: Mapping[str, int]) -> dict[str, Use]:
    return {name: use(pid) for name, pid in pids.items()}


def settled(pids: Mapping[str, int], before: Mapping[str, Use], room: int) -> dict[str, Use]:
    """Of each process as soon as it has about as many descriptors as before, or at the deadline."""
    with contextlib.suppress(AssertionError):
        until(lambda: all(use(pid).fds <= before[name].fds + room for name, pid in pids.items()), "", SETTLE_S)
    return uses(pids)


@dataclass(frozen=True, slots=True)
class Window:
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Turns:
    """
    An attack with rests, so that quiet and attack are measured on the same machine at the same time.

    Attributes:
        begin_s: When it begins, by the monotonic clock, which all processes of a machine share.
        settle_s: The part of a rest that does not count as quiet: what was under way ends first.
    """

    begin_s: float
    attack_s: float
    rest_s: float
    settle_s: float

    def left_s(self, now_s: float) -> float:
        """How long the rest still lasts; 0 during an attack."""
        period_s = self.attack_s + self.rest_s
        at_s = (now_s - self.begin_s) % period_s
        return period_s - at_s if at_s >= self.attack_s else 0.0

    def windows(self, end_s: float) -> tuple[list[Window], list[Window]]:
        """When it was attacked up to *end_s*, and when all was quiet: whole rests only."""
        attacked: list[Window] = []
        quiet: list[Window] = []
        begin_s = self.begin_s
        while begin_s < end_s:
            rest_s = begin_s + self.attack_s
            attacked.append(Window(begin_s, min(rest_s, end_s)))
            begin_s = rest_s + self.rest_s
            if begin_s <= end_s:
                quiet.append(Window(rest_s + self.settle_s, begin_s))
        return attacked, quiet


def latencies(file: Path, windows: Sequence[Window]) -> dict[str, list[float]]:
    """The latencies within these windows, by operation, each sorted."""
    found: dict[str, list[float]] = {}
    for line in file.read_text("ascii").splitlines():
        at_s, what, took_s = line.split()
        if any(window.begin_s <= float(at_s) < window.end_s for window in windows):
            found.setdefault(what, []).append(float(took_s))
    return {what: sorted(some) for what, some in found.items()}


def percentile(some: Sequence[float], share: float) -> float:
    """Of sorted values: the smallest that so many do not exceed."""
    return some[min(len(some) - 1, int(len(some) * share))] if some else float("nan")
