"""All scenes by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from bench import calls, drain, flow
from bench.curves import curves
from bench.graphs import graphs
from bench.hooks import hooks
from bench.latency import latency
from bench.limits import limits, turns
from bench.restart import restart
from bench.results import Sample
from bench.scale import scale
from bench.shared import shared
from bench.stability import stability
from bench.stage import Stage
from bench.two import two
from bench.waits import waits
from bench.workers import workers


@dataclass(frozen=True, slots=True)
class Scene:
    """
    One thing to measure.

    Attributes:
        about: For people.
        measure: One round of it.
        default: Whether it is measured when no scene is named.
        once: It is long, or looks at itself several times: one round is enough.
    """

    about: str
    measure: Callable[[Stage], list[Sample]]
    default: bool = False
    once: bool = False


SCENES: Final[Mapping[str, Scene]] = {
    "drain": Scene("no-op jobs that wait are done", drain.drain, default=True),
    "cpu": Scene("CPU of each process per job, meanwhile", drain.cpu, default=True),
    "submit": Scene("jobs into the queue, through the socket and by SQL", drain.submits, default=True),
    "steady": Scene("a producer beside it keeps jobs waiting", flow.steady, default=True),
    "pinned": Scene("the same while a session holds a snapshot", flow.pinned, default=True),
    "latency": Scene("submit call to handler start, alone and at half of the throughput", latency, default=True),
    "waits": Scene("which process works, and which waits, in a drain and in a steady state", waits, once=True),
    "calls": Scene("typed calls beside names and args, and pulse.sql beside the socket", calls.calls),
    "imports": Scene("import of pulse", calls.imports, once=True),
    "sync": Scene("handlers that are a plain def, in threads", drain.sync),
    "batch": Scene("handlers that write a row, a hundred in a call and one by one", drain.batch),
    "fenced": Scene("handlers with an effect, in a fenced transaction and in one of their own", drain.fenced),
    "awaiting": Scene("handlers that sleep 10 ms, 1000 at once", drain.awaiting),
    "sizes": Scene("args of 1 KB and of 100 KB", drain.sizes),
    "hooks": Scene("middleware around jobs that do nothing, in the runner alone", hooks),
    "workers": Scene("what 1, 100 and 1000 idle workers cost", workers, once=True),
    "scale": Scene("a claim among millions of rows, topics, priorities", scale, once=True),
    "curves": Scene("a drain with more processes, servers, topics, rows, args, workers", curves, once=True),
    "restart": Scene("how soon a server works for which millions of jobs wait", restart, once=True),
    "limits": Scene("claims under limits and of groups, a rate, a slot that becomes free", limits, once=True),
    "turns": Scene("a whole system under limits and with groups, and how soon a slot is taken", turns, once=True),
    "shared": Scene("a limit over two hosts, over a worker's death, and beside a hot group", shared, once=True),
    "graphs": Scene(
        "jobs that wait for others: fan-in, fan-out, pairs and a chain; and for signals", graphs, once=True
    ),
    "stability": Scene("ten drains, whatever the planner knows", stability, once=True),
    "two": Scene("two supervisors on one database", two),
    "soak": Scene("ten minutes: sizes, memory and rate per minute", flow.soak, once=True),
}
