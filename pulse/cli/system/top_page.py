"""What `pulse ctl top` shows, as lines that fit into a window: pure, no clock and no terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from msgspec import structs

from pulse.cli.output.render import STATUS_STYLES, Cell, Column, Line, Table, fit, foreign, id_cells
from pulse.cli.system.status_page import STATE_STYLES, overview
from pulse.common.text import cut, duration, iso, one_line, width_of
from pulse.ops.doctor.finding import Finding, State
from pulse.ops.doctor.running import findings
from pulse.ops.worker_text import load_of, state_of
from pulse.protocol.answers import JobInfo, StatusAnswer, Worker
from pulse.protocol.stats import Percentiles, Stats, TopicStats

_GAP: Final = "  "
_KEYS: Final = "q quit  p pause  t w s order  arrows scroll"
_NARROW: Final = 40
_LEAST_ROWS: Final = 3
_FINDINGS: Final = 5  # on a screen for a glance; `status` has all
_SHARES: Final = (("topics", 0.4), ("workers", 0.25), ("running", 0.2), ("waiting", 0.15))
_TOPIC_COLUMNS: Final = (
    Column("topic", least=20),
    Column("waiting", right=True),
    Column("oldest", right=True),
    Column("running", right=True, leave_out=1),
    Column("in/s", right=True, leave_out=3),
    Column("started/s", right=True, leave_out=4),
    Column("done/s", right=True, leave_out=2),
    Column("failed/s", right=True, leave_out=2),
    Column("scheduled", right=True, leave_out=6),
    Column("retrying", right=True, leave_out=5),
    Column("unhandled", right=True, leave_out=4),
    Column("workers", right=True, leave_out=3),
)
_WORKER_COLUMNS: Final = (
    Column("worker", least=8),
    Column("pid", right=True, leave_out=2),
    Column("host", least=6, leave_out=3),
    Column("running", right=True),
    Column("longest", right=True, leave_out=1),
    Column("what", least=6, leave_out=1),
)
_JOB_COLUMNS: Final = (
    Column("for", right=True),
    Column("handler", least=8),
    Column("topic", least=6, leave_out=1),
    Column("try", right=True, leave_out=2),
    Column("id", leave_out=3),
)
TOPIC_ORDERS: Final[Mapping[str, Callable[[TopicStats], tuple[object, ...]]]] = {
    "most waiting": lambda topic: (-topic.ready, topic.topic),
    "oldest": lambda topic: (-(topic.oldest_s or 0.0), topic.topic),
    "most done": lambda topic: (-topic.rates.completed, topic.topic),
    "name": lambda topic: (topic.topic,),
}
WORKER_ORDERS: Final = ("most running", "longest", "name")
JOB_ORDERS: Final = ("longest", "topic")


@dataclass(frozen=True, slots=True)
class TopSnapshot:
    """
    The answers of one moment.

    Attributes:
        at: Unix seconds.
        status: The whole, as of ``status_at``.
        silent: Who did not answer, and why.
        stats: Of the dispatcher; None: not known.
        running: Jobs that run, and ``waiting`` such that are due; the oldest.
    """

    at: float
    status: StatusAnswer
    silent: Mapping[str, str] = field(default_factory=dict[str, str])
    stats: Stats | None = None
    workers: Sequence[Worker] | None = None
    running: Sequence[JobInfo] = ()
    waiting: Sequence[JobInfo] = ()


@dataclass(frozen=True, slots=True)
class TopView:
    """How a person wants to see it: orders by their number, how far scrolled, whether it stands still."""

    topics: int = 0
    workers: int = 0
    jobs: int = 0
    down: int = 0
    right: int = 0
    paused: bool = False
    left: bool = False


_KEY_CHANGES: Final[Mapping[str, Callable[[TopView], TopView]]] = {
    "q": lambda view: replace(view, left=True),
    "p": lambda view: replace(view, paused=not view.paused),
    "t": lambda view: replace(view, topics=(view.topics + 1) % len(TOPIC_ORDERS), down=0),
    "w": lambda view: replace(view, workers=(view.workers + 1) % len(WORKER_ORDERS), right=0),
    "s": lambda view: replace(view, jobs=(view.jobs + 1) % len(JOB_ORDERS)),
    "\x1b[A": lambda view: replace(view, down=max(0, view.down - 1)),
    "\x1b[B": lambda view: replace(view, down=view.down + 1),
    "\x1b[D": lambda view: replace(view, right=max(0, view.right - 1)),
    "\x1b[C": lambda view: replace(view, right=view.right + 1),
}


def pressed(view: TopView, key: str) -> TopView:
    """*view* after a key; ``left``: the person wants to leave. An unknown key changes nothing."""
    change = _KEY_CHANGES.get(key.lower() if len(key) == 1 else key)
    return view if change is None else change(view)


def page(shot: TopSnapshot, view: TopView, width: int | None, height: int | None) -> list[Line]:
    """
    The lines of the screen.

    Args:
        shot: The answers of one moment.
        view: How it is wanted.
        width: Columns there are; None: as many as it takes.
        height: Lines there are; None: the same.
    """
    lines = [_title(shot, view, width), *overview(_brief(shot.status), shot.at), *_flow(shot), *_found(shot)]
    tables = _tables(shot, view, width)
    rooms = _rooms({name: len(table.rows) for name, table in tables.items()}, height, len(lines))
    for name, table in tables.items():
        room = rooms[name]
        if room > 0:
            start = {"topics": view.down, "workers": view.right}.get(name, 0)
            start = max(0, min(start, len(table.rows) - room))
            lines += [[], *_styled(structs.replace(table, rows=table.rows[start : start + room]), width)]
    shown = [_cut(line, width) for line in lines]
    return shown if height is None else shown[:height]


def _found(shot: TopSnapshot) -> Iterator[Line]:
    """A line for each finding, as far as there is room for."""
    found = _findings(shot)
    for one in found[:_FINDINGS]:
        style = STATE_STYLES[one.state.value]
        yield [Cell(f"{one.state.value} {one.check}: ", style), foreign(one.text, style)]
    if len(found) > _FINDINGS:
        yield [Cell(f"and {len(found) - _FINDINGS} more: pulse ctl status", "yellow")]


def _findings(shot: TopSnapshot) -> list[Finding]:
    found = findings(shot.status, shot.silent)
    if shot.stats is not None and shot.stats.database.away_s > 0 and all(one.check != "database" for one in found):
        text = f"the database has not answered the dispatcher for {duration(shot.stats.database.away_s)}"
        return [Finding("database", State.WRONG, text), *found]
    return found


def _brief(status: StatusAnswer) -> StatusAnswer:
    """*status* without a line for each process, where all of them run."""
    processes = [*(status.actors or ()), *(status.pools or ()), *(status.services or ())]
    return (
        status
        if any(one.state != "running" for one in processes)
        else structs.replace(status, actors=None, pools=None, services=None)
    )


def _title(shot: TopSnapshot, view: TopView, width: int | None) -> Line:
    state = "PAUSED" if view.paused else iso(int(shot.at))
    keys = "" if width is None or width < _NARROW else f"{_GAP}{_KEYS}"
    return [Cell("pulse top ", "bold"), Cell(state, "bold yellow" if view.paused else ""), Cell(keys, "dim")]


def _flow(shot: TopSnapshot) -> Iterator[Line]:
    """How much goes through, and how long it takes."""
    stats = shot.stats
    if stats is None:
        return
    rates = stats.rates
    yield [
        Cell(f"{'a second':<12}", "dim"),
        Cell(f"{_rate(rates.submitted)} submitted, {_rate(rates.started)} started, {_rate(rates.completed)} done"),
        Cell(f", {_rate(rates.failed)} failed", "yellow" if rates.failed else ""),
    ]
    waits, runs = _took(stats.wait_s), _took(stats.run_s)
    if waits or runs:
        yield [Cell(f"{'takes':<12}", "dim"), Cell(f"wait {waits or 'unknown'}, run {runs or 'unknown'}")]


def _took(found: Percentiles) -> str:
    named = (("p50", found.p50), ("p99", found.p99))
    return " ".join(f"{name} {duration(value)}" for name, value in named if value is not None)


def _tables(shot: TopSnapshot, view: TopView, width: int | None) -> dict[str, Table]:
    topics = sorted(shot.stats.topics if shot.stats else [], key=list(TOPIC_ORDERS.values())[view.topics])
    running = sorted(shot.running, key=lambda job: (job.started_at or shot.at, job.id))
    longest: dict[str, JobInfo] = {}
    for job in running:
        longest.setdefault(job.locked_by or "", job)
    rows = [_worker_row(worker, longest.get(worker.identity), shot.at) for worker in _ordered(shot, view, longest)]
    if JOB_ORDERS[view.jobs] == "topic":
        running.sort(key=lambda job: (job.topic, job.started_at or shot.at))
    due = [job for job in shot.waiting if (job.next_run_at or 0) <= shot.at]
    waiting = sorted(due, key=lambda job: (job.next_run_at or 0, job.id))
    orders = {"topic": list(TOPIC_ORDERS)[view.topics], "worker": WORKER_ORDERS[view.workers]}
    made = {
        "topics": Table(_titled(_TOPIC_COLUMNS, orders["topic"]), [_topic_row(topic, shot) for topic in topics]),
        "workers": Table(_titled(_WORKER_COLUMNS, orders["worker"]), rows),
        "running": _jobs("running", [(job, job.started_at) for job in running], shot.at, width),
        "waiting": _jobs("waiting", [(job, job.next_run_at) for job in waiting], shot.at, width),
    }
    return {name: table for name, table in made.items() if table.rows}


def _ordered(shot: TopSnapshot, view: TopView, longest: Mapping[str, JobInfo]) -> list[Worker]:
    def key(worker: Worker) -> tuple[object, ...]:
        job = longest.get(worker.identity)
        since = shot.at if job is None or job.started_at is None else job.started_at
        match WORKER_ORDERS[view.workers]:
            case "most running":
                return (-worker.held, worker.name)
            case "longest":
                return (since, worker.name)
            case _:
                return (worker.name, worker.pid or 0)

    return sorted(shot.workers or [], key=key)


def _topic_row(topic: TopicStats, shot: TopSnapshot) -> Line:
    exact = "" if shot.stats is None or shot.stats.exact else "~"
    rates = topic.rates
    unserved = topic.ready > 0 and topic.workers == 0
    return [
        foreign(one_line(topic.topic) + (" (paused)" if topic.paused else ""), "yellow" if topic.paused else ""),
        Cell(f"{exact}{topic.ready:,}", "cyan" if topic.ready else ""),
        Cell("" if topic.oldest_s is None else duration(topic.oldest_s)),
        Cell(f"{topic.running:,}", STATUS_STYLES["RUNNING"] if topic.running else ""),
        Cell(_rate(rates.submitted)),
        Cell(_rate(rates.started)),
        Cell(_rate(rates.completed)),
        Cell(_rate(rates.failed), "yellow" if rates.failed else ""),
        Cell(f"{exact}{topic.scheduled:,}"),
        Cell(f"{exact}{topic.retrying:,}"),
        Cell(f"{exact}{topic.unhandled:,}", "bold red" if topic.unhandled else ""),
        Cell(str(topic.workers), "bold red" if unserved else ""),
    ]


def _worker_row(worker: Worker, job: JobInfo | None, now_s: float) -> Line:
    return [
        foreign(worker.name or worker.identity),
        Cell("" if worker.pid is None else str(worker.pid)),
        foreign(worker.host or ""),
        Cell(f"{load_of(worker)} {state_of(worker)}".rstrip()),
        Cell("" if job is None or job.started_at is None else duration(now_s - job.started_at)),
        foreign("" if job is None else one_line(job.name)),
    ]


def _jobs(name: str, jobs: Sequence[tuple[JobInfo, float | None]], now_s: float, width: int | None) -> Table:
    ids = id_cells([job.id for job, _ in jobs], width)
    rows = [[*_job_row(job, since_s, now_s), one] for (job, since_s), one in zip(jobs, ids, strict=True)]
    return Table(_named(_JOB_COLUMNS, name), rows)


def _job_row(job: JobInfo, since_s: float | None, now_s: float) -> Line:
    return [
        Cell("" if since_s is None else duration(now_s - since_s)),
        foreign(one_line(job.name)),
        foreign(one_line(job.topic)),
        Cell(job.tries),
    ]


def _titled(columns: Sequence[Column], order: str) -> Sequence[Column]:
    """*columns*, the first with the order of the rows in its title."""
    first, *rest = columns
    return [structs.replace(first, title=f"{first.title} ({order})"), *rest]


def _named(columns: Sequence[Column], title: str) -> Sequence[Column]:
    first, *rest = columns
    return [structs.replace(first, title=title), *rest]


def _rooms(wanted: Mapping[str, int], height: int | None, above: int) -> dict[str, int]:
    """How many rows each table may show: its share of what is left, and what others do not need."""
    if height is None:
        return dict(wanted)
    left = max(0, height - above - 2 * len(wanted))  # a blank line and a title each
    rooms = {name: min(wanted[name], max(_LEAST_ROWS, int(left * share))) for name, share in _SHARES if name in wanted}
    spare = left - sum(rooms.values())
    for name, room in rooms.items():
        more = max(0, min(spare, wanted[name] - room))
        rooms[name] = room + more
        spare -= more
    return rooms


def _styled(table: Table, width: int | None) -> list[Line]:
    """The rows of *table* as lines with their styles; columns are cut and left out as everywhere."""
    widths = fit(table, width)
    if widths is None:
        return [[Cell(_GAP.join(cell.text for cell in row if cell.text))] for row in table.rows]
    titles = [Cell(column.title, "bold") for column in table.columns]
    return [_row(table.columns, row, widths) for row in (titles, *table.rows)]


def _row(columns: Sequence[Column], row: Line, widths: Mapping[int, int]) -> Line:
    cells: list[Cell] = []
    for index, width in widths.items():
        text = cut(row[index].text, width)
        padding = " " * (width - width_of(text))
        gap = _GAP if cells else ""
        cells.append(Cell(gap + (padding + text if columns[index].right else text + padding), row[index].style))
    return cells


def _cut(line: Line, width: int | None) -> Line:
    """*line* in *width* columns at most."""
    if width is None:
        return line
    cells: list[Cell] = []
    for cell in line:
        text = cut(cell.text, width)
        width -= width_of(text)
        cells.append(Cell(text, cell.style))
    return cells


def _rate(value: float) -> str:
    return "0" if value <= 0 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"  # noqa: PLR2004 - three digits
