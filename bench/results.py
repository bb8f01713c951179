"""The common format of all scenes: samples of rounds in, one JSON document out."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FORMAT: Final = 1
BARE: Final = "bare SQL loop"


@dataclass(frozen=True, slots=True)
class Sample:
    """
    What one round found.

    Attributes:
        reference: The same of what it is compared with, measured in the same minute; None: there is nothing to compare.
        against: What that is.
        bins: Where the value is a mean over time: its parts, in order.
    """

    name: str
    value: float
    unit: str
    reference: float | None = None
    against: str = BARE
    bins: tuple[float, ...] = ()


def _figure(some: Sequence[Sample]) -> dict[str, Any]:
    """The samples of one thing as one figure: medians, extremes and all runs."""
    first = some[0]
    runs = [_run(sample) for sample in some]
    ratios = [run["ratio"] for run in runs if run["ratio"] is not None]
    references = [sample.reference for sample in some if sample.reference]
    return {
        "name": first.name,
        "unit": first.unit,
        "against": first.against if references else None,
        **_spread("", [sample.value for sample in some]),
        **_spread("reference_", references),
        **_spread("ratio_", ratios),
        "runs": runs,
    }


def _run(sample: Sample) -> dict[str, Any]:
    # A reference of 0 is CPU of less than a tick: there is nothing to divide by.
    ratio = sample.value / sample.reference if sample.reference else None
    return {"value": sample.value, "reference": sample.reference or None, "ratio": ratio, "bins": list(sample.bins)}


def _spread(prefix: str, values: Sequence[float]) -> dict[str, float | None]:
    found = (statistics.median(values), min(values), max(values)) if values else (None, None, None)
    return dict(zip((f"{prefix}median", f"{prefix}min", f"{prefix}max"), found, strict=True))


def figures(found: Iterable[Sample]) -> list[dict[str, Any]]:
    """All samples of a scene as figures, in the order in which they first came."""
    named: dict[tuple[str, str], list[Sample]] = {}
    for sample in found:
        named.setdefault((sample.name, sample.against), []).append(sample)
    return [_figure(some) for some in named.values()]


def samples(one: Mapping[str, Any]) -> list[Sample]:
    """The samples that a figure was made of."""
    against = one["against"] or BARE
    return [
        Sample(one["name"], run["value"], one["unit"], run["reference"], against, tuple(run["bins"]))
        for run in one["runs"]
    ]


def merged(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Several results of one machine as one: all runs of a figure stand together."""
    scenes: dict[str, Mapping[str, Any]] = {}
    found: dict[str, list[Sample]] = {}
    for one in documents:
        for scene in one["scenes"]:
            scenes.setdefault(scene["name"], scene)
            found.setdefault(scene["name"], []).extend(
                sample for figure in scene["figures"] for sample in samples(figure)
            )
    newest = max(documents, key=lambda one: str(one["ended_at"]))
    return {**newest, "scenes": [{**scene, "figures": figures(found[name])} for name, scene in scenes.items()]}


def machine() -> dict[str, Any]:
    """Where this was measured."""
    with Path("/proc/meminfo").open(encoding="ascii") as file:
        memory_kib = int(file.readline().split()[1])
    return {
        "cores": os.cpu_count(),
        "memory_gb": round(memory_kib / 1024**2, 1),
        "linux": platform.release(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }


def document(scenes: Sequence[Mapping[str, Any]], **more: object) -> dict[str, Any]:
    """The whole."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"format": FORMAT, "ended_at": now, "machine": machine(), **more, "scenes": list(scenes)}
