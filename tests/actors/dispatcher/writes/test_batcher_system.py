"""One row that PostgreSQL cannot hold, among 499 good ones of others that are written in the same statement."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import datetime
from uuid import UUID

import pytest

import pulse
from tests.support.systems.system import Pair, Peer, Refused, Worker, new_job, until
from tests.support.systems.system_kit import Jobs, Whole

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system]

SETTINGS: dict[str, str] = {}  # the defaults; the tests are its workers
WORKERS = 5
EACH = 100
COUNT = WORKERS * EACH
BAD_JSON = '"\\u0000"'  # JSON by the letter, and nothing that jsonb can hold


@pytest.fixture
def jobs(whole: Whole) -> Jobs:
    """A client."""
    return whole.jobs()


@contextlib.contextmanager
def crew_of(whole: Whole, jobs: Jobs, topic: str) -> Iterator[list[tuple[Worker, list[Pair]]]]:
    """Workers by hand that hold 500 jobs between them."""
    jobs.client.submit_many([pulse.NewJob(name="mark", topic=topic)] * COUNT)
    with contextlib.ExitStack() as stack:
        hello = {"topics": [topic], "names": ["mark"], "capacity": EACH}
        workers = [stack.enter_context(whole.worker(f"{topic}-{n}", **hello)) for n in range(WORKERS)]
        yield [(worker, [(job[0], job[1]) for job in worker.jobs(EACH)]) for worker in workers]


@contextlib.contextmanager
def gathering(whole: Whole, sql: str, *values: object) -> Iterator[None]:
    """What is sent meanwhile gathers behind a statement that waits for a lock, and is then written together."""
    whole.rows("BEGIN")
    try:
        whole.rows(sql, *values)
        yield
    finally:
        whole.rows("ROLLBACK")


def test_reports(whole: Whole, jobs: Jobs) -> None:
    """A result that PostgreSQL cannot hold fails that job alone: 499 others are completed, many in one statement."""
    with crew_of(whole, jobs, "reports") as crew, whole.worker("first", topics=["first"], names=["mark"]) as first:
        lock = jobs.submit("mark", topic="first")
        held = first.job()
        bad = crew[2][1][50]
        with gathering(whole, "SELECT FROM pulse.jobs WHERE id = $1 FOR UPDATE", lock):
            blocking = first.ask("report", results=[[*held, "ok", None]])
            until(lambda: blocked(whole), "the first report waits")
            asked = [
                (worker, worker.ask("report", results=[result_of(pair, bad) for pair in pairs]))
                for worker, pairs in crew
            ]
            for worker, _ in asked:
                worker.call("ping")  # answered behind the report, so the dispatcher has that
        assert first.answer(blocking) == {"stale": []}
        assert [worker.answer(number) for worker, number in asked] == [{"stale": []}] * WORKERS
        assert_many_in_one_statement(whole, "reports", [[pair[0] for pair in pairs] for _, pairs in crew])
        row = whole.row(bad[0])
        assert (row["status"], row["attempts"]) == ("RETRYING", 1)
        assert row["last_error"].startswith("result is not storable: unsupported Unicode escape sequence")
        sql = "SELECT count(*) FROM pulse.jobs WHERE topic = 'reports' AND status = 'COMPLETED' AND attempts = 1"
        assert whole.rows(sql)[0][0] == COUNT - 1


def test_submits(whole: Whole) -> None:
    """Args that PostgreSQL cannot hold fail that submit alone: 499 others are acknowledged and there."""
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(whole.client()) for _ in range(WORKERS)]
        first = stack.enter_context(whole.client())
        with gathering(whole, "LOCK TABLE pulse.jobs IN SHARE MODE"):
            blocking = first.ask("submit", jobs=[new_job(name="mark", topic="submits", delay_s=600)])
            until(lambda: blocked(whole), "the first submit waits")
            asked: list[tuple[Peer, int, bytes]] = []
            for number in range(COUNT):
                args = '{"a": "\\u0000"}' if number == 250 else "{}"
                job = new_job(name="mark", topic="submits", delay_s=600, args=args)
                peer = peers[number % WORKERS]
                asked.append((peer, peer.ask("submit", jobs=[job]), job["id"]))
            for peer in peers:
                peer.call("ping")
        assert first.answer(blocking)["ids"]
        refused: list[Refused] = []
        for peer, number, job_id in asked:
            try:
                assert peer.answer(number) == {"ids": [job_id]}
            except Refused as error:
                refused.append(error)
    ((code, message),) = [(error.code, error.message) for error in refused]
    assert code == "bad_request"
    assert message.startswith("job mark cannot be stored: unsupported Unicode escape sequence")
    of_peers = [[job for peer, _, job in asked if peer is one] for one in peers]
    assert_many_in_one_statement(whole, "submits", of_peers)
    assert whole.rows("SELECT count(*) FROM pulse.jobs WHERE topic = 'submits'")[0][0] == COUNT  # and the first


def test_heartbeats(whole: Whole, jobs: Jobs) -> None:
    """Progress that PostgreSQL cannot hold is left out; its lease is extended like the 499 others."""
    with crew_of(whole, jobs, "beats") as crew:
        before = dict(leases(whole, "beats"))
        bad = crew[2][1][50]
        asked = [
            (worker, worker.ask("heartbeat", jobs=[[*pair, BAD_JSON if pair == bad else "0.5"] for pair in pairs]))
            for worker, pairs in crew
        ]
        assert [worker.answer(number) for worker, number in asked] == [{"lost": []}] * WORKERS
        after = dict(leases(whole, "beats"))
        assert len(after) == COUNT
        assert all(after[job] > before[job] for job in after)
        sql = "SELECT count(*) FROM pulse.jobs WHERE topic = 'beats' AND progress = '0.5'"
        assert whole.rows(sql)[0][0] == COUNT - 1
        for worker, pairs in crew:
            worker.done(*pairs)


def result_of(pair: Pair, bad: Pair) -> list[object]:
    """A good result, or one that PostgreSQL cannot hold."""
    return [*pair, "ok", BAD_JSON if pair == bad else '"good"']


def blocked(whole: Whole) -> int:
    """How many sessions of its database wait for a lock; pg_stat_activity would not change within a transaction."""
    sql = "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted"
    return int(whole.rows(sql)[0][0])


def leases(whole: Whole, topic: str) -> list[tuple[UUID, datetime]]:
    """When the leases of a topic end."""
    sql = "SELECT id, lease_until FROM pulse.jobs WHERE topic = $1 AND status = 'RUNNING'"
    return [(row["id"], row["lease_until"]) for row in whole.rows(sql, topic)]


def assert_many_in_one_statement(whole: Whole, topic: str, of_peers: list[list[bytes]]) -> None:
    """Rows of several peers were written by one transaction: it was a merged statement that had to be taken apart."""
    written: dict[str, set[int]] = {}
    peer_of = {job: number for number, jobs in enumerate(of_peers) for job in jobs}
    for row in whole.rows("SELECT id, xmin::text AS xmin FROM pulse.jobs WHERE topic = $1", topic):
        if row["id"].bytes in peer_of:
            written.setdefault(row["xmin"], set()).add(peer_of[row["id"].bytes])
    assert max(map(len, written.values())) > 1
    assert len(written) < 30
