"""Pictures of a result: `--plot FILE.svg` or `.png`. Needs matplotlib, the extra `bench`."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bench.bare import BIN_S
from bench.recovery_scene import BenchError
from bench.results import BARE

KINDS: Final = (".svg", ".png")
_COLOURS: Final = ("#1f6feb", "#d1570a", "#2f8f4e", "#8a4fd0")
_SERIES: Final = ("steady", "pinned")


def check(path: Path) -> None:
    """
    See before everything is measured that the picture can be drawn.

    Raises:
        BenchError: It cannot: says why, and what to do.
    """
    if path.suffix not in KINDS:
        raise BenchError(f"--plot {path}: the name must end in {' or '.join(KINDS)}")
    if not path.absolute().parent.is_dir():
        raise BenchError(f"--plot {path}: there is no directory {path.absolute().parent}")
    _pyplot()


def _pyplot() -> Any:  # noqa: ANN401 - matplotlib is no dependency, so its types are not there
    try:
        importlib.import_module("matplotlib").use("Agg")
        return importlib.import_module("matplotlib.pyplot")
    except ImportError:
        raise BenchError("--plot needs matplotlib: pip install 'pulse-supervisor[bench]'") from None


def _figures(found: Mapping[str, Any], scene: str) -> Iterator[Mapping[str, Any]]:
    for one in found["scenes"]:
        if one["name"] == scene:
            yield from one["figures"]


def draw(found: Mapping[str, Any], path: Path) -> None:
    """
    Draw the bins of steady and pinned, and the ratios of all rates to the bare loop.

    Raises:
        BenchError: There is nothing to draw, or matplotlib is missing.
    """
    series = [(scene, one) for scene in _SERIES for one in _figures(found, scene) if one["runs"][0]["bins"]]
    bars = [
        one
        for scene in found["scenes"]
        for one in _figures(found, scene["name"])
        if one["against"] == BARE and one["unit"] == "jobs/s"
    ]
    parts = [part for part in (series, bars) if part]
    if not parts:
        raise BenchError("--plot: no scene with bins or ratios was measured")
    pyplot = _pyplot()
    picture, axes = pyplot.subplots(1, len(parts), figsize=(6.5 * len(parts), 4), squeeze=False, layout="constrained")
    for axis, part in zip(axes[0], parts, strict=True):
        if part is series:
            _draw_bins(axis, series)
        else:
            _draw_ratios(axis, bars)
    picture.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(picture)


def _draw_bins(axis: Any, series: list[tuple[str, Mapping[str, Any]]]) -> None:  # noqa: ANN401 - see above
    """A line per round, in bins of 5 s."""
    for colour, (scene, one) in zip(_COLOURS, series, strict=False):
        for place, run in enumerate(one["runs"]):
            ends_s = [BIN_S * (number + 1) for number in range(len(run["bins"]))]
            axis.plot(ends_s, run["bins"], color=colour, marker=".", alpha=0.8, label=scene if not place else None)
    axis.set(xlabel="seconds", ylabel="jobs/s", title="steady state, unpinned and pinned", ylim=(0, None))
    axis.legend()
    axis.grid(alpha=0.3)


def _draw_ratios(axis: Any, bars: list[Mapping[str, Any]]) -> None:  # noqa: ANN401 - see above
    """A bar per figure, with its extremes."""
    names = [one["name"] for one in bars]
    middle = [one["ratio_median"] for one in bars]
    down = [one["ratio_median"] - one["ratio_min"] for one in bars]
    up = [one["ratio_max"] - one["ratio_median"] for one in bars]
    axis.barh(names, middle, xerr=[down, up], color=_COLOURS[0], capsize=3)
    axis.axvline(1.0, color="black", linewidth=1)
    axis.invert_yaxis()
    axis.set(xlabel="ratio to the bare SQL loop", title="rates beside the yardstick")
    axis.grid(alpha=0.3, axis="x")
