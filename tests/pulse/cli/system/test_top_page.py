"""The screen of `pulse ctl top`: a pure function of the answers and the window."""

from __future__ import annotations

import functools
from typing import Any
from uuid import uuid4

import pytest

from pulse.cli.system.top_page import TopSnapshot, TopView, page, pressed
from pulse.common.text import width_of
from pulse.protocol.answers import Database, FindingInfo, JobInfo, Process, StatusAnswer, Worker
from pulse.protocol.stats import (
    Buckets,
    Counters,
    DatabaseUsage,
    OtherTopics,
    Percentiles,
    ProcessUsage,
    Rates,
    Series,
    Stats,
    TopicStats,
)

AT_S = 1_900_000_000.0
HOSTILE = "\x1b[31m<script>\u202e" + "x" * 300


def topic(name: str, **more: Any) -> TopicStats:
    return TopicStats(name, **more)


def known(topics: list[TopicStats], **more: Any) -> Stats:
    nothing = Buckets([], [0.0], 0.0)
    parts: dict[str, Any] = {
        "at": AT_S, "since": AT_S - 60, "topics": topics, "others": OtherTopics(), "exact": True,
        "rates": Rates(submitted=12.34, completed=1234.5), "wait_s": Percentiles(p50=0.004, p99=0.5),
        "run_s": Percentiles(), "series": Series(10.0, []), "counters": Counters(),
        "histograms": {"wait_s": nothing}, "database": DatabaseUsage(0.0, {}), "dispatcher": ProcessUsage(1, 0.1, 1),
    }  # fmt: skip
    return Stats(**{**parts, **more})


def job(name: str, since_s: float, **more: Any) -> JobInfo:
    moment = AT_S - since_s
    return JobInfo(
        id=uuid4().bytes, name=name, topic="t", max_attempts=5, started_at=moment, next_run_at=moment, **more
    )


def shot(**more: Any) -> TopSnapshot:
    topics = [topic(f"t{number:02}", ready=number, oldest_s=60.0 - number, workers=1) for number in range(40)]
    workers = [Worker(identity=f"i{number}", name=f"w{number}", pid=number, capacity=10) for number in range(30)]
    processes = [Process(name="dispatcher", pid=1, state="running")]
    sound = StatusAnswer(
        database=Database(ok=True, dsn="d" * 90), actors=processes, jobs={"PENDING": 3}, jobs_exact=True
    )
    parts: dict[str, Any] = {
        "at": AT_S, "status": sound, "stats": known(topics), "workers": workers,
        "running": [job("slow", 600.0, locked_by="i7"), job("quick", 1.0, locked_by="i7")],
        "waiting": [job("late", 30.0), job("later", -30.0)],
    }  # fmt: skip
    return TopSnapshot(**{**parts, **more})


def texts(
    snapshot: TopSnapshot, view: TopView | None = None, width: int | None = None, height: int | None = None
) -> list[str]:
    lines = page(snapshot, view or TopView(), width, height)
    return ["".join(cell.text for cell in line).rstrip() for line in lines]


@pytest.mark.parametrize("height", [8, 24, 60])
@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
def test_it_fits(width: int, height: int) -> None:
    hostile = [topic(HOSTILE, ready=5, paused=True), topic("漢字" * 40, ready=3)]
    found = texts(shot(stats=known(hostile), silent={"dispatcher": HOSTILE}), None, width, height)
    assert len(found) <= height
    assert max(map(width_of, found)) <= width
    assert all(line.isprintable() for line in found)


def test_every_finding_has_a_line() -> None:
    """As far as there is room; then a line says where the others are."""
    rows = [FindingInfo(f"c{number}", "wrong", f"t{number}") for number in range(7)]
    found = texts(shot(status=StatusAnswer(findings=rows)))
    at = found.index("wrong c0: t0")
    shown = [f"wrong c{number}: t{number}" for number in range(5)]
    assert found[at : at + 6] == [*shown, "and 2 more: pulse ctl status"]


def test_what_is_shown() -> None:
    found = "\n".join(texts(shot()))
    assert "12.3 submitted, 0 started, 1,234 done, 0 failed" in found
    assert "wait p50 4 ms p99 0.5 s, run unknown" in found
    assert "dispatcher" not in found.splitlines()[4]
    rows = found.splitlines()
    at = next(number for number, line in enumerate(rows) if line.startswith("topic (most waiting)"))
    assert rows[at + 1].split()[:3] == ["t39", "39", "21"]
    assert any(line.split()[:1] == ["w7"] and line.endswith("10 min  slow") for line in rows)
    assert [line.split()[2] for line in rows if line.endswith(tuple("0123456789abcdef")) and " 0/5 " in line] == [
        "slow",
        "quick",
        "late",
    ]


def test_every_table_has_room() -> None:
    found = texts(shot(), None, 100, 40)
    assert [line.split()[0] for line in found if line.startswith(("topic (", "worker (", "running ", "waiting "))] == [
        "topic", "worker", "running", "waiting",
    ]  # fmt: skip
    assert 3 <= sum(line.startswith("t") and line[1:3].isdigit() for line in found) < 20


def test_what_is_wrong_stands_above_all_tables() -> None:
    silent = texts(shot(silent={"dispatcher": "no answer in time"}, stats=None, workers=None, running=(), waiting=()))
    assert "wrong processes: the dispatcher does not answer: no answer in time" in silent
    away = texts(shot(stats=known([], database=DatabaseUsage(12.0, {}))))
    assert "wrong database: the database has not answered the dispatcher for 12 s" in away
    failed = StatusAnswer(actors=[Process(name="pause", state="failed")])
    assert "wrong processes: pause is failed" in texts(shot(status=failed))


def test_orders_and_scrolling() -> None:
    def first(keys: str | list[str], title: str) -> str:
        view = functools.reduce(pressed, keys, TopView())
        lines = texts(shot(), view, 100, 40)
        return lines[next(number for number, line in enumerate(lines) if line.startswith(title)) + 1].split()[0]

    assert first("", "topic (most waiting)") == "t39"
    assert first("t", "topic (oldest)") == "t00"
    assert first("ttt", "topic (name)") == "t00"
    assert first("tttt?", "topic (most waiting)") == "t39"
    assert first("ww", "worker (name)") == "w0"
    assert first("w", "worker (longest)") == "w7"
    assert first(["\x1b[B", "\x1b[B", "\x1b[A"], "topic") == "t38"
    assert int(first(["\x1b[B"] * 99, "topic")[1:]) >= 3
    assert first(["w", "w", "\x1b[C"], "worker (") == "w1"
    view = pressed(pressed(TopView(), "p"), "q")
    assert (view.paused, view.left) == (True, True)
    assert texts(shot(), view, 100, 40)[0].startswith("pulse top PAUSED")
