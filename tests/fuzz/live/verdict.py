"""What must hold after an attack, as a list of rules."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from tests.fuzz.live.gauges import Use, percentile

MORE_RSS_BYTES: Final = 20 * 1024 * 1024
MORE_FDS: Final = 8  # connections to the database come and go
TIMES: Final = 2.0
OPERATIONS: Final = ("submit", "get", "job")  # that are held against TIMES
# Events of the log that say that something was not foreseen.
UNFORESEEN: Final = frozenset({"visit_failed", "connection_failed", "request_failed"})


@dataclass(frozen=True, slots=True)
class Rule:
    what: str
    measured: str
    bar: str
    holds: bool

    def line(self) -> str:
        return f"{'ok   ' if self.holds else 'WRONG'}  {self.what:<44} {self.measured:<28} {self.bar}"


@dataclass(frozen=True, slots=True)
class Measured:
    """
    What a run has found.

    Attributes:
        before: What each process had in the quiet before.
        after: The same in the quiet after.
        peak: Most memory of the dispatcher meanwhile.
        quiet: Latencies before and after, by operation; sorted.
        attacked: Latencies during the attack.
        pids: Of the supervisor and its actors, before and after.
        complaints: Answers that attackers must not get.
        unforeseen: Lines of the log.
        jobs: Faults in the healthy ones' jobs, and in those that were acknowledged to attackers.
        limit: Most jobs of the limited topic that ran at once, in all and of a group, and how many were allowed.
        checked: What `pulse check` found wrong.
        times: Allowed slowdown against quiet; None: any.
    """

    before: Mapping[str, Use]
    after: Mapping[str, Use]
    peak_bytes: int
    quiet: Mapping[str, Sequence[float]]
    attacked: Mapping[str, Mapping[str, Sequence[float]]]
    pids: tuple[Mapping[str, int], Mapping[str, int]]
    frames: int
    wanted: int
    connections: int
    restarts: int = 0
    complaints: Sequence[Mapping[str, object]] = ()
    unforeseen: Sequence[str] = ()
    jobs: Sequence[str] = ()
    limit: Sequence[tuple[str, int, int]] = ()
    checked: Sequence[str] = ()
    times: float | None = TIMES
    details: Mapping[str, object] = field(default_factory=dict[str, object])


def judge(found: Measured) -> list[Rule]:
    return [
        Rule("frames that were read", f"{found.frames:,}", f"at least {found.wanted:,}", found.frames >= found.wanted),
        _deaths(found),
        *_memory(found),
        *_descriptors(found),
        *_latencies(found),
        _none("jobs lost or changed", found.jobs),
        *_limits(found),
        _none("violations found by pulse check", found.checked),
        _none("answers `internal`", [str(one["message"]) for one in found.complaints]),
        _none("exceptions in the log", found.unforeseen),
    ]


def _limits(found: Measured) -> list[Rule]:
    """A limit that was never full shows nothing."""
    return [Rule(f"jobs at once, {what}", f"{ran}", f"{most}", ran == most) for what, ran, most in found.limit]


def most_at_once(spans: Iterable[tuple[datetime, datetime]]) -> int:
    """Of these runs, from a start to an end each; what ends at a start is over by then."""
    moments = sorted(moment for begin, end in spans for moment in ((begin, 1), (end, -1)))
    return max(itertools.accumulate(step for _, step in moments), default=0)


def _none(what: str, some: Sequence[str]) -> Rule:
    return Rule(what, f"{len(some)}" + (f": {some[0]:.120}" if some else ""), "none", not some)


def _deaths(found: Measured) -> Rule:
    before, after = found.pids
    changed = sorted(name for name in before if after.get(name) != before[name])
    count = max(found.restarts, len(changed))
    return Rule("deaths of supervisor and actors", " ".join([str(count), *changed]), "0", not count)


def _memory(found: Measured) -> list[Rule]:
    rules = []
    for name, before in found.before.items():
        more = found.after[name].rss_bytes - before.rss_bytes
        told = f"{before.rss_bytes / 2**20:.1f} {more / 2**20:+.1f} MiB"
        if name == "dispatcher":
            told += f", most {found.peak_bytes / 2**20:.1f}"
        rules.append(Rule(f"memory of {name}", told, f"+{MORE_RSS_BYTES / 2**20:g} MiB", more <= MORE_RSS_BYTES))
    return rules


def _descriptors(found: Measured) -> list[Rule]:
    return [
        Rule(
            f"descriptors of {name}", f"{before.fds}, then {found.after[name].fds}", f"+{MORE_FDS}",
            found.after[name].fds <= before.fds + MORE_FDS,
        )
        for name, before in found.before.items()
    ]  # fmt: skip


def _latencies(found: Measured) -> list[Rule]:
    rules = []
    for phase, by_operation in found.attacked.items():
        for what in OPERATIONS:
            quiet, attacked = found.quiet.get(what, ()), by_operation.get(what, ())
            if not quiet or not attacked:
                rules.append(Rule(f"p99 of {what}, {phase}", "nothing was measured", "", holds=False))
                continue
            quiet_s, attacked_s = percentile(quiet, 0.99), percentile(attacked, 0.99)
            told = f"{quiet_s * 1000:.1f}, then {attacked_s * 1000:.1f} ms ({attacked_s / quiet_s:.2f}×)"
            bar = "" if found.times is None else f"{found.times:g}×"
            holds = found.times is None or attacked_s <= found.times * quiet_s
            rules.append(Rule(f"p99 of {what}, {phase}", told, bar, holds))
    return rules
