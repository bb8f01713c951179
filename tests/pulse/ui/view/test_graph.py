"""The drawing of a graph of jobs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final
from uuid import UUID
from xml.etree import ElementTree as ET

import pytest

from pulse.protocol.workflows import GraphNode, JobGraph
from pulse.ui.view import graph as drawn
from pulse.ui.view.graph import GraphDrawing, depths_of, draw
from tests.support.checking.cost import cpu_time

MOST_BYTES: Final = 150_000


def graph(names: Sequence[str], edges: Sequence[tuple[int, int]], status: str = "PENDING") -> JobGraph:
    jobs = [GraphNode(place.to_bytes(16, "big"), name, status) for place, name in enumerate(names)]
    return JobGraph(jobs, list(edges))


def boxes(drawing: GraphDrawing) -> dict[str, tuple[float, float]]:
    """Where each box is, by its first line; the drawing is well-formed."""
    ET.fromstring(str(drawing.svg))  # noqa: S314 - it is ours
    found = re.findall(r'translate\((\d+) (\d+)\)".*?<text x="10" y="19">(.*?)</text>', drawing.svg)
    return {text: (float(x), float(y)) for x, y, text in found}


def seconds(drawing: GraphDrawing) -> list[str]:
    return re.findall(r'y="36">(.*?)</text>', drawing.svg)


def test_a_job_stands_behind_all_that_it_waits_for() -> None:
    """By the longest way to it; a circle, which cannot be, is drawn all the same."""
    edges = [(0, 1), (1, 2), (0, 2), (2, 3)]
    assert depths_of(5, edges) == [0, 1, 2, 3, 0]
    assert depths_of(3, [(0, 1), (1, 2), (2, 1)]) == [0, 1, 0]
    at = boxes(draw(graph("abcde", edges)))
    assert at["a"][0] < at["b"][0] < at["c"][0] < at["d"][0]
    assert at["e"][0] == at["a"][0]
    assert len(set(at.values())) == 5


def test_lines_cross_no_more_than_they_must() -> None:
    """Three pairs, told in a bad order."""
    at = boxes(draw(graph("abcxyz", [(0, 5), (1, 4), (2, 3)])))
    assert [at[name][1] for name in "abc"] == [at[name][1] for name in "zyx"]


def test_each_job_leads_to_its_page() -> None:
    """One that was deleted has none; and the one that was asked about is marked."""
    found = graph(["a", "b"], [(0, 1)])
    found.jobs.append(GraphNode(bytes(16)))
    text = str(draw(found).svg)
    assert re.findall('href="(.*?)"', text) == [f"/jobs/{UUID(int=number)}" for number in range(2)]
    assert text.count(" here") == 1
    assert ">deleted<" in text


def test_names_do_no_harm() -> None:
    text = str(draw(graph(["<script>", "\u202eevil", "n" * 200], [])).svg)
    assert "<script>" not in text
    assert "\u202e" not in text
    assert "n" * 30 not in re.sub("<title>.*?</title>", "", text)


@pytest.mark.parametrize(("name_of", "edges", "nodes"), [
    (lambda one: f"layer{one % 3}", [(one, one + 1) for one in range(8) if one % 3 < 2], 9),  # few: all are drawn
    (lambda one: f"layer{one % 3}", [(one, one + 1) for one in range(9_999) if one % 3 < 2], 3),  # of one depth each
    (lambda _: "step", [(one, one + 1) for one in range(9_999)], 1),  # a chain of one name
    (str, [(0, one) for one in range(1, 10_000)], drawn.MOST_NODES),  # each of its own name
    (lambda one: f"n{one % 61}", [(one, one + 61) for one in range(9_900)], drawn.MOST_NODES),  # one name too many
])  # fmt: skip
def test_many_are_drawn_as_few(name_of: Callable[[int], str], edges: Sequence[tuple[int, int]], nodes: int) -> None:
    """Within a second, and in few bytes."""
    count = 9 if len(edges) < 10 else 10_000
    found = graph([name_of(one) for one in range(count)], edges)
    with cpu_time(at_most_s=1.0):
        drawing = draw(found)
    assert len(drawing.svg.encode()) < MOST_BYTES
    assert drawing.nodes <= nodes
    assert boxes(drawing)
    assert len(set(re.findall(r"translate\(.*?\)", drawing.svg))) == drawing.nodes
    assert drawing.is_collapsed is (count > 9)
    told = [int(words.split()[0].replace(",", "")) if "jobs" in words else 1 for words in seconds(drawing)]
    assert sum(told) == count


def test_a_dense_graph_has_few_lines() -> None:
    """All to all, between columns of thirty."""
    names = [f"n{one}" for one in range(60)]
    text = str(draw(graph(names, [(one, other) for one in range(30) for other in range(30, 60)])).svg)
    assert text.count('class="link') == drawn.MOST_LINKS


def test_statuses_are_told_apart() -> None:
    """Also where jobs are drawn as one, which leads to a list of them."""
    found = graph(["a"] * 100, [])
    found.jobs[0] = GraphNode(bytes(16), "a", "DEAD_LETTERED")
    drawing = draw(found)
    assert seconds(drawing) == ["dead lettered", "99 jobs · pending"]
    assert "/jobs?name=a&amp;status=PENDING" in drawing.svg
