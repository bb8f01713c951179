"""Markdown from result files: `python -m bench table FILE.json…`; all runs of a figure stand together."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

from bench.recovery_scene import BenchError
from bench.results import BARE, FORMAT

HEAD: Final = (
    "| figure | median | min … max | unit | ratio | min … max | to | runs |\n|---|--:|--:|---|--:|--:|---|--:|"
)
_LARGE, _SMALL = 100.0, 1.0


def read(path: Path) -> dict[str, Any]:
    """
    A result file.

    Raises:
        BenchError: It cannot be read, or is none.
    """
    try:
        found = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise BenchError(f"{path} is not JSON: {error}") from None
    document = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    if document.get("format") != FORMAT:
        raise BenchError(f"{path} is not a result of `python -m bench --json`, format {FORMAT}")
    return document


def number(value: float | None) -> str:
    """As many digits as mean something."""
    if value is None:
        return "–"
    if abs(value) >= _LARGE or value == 0:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.1f}" if abs(value) >= _SMALL else f"{value:.2g}"


def ratio(value: float | None) -> str:
    """Two decimals, or two digits where it is small."""
    return "–" if value is None else f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"  # noqa: PLR2004 - 0.099 is 0.1


def row(figure: Mapping[str, Any]) -> str:
    """One figure."""
    spread = f"{number(figure['min'])} … {number(figure['max'])}" if len(figure["runs"]) > 1 else "–"
    ratios = "–"
    if figure["ratio_median"] is not None and len(figure["runs"]) > 1:
        ratios = f"{ratio(figure['ratio_min'])} … {ratio(figure['ratio_max'])}"
    against = {None: "–", BARE: "bare"}.get(figure["against"], str(figure["against"]))
    cells = (figure["name"], number(figure["median"]), spread, figure["unit"], ratio(figure["ratio_median"]), ratios)
    return f"| {' | '.join((*cells, against, str(len(figure['runs']))))} |"


def markdown(found: Mapping[str, Any]) -> Iterator[str]:
    """The tables of all scenes."""
    machine = found["machine"]
    yield (
        f"{machine['cores']} cores, {machine['memory_gb']:g} GB, Linux {machine['linux']}, Python {machine['python']}, "
        f"PostgreSQL {found['postgres']}; ended {found['ended_at']}."
    )
    for scene in (one for one in found["scenes"] if one["figures"]):
        yield f"\n**{scene['name']}**: {scene['about']}\n\n{HEAD}"
        yield from map(row, scene["figures"])
