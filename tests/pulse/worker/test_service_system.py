"""A worker pool at work: its words, how it starts jobs, its reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final
from uuid import UUID

import pytest

from tests.support.servers.fake_server import FakeServer, Heard, job, pair
from tests.support.systems.worker_kit import APP, args, at_work, check_endings, hold, worker
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.timed]

CELLS: Final = "tests.support.apps.cell_app:app"  # whose handlers are isolated
both_backends = pytest.mark.parametrize("backend", ["asyncio", "trio"])


def test_hello_tells_what_it_serves() -> None:
    with at_work("--concurrency", "3") as (child, pool):
        hello = child.hello
        assert (hello["protocol"], hello["role"]) == (1, "worker")
        assert hello["worker"].endswith(f"-{pool.process.pid}-0")
        assert hello["topics"] == ["default", "images"]
        assert {"echo", "echo-plain", "wait"} <= set(hello["names"])
        assert hello["handlers"]["echo"] == {"topic": "images", "max_attempts": 7, "timeout_s": 50.0, "max_crashes": 4}
        assert (hello["handlers"]["restless"], hello["handlers"]["wait"]) == ({"stall_s": 0.5}, {})
        assert (hello["capacity"], hello["running"]) == (3, [])
        assert "session" not in hello


def test_topics_of_the_command_line_win() -> None:
    with FakeServer() as server, worker(server, "--topic", "mails", "--topic", "b"):
        assert server.wait_child().hello["topics"] == ["mails", "b"]


@both_backends
def test_started_is_written_before_the_handler_is_called(backend: str) -> None:
    with at_work("--backend", backend, "--concurrency", "1") as (child, _):
        deadly, behind = job("die"), job("nothing")
        child.assign([deadly, behind])
        child.wait_closed()
        named = [one for heard in child.log if heard.kind == "started" for one in heard.body["jobs"]]
        assert named == [pair(deadly)]


@both_backends
def test_jobs_start_in_the_order_received(backend: str, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    with at_work("--backend", backend, "--concurrency", "7") as (child, _):
        jobs = [job("append", args(path=str(lines), line=str(number))) for number in range(40)]
        child.assign(jobs)
        child.take_results(40)
        named = [one for heard in child.log if heard.kind == "started" for one in heard.body["jobs"]]
    assert lines.read_text().split() == [str(number) for number in range(40)]
    assert named == [pair(one) for one in jobs]


def test_what_comes_behind_a_long_job_is_given_back(tmp_path: Path) -> None:
    """It was under way when this process had slowed down; another one may have a slot for it."""
    with at_work("--concurrency", "1") as (child, _):
        late = job("nothing")
        _, gate = hold(child, tmp_path)
        child.assign([late])
        assert child.take_results(1) == [[*pair(late), "release", None]]
        gate.touch()
        ((*_, outcome, _),) = child.take_results(1)
        assert outcome == "ok"


@both_backends
def test_no_more_handlers_than_the_concurrency(backend: str, tmp_path: Path) -> None:
    gate, counts = tmp_path / "gate", tmp_path / "counts"
    counts.touch()
    with at_work("--backend", backend, "--concurrency", "3") as (child, _):
        child.assign([job("crowd", args(gate=str(gate), counts=str(counts))) for _ in range(9)])
        until(lambda: len(counts.read_text().split()) == 3, "three running handlers")
        assert len(child.take("started").body["jobs"]) == 3
        assert child.count("started") == 1
        gate.touch()
        assert len(child.take_results(9)) == 9
    assert max(int(count) for count in counts.read_text().split()) == 3


def test_results_of_one_turn_share_a_report() -> None:
    with at_work("--concurrency", "400") as (child, _):
        jobs = [job("nothing") for _ in range(400)]
        child.assign(jobs)
        assert sorted(one[0] for one in child.take_results(400)) == sorted(one[0] for one in jobs)
        assert child.count("report") <= 10
        assert child.count("started") <= 10


@both_backends
def test_what_a_handler_may_come_to(backend: str) -> None:
    with at_work("--backend", backend) as (child, _):
        check_endings(child, {
            "nothing": ("ok", None), "echo-plain": ("ok", "{}"), "nan": ("error", "result is not JSON: "),
            "big": ("discard", "the handler does not take these args: argument 'size' is missing; it takes size"),
            "unknown": ("error", 'this worker has no handler named "unknown"'),
        })  # fmt: skip
        after = job("echo", args(letter="ä"))
        child.assign([after])
        assert child.take_results(1) == [[*pair(after), "ok", '{"letter":"ä"}']]


@pytest.mark.rest
@pytest.mark.parametrize(
    ("app", "name", "backend"),
    [(APP, "tell", "asyncio"), (APP, "tell", "trio"), (CELLS, "tell", "asyncio"), (CELLS, "tell-plain", "asyncio")],
)
def test_context_tells_and_is_told(app: str, name: str, backend: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    extra = {
        "occurrence": 1_700_000_000.0,
        "previous": {"outcome": "error", "reason": "boom", "checkpoint": '{"page": 2}', "later": 1},
        "later": [1],
    }
    with at_work("--backend", backend, app=app) as (child, _):
        told = job(name, args(gate=str(gate)), attempt=3, topic="t", timeout_s=60.0, extra=extra)
        child.assign([told])
        beat = child.take("heartbeat", lambda heard: bool(heard.body["jobs"]) and heard.body["jobs"][0][2] is not None)
        assert beat.body["jobs"] == [[*pair(told), '{"value":0.5,"text":"half way"}']]
        assert child.take("checkpoint").body["jobs"] == [[*pair(told), '{"page":3}']]
        gate.touch()
        (result,) = child.take_results(1)
    assert result[:3] == [*pair(told), "ok"]
    assert json.loads(result[3]) == {
        "job_id": str(UUID(bytes=told[0])), "attempt": 3, "name": name, "topic": "t", "deadline": True,
        "occurrence": "2023-11-14T22:13:20+00:00", "previous": ["error", "boom", {"page": 2}],
    }  # fmt: skip


def test_progress_that_was_not_kept_is_told_again(tmp_path: Path) -> None:
    """The server had no room for it; it extended the leases all the same, so the answer is like any other."""
    gate = tmp_path / "gate"
    with FakeServer(heartbeat_s=0.2, silent_on=["heartbeat"]) as server, worker(server):
        child = server.wait_child()
        told = job("tell", args(gate=str(gate)))
        child.assign([told])
        text = '{"value":0.5,"text":"half way"}'

        def beat(after_s: float, *, tells: bool) -> Heard:
            texts = [text if tells else None]
            return child.take(
                "heartbeat", lambda heard: heard.at_s > after_s and [one[2] for one in heard.body["jobs"]] == texts
            )

        last_s = 0.0
        for kept in (False, False, True):
            told_again = beat(last_s, tells=True)
            last_s = told_again.at_s
            child.send("beat", told_again.request, {"lost": [], "kept": kept})
        beat(last_s, tells=False)
        gate.touch()
        assert child.take_results(1)[0][2] == "ok"


@both_backends
def test_a_result_comes_after_its_checkpoint(backend: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    with FakeServer(silent_on=["checkpoint"]) as server, worker(server, "--backend", backend):
        child = server.wait_child()
        saving, other = job("tell", args(gate=str(gate))), job("nothing")
        child.assign([saving])
        first = child.take("checkpoint")
        child.assign([other])
        assert child.take_results(1)[0][0] == other[0]
        assert child.count("report") == 1
        server.stop()
        server.listen()
        again = server.wait_child()
        second = again.take("checkpoint")
        assert second.body == first.body
        told = [result for heard in again.log if heard.kind == "report" for result in heard.body["results"]]
        assert pair(saving) not in [result[:2] for result in told]  # the other's may come again: it was cut off, too
        again.send("beat", second.request, {"lost": []})
        while (result := again.take_results(1)[0])[:2] != pair(saving):
            assert result[:2] == pair(other)
        assert result[2] == "ok"


def test_progress_that_no_heartbeat_carried_comes_with_the_result() -> None:
    with FakeServer(silent_on=["heartbeat"]) as server, worker(server):
        child = server.wait_child()
        one = job("tell-plain")
        child.assign([one])
        assert child.take_results(1) == [[*pair(one), "ok", None, {"progress": '{"done":3,"of":4}'}]]


def test_a_report_that_is_refused_is_taken_apart(tmp_path: Path) -> None:
    with FakeServer(silent_on=["report"]) as server, worker(server, app="tests.support.apps.batch_app:app") as pool:
        child = server.wait_child()
        jobs = [job("orders", args(number=number, directory=tmp_path)) for number in range(4)]
        child.assign(jobs)  # a full batch, which ends at once
        first = child.take("report")
        assert len(first.body["results"]) == 4
        child.send("error", first.request, {"code": "bad_request", "message": "one of them is bad"})
        for _ in range(4):
            alone = child.take("report")
            (result,) = alone.body["results"]
            if result[0] == jobs[1][0]:
                child.send("error", alone.request, {"code": "bad_request", "message": "this one"})
            else:
                child.send("reported", alone.request, {"stale": []})
        until(lambda: "this one" in pool.stderr, "a log line")
        pool.terminate()
        assert pool.wait() == 0


def test_what_the_server_confirms_is_logged() -> None:
    """A dead letter as one, any other failure as a failure, a stale result not at all; older servers name no dead."""
    with FakeServer(silent_on=["report"]) as server, worker(server, "--concurrency", "3") as pool:
        child = server.wait_child()
        dead, again, stale, old = [job("discard"), *(job("retry-after") for _ in range(3))]
        for jobs in ([dead, again, stale, job("nothing")], [old]):
            child.assign(jobs)
            left = len(jobs)
            while left:
                report = child.take("report")
                named = [one[:2] for one in report.body["results"]]
                left -= len(named)
                body = {"stale": [one for one in named if one[0] == stale[0]]}
                if jobs[0] is dead:
                    body["dead"] = [one for one in named if one[0] == dead[0]]
                child.send("reported", report.request, body)
        pool.terminate()
        assert pool.wait() == 0
        entries = [json.loads(line) for line in pool.stderr.splitlines() if '"event": "job_' in line]
    said = {UUID(one["id"]).bytes: (one["event"], one["level"], one["outcome"], one["error"]) for one in entries}
    failed = ("job_failed", "info", "retry", "rate limited")
    assert said == {
        dead[0]: ("job_dead_lettered", "warning", "discarded", "no such customer"), again[0]: failed, old[0]: failed
    }  # fmt: skip
    assert len(entries) == len(said)


def test_a_report_is_sent_again_while_the_database_is_away() -> None:
    with FakeServer(silent_on=["report"]) as server, worker(server):
        child = server.wait_child()
        one = job("nothing")
        child.assign([one])
        first = child.take("report")
        child.send("error", first.request, {"code": "unavailable", "message": "the database is away"})
        again = child.take("report")
        assert again.body == first.body
        assert again.at_s - first.at_s > 0.5


@both_backends
def test_a_quick_worker_asks_for_more_than_it_runs(backend: str, tmp_path: Path) -> None:
    """While many handlers end it holds some ahead; behind a slow one they go back, and it asks for no more."""
    gate = tmp_path / "gate"
    with FakeServer() as server, worker(server, "--backend", backend, "--concurrency", "2") as _:
        child = server.wait_child()
        child.assign([job("nothing") for _ in range(200)])
        assert child.take("capacity").body["capacity"] > 2
        child.take_results(200)
        child.take("capacity", lambda heard: heard.body["capacity"] == 2)
        child.assign([job("nothing") for _ in range(200)])
        long = [job("wait", args(gate=str(gate))) for _ in range(2)]
        child.assign([*long, job("nothing")])
        assert [result[2] for result in child.take_results(201)[200:]] == ["release"]
        gate.touch()
        assert [result[2] for result in child.take_results(2)] == ["ok", "ok"]
