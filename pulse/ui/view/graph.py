"""
The graph of jobs that wait for each other, as SVG drawn on the server. Pure.

The jobs are in columns, each to the right of all that it waits for. Where there are too many, those of one depth, name
and status are drawn as one; then those of one name and status; then all but the most frequent of these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode
from uuid import UUID

from markupsafe import Markup

from pulse.protocol.workflows import JobGraph
from pulse.ui.view.formatting import foreign, number, uuid, whole

MOST_NODES: Final = 60  # as many as one still sees
MOST_LINKS: Final = 600
_WIDTH, _HEIGHT = 190, 44  # of a node
_GAP_X, _GAP_Y = 70, 14
_MARGIN: Final = 6
_CHARACTERS: Final = 24
_SWEEPS: Final = 4  # over the columns, to let the lines cross less
_OTHERS: Final = ("others",)
_GONE: Final = "deleted"


@dataclass(frozen=True, slots=True)
class GraphDrawing:
    """A drawing, and how many nodes and links of it stand for how many jobs and dependencies."""

    svg: Markup
    nodes: int
    jobs: int
    dependencies: int
    is_all: bool

    @property
    def is_collapsed(self) -> bool:
        """Whether a node stands for several jobs."""
        return self.nodes < self.jobs


@dataclass(slots=True)
class _Node:
    name: str
    status: str
    depth: int
    jobs: list[int]
    row: float = 0.0
    x: float = 0.0
    y: float = 0.0


def draw(graph: JobGraph) -> GraphDrawing:
    """
    The drawing of a graph; its first job is marked.

    It takes time in proportion to the jobs and dependencies, and its size has a bound.
    """
    depths = depths_of(len(graph.jobs), graph.edges)
    nodes, node_of = _nodes(graph, depths)
    links = Counter((node_of[parent], node_of[child]) for parent, child in graph.edges)
    pairs = [pair for pair, _ in links.most_common() if pair[0] != pair[1]][:MOST_LINKS]
    columns = _columns(nodes)
    _sort(columns, nodes, pairs)
    width, height = _place(columns)
    lines = [_line(nodes[parent], nodes[child]) for parent, child in pairs]
    boxes = [_box(graph, node, is_here=place == node_of[0]) for place, node in enumerate(nodes)]
    label = f"{len(graph.jobs)} jobs and what they wait for, from left to right"
    svg = Markup(
        '<svg class="graph" width="{}" height="{}" viewBox="0 0 {} {}" role="group" aria-label="{}">{}{}</svg>'
    ).format(width, height, width, height, label, Markup("").join(lines), Markup("").join(boxes))
    jobs, dependencies = len(graph.jobs), len(graph.edges)
    return GraphDrawing(svg, len(nodes), jobs=jobs, dependencies=dependencies, is_all=graph.is_all)


def depths_of(jobs: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """How many jobs there are on the longest way to each one."""
    children: list[list[int]] = [[] for _ in range(jobs)]
    left = [0] * jobs
    for parent, child in edges:
        children[parent].append(child)
        left[child] += 1
    depths = [0] * jobs
    ready = [one for one in range(jobs) if not left[one]]
    for one in ready:  # it grows
        for child in children[one]:
            depths[child] = max(depths[child], depths[one] + 1)
            left[child] -= 1
            if not left[child]:
                ready.append(child)
    return depths


def _nodes(graph: JobGraph, depths: Sequence[int]) -> tuple[list[_Node], list[int]]:
    """The nodes of the drawing, and of each job the place of its node."""
    jobs = graph.jobs
    kinds = [(job.name or _GONE, job.status or "") for job in jobs]
    keys: list[Hashable] = list(range(len(jobs)))
    coarser: Sequence[Callable[[int], Hashable]] = (lambda one: (depths[one], *kinds[one]), lambda one: kinds[one])
    for key_of in coarser:
        if len(set(keys)) > MOST_NODES:
            keys = [key_of(one) for one in range(len(jobs))]
    if len(set(keys)) > MOST_NODES:
        most = {key for key, _ in Counter(keys).most_common(MOST_NODES - 2)} | {keys[0]}
        keys = [key if key in most else _OTHERS for key in keys]
    places: dict[Hashable, int] = {}
    nodes: list[_Node] = []
    for one, key in enumerate(keys):
        if key not in places:
            places[key] = len(nodes)
            name, status = ("others", "") if key is _OTHERS else kinds[one]
            nodes.append(_Node(name, status, depth=depths[one], jobs=[]))
        node = nodes[places[key]]
        node.jobs.append(one)
        node.depth = min(node.depth, depths[one])
    return nodes, [places[key] for key in keys]


def _columns(nodes: Sequence[_Node]) -> list[list[_Node]]:
    by_depth: dict[int, list[_Node]] = {}
    for node in nodes:
        by_depth.setdefault(node.depth, []).append(node)
    return [by_depth[depth] for depth in sorted(by_depth)]


def _sort(columns: Sequence[list[_Node]], nodes: Sequence[_Node], pairs: Sequence[tuple[int, int]]) -> None:
    """Bring each node near to the middle of those that it is linked with, column by column, there and back."""
    before: dict[int, list[_Node]] = {}
    behind: dict[int, list[_Node]] = {}
    for parent, child in pairs:
        before.setdefault(id(nodes[child]), []).append(nodes[parent])
        behind.setdefault(id(nodes[parent]), []).append(nodes[child])
    for column in columns:
        _number(column)
    for sweep in range(_SWEEPS):
        near, order = (before, columns) if sweep % 2 == 0 else (behind, columns[::-1])
        for column in order:
            column.sort(key=lambda node: _middle(near.get(id(node), ()), node.row))
            _number(column)


def _number(column: Sequence[_Node]) -> None:
    for place, node in enumerate(column):
        node.row = place - len(column) / 2


def _middle(others: Sequence[_Node], otherwise: float) -> float:
    return sum(one.row for one in others) / len(others) if others else otherwise


def _place(columns: Sequence[Sequence[_Node]]) -> tuple[int, int]:
    """Give the nodes their places; returns the width and height of it all."""
    rows = max(len(column) for column in columns)
    for place, column in enumerate(columns):
        top = _MARGIN + (rows - len(column)) * (_HEIGHT + _GAP_Y) / 2
        for row, node in enumerate(column):
            node.x, node.y = _MARGIN + place * (_WIDTH + _GAP_X), top + row * (_HEIGHT + _GAP_Y)
    width = 2 * _MARGIN + len(columns) * (_WIDTH + _GAP_X) - _GAP_X
    return width, 2 * _MARGIN + rows * (_HEIGHT + _GAP_Y) - _GAP_Y


def _line(parent: _Node, child: _Node) -> Markup:
    start_x, start_y, end_x, end_y = parent.x + _WIDTH, parent.y + _HEIGHT / 2, child.x, child.y + _HEIGHT / 2
    bend = max(_GAP_X / 2, abs(end_x - start_x) / 3)
    points = [(start_x + bend, start_y), (end_x - bend, end_y), (end_x, end_y)]
    curve = " ".join(f"{x:.0f} {y:.0f}" for x, y in points)
    is_back = " back" * (child.depth <= parent.depth)
    return Markup('<path class="link{}" d="M{:.0f} {:.0f}C{}"/>').format(is_back, start_x, start_y, curve)


def _box(graph: JobGraph, node: _Node, *, is_here: bool) -> Markup:
    many = len(node.jobs) > 1
    words = node.status.lower().replace("_", " ")
    below = " · ".join(filter(None, [f"{number(len(node.jobs))} jobs" if many else "", words]))
    title = node.name if many else f"{node.name} {UUID(bytes=graph.jobs[node.jobs[0]].id)}"
    box = Markup(
        '<g class="node {}{}" transform="translate({:.0f} {:.0f})"><title>{}</title>'
        '<rect width="{}" height="{}" rx="6"/><text x="10" y="19">{}</text>'
        '<text class="dim" x="10" y="36">{}</text></g>'
    ).format(
        node.status.lower() or _GONE, " here" * is_here, node.x, node.y, whole(title), _WIDTH, _HEIGHT,
        foreign(node.name, _CHARACTERS), below,
    )  # fmt: skip
    if not node.status:
        return box
    listed = f"/jobs?{urlencode({'name': node.name, 'status': node.status})}"
    return Markup('<a href="{}">{}</a>').format(listed if many else f"/jobs/{uuid(graph.jobs[node.jobs[0]].id)}", box)
