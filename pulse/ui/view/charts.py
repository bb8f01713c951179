"""Charts as SVG, drawn on the server: lines over time, without a script, readable to those who do not see them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil, floor, log10
from typing import Final

from markupsafe import Markup, escape

from pulse.protocol.stats import Stats
from pulse.ui.view.formatting import duration, number

WIDTH: Final = 600
HEIGHT: Final = 170
_LEFT: Final = 62  # for the labels of the values
_BOTTOM: Final = 24  # and those of the times
_TOP: Final = 8
_STEPS: Final = 4  # lines of the grid
_NICE: Final = (1.0, 2.0, 4.0, 5.0, 10.0)
_MOST_POINTS: Final = 180
_SECONDS_BELOW_S: Final = 600.0  # of a shorter time the clock shows the seconds, too

Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class ChartLine:
    """One line: its name, its values in time, and the class that colours it."""

    name: str
    values: Values
    tone: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart as a page has it: title, legend of name, tone and newest value, and the drawing."""

    title: str
    legend: Sequence[tuple[str, str, str]]
    svg: Markup


def charts_of(stats: Stats | None) -> list[Chart]:
    """Rate, wait and depth of the last hour; none where the server has no history."""
    if stats is None or len(stats.series.times) < 2:  # noqa: PLR2004 - a line has two ends
        return []
    series = stats.series
    counts = {"submitted": series.submitted, "completed": series.completed, "failed": series.failed}
    rate = [
        ChartLine(name, [jobs / series.step_s for jobs in counted], tone)
        for (name, counted), tone in zip(counts.items(), "abc", strict=True)
    ]
    wait = [ChartLine("wait p50", series.wait_p50_s, "a"), ChartLine("wait p99", series.wait_p99_s, "c")]
    return [
        draw("Jobs per second", series.times, rate, number),
        draw("Wait until the start", series.times, wait, duration),
        draw(
            "Jobs that wait",
            series.times,
            [ChartLine("waiting", series.depth, "a")],
            lambda value: number(round(value)),
        ),
    ]


def draw(title: str, times: Sequence[float], lines: Sequence[ChartLine], show: Callable[[float], str]) -> Chart:
    """
    One chart.

    Args:
        title: What it shows.
        times: Unix seconds, rising.
        lines: Their values at these times.
        show: A value in words, with its unit.
    """
    lines = [line for line in lines if len(line.values) == len(times)]
    most = max((value for line in lines for value in line.values if value is not None), default=0.0)
    top = nice_top(most)
    parts = [_grid(top, show), _clock(times)]
    parts += [
        Markup('<path class="line tone-{}" d="{}"/>').format(line.tone, _path(times, line.values, top))
        for line in lines
    ]
    newest = [(line.name, line.tone, _newest(line.values, show)) for line in lines]
    said = "; ".join(f"{name} now {value}" for name, _, value in newest)
    label = escape(f"{title}: {said}; highest {show(most)}")
    svg = Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, HEIGHT, label, Markup("").join(parts)
    )
    return Chart(title, newest, svg)


def nice_top(most: float) -> float:
    """The end of the scale for values up to *most*: 1, 2, 4 or 5 times a power of ten."""
    if most <= 0:
        return 1.0
    power = 10.0 ** floor(log10(most))
    return next(nice * power for nice in _NICE if nice * power >= most * (1 - 1e-9))


def _path(times: Sequence[float], values: Values, top: float) -> str:
    """The line; where nobody measured it has a gap."""
    first_s, span_s = times[0], max(times[-1] - times[0], 1e-9)
    step = max(1, ceil(len(times) / _MOST_POINTS))
    parts: list[str] = []
    pen = "M"
    for index in range(0, len(times), step):
        known = [value for value in values[index : index + step] if value is not None]
        if not known:
            pen = "M"
            continue
        x = _LEFT + (times[index] - first_s) / span_s * (WIDTH - _LEFT)
        y = _TOP + (1 - max(known) / top) * (HEIGHT - _TOP - _BOTTOM)
        parts.append(f"{pen}{x:.1f} {y:.1f}" + ("h.1" if pen == "M" else ""))  # a point between two gaps is a dot
        pen = "L"
    return "".join(parts)


def _grid(top: float, show: Callable[[float], str]) -> Markup:
    rows: list[Markup] = []
    for step in range(_STEPS + 1):
        y = _TOP + (1 - step / _STEPS) * (HEIGHT - _TOP - _BOTTOM)
        rows.append(Markup('<path class="grid" d="M{} {:.1f}H{}"/>').format(_LEFT, y, WIDTH))
        if step % 2 == 0:
            text = Markup('<text class="axis end" x="{}" y="{:.1f}">{}</text>')
            rows.append(text.format(_LEFT - 6, y + 4, show(top * step / _STEPS)))
    return Markup("").join(rows)


def _clock(times: Sequence[float]) -> Markup:
    marks = [
        (_LEFT, "start", times[0]),
        ((_LEFT + WIDTH) / 2, "middle", (times[0] + times[-1]) / 2),
        (WIDTH, "end", times[-1]),
    ]
    shown = "%H:%M" if times[-1] - times[0] > _SECONDS_BELOW_S else "%H:%M:%S"
    text = Markup('<text class="axis {}" x="{:.0f}" y="{}">{}{}</text>')
    return Markup("").join(
        text.format(
            anchor, x, HEIGHT - 4, datetime.fromtimestamp(moment_s, UTC).strftime(shown), " UTC" * (anchor == "end")
        )
        for x, anchor, moment_s in marks
    )


def _newest(values: Values, show: Callable[[float], str]) -> str:
    last = next((value for value in reversed(values) if value is not None), None)
    return "–" if last is None else show(last)
