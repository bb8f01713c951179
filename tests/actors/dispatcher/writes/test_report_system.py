"""What workers report, on the raw wire: written once, through the fence, and a bad one alone."""

from __future__ import annotations

from typing import Final

import pytest

from tests.support.systems.system import Body, Peer, System, new_job

pytestmark = [pytest.mark.postgres, pytest.mark.process, pytest.mark.system]

# No poll can help a wake-up that is missing.
SETTINGS: Final = {"PULSE_POLL_S": "60"}


@pytest.mark.parametrize(
    ("outcome", "detail", "expected"),
    [
        ("ok", '{"a":[1]}', {"status": "COMPLETED", "result": '{"a": [1]}', "last_error": None, "uncharged": 0}),
        ("ok", None, {"status": "COMPLETED", "result": None}),
        ("error", "boom", {"status": "RETRYING", "last_error": "boom", "uncharged": 0}),
        ("error", "a\0b", {"status": "RETRYING", "last_error": "a\N{REPLACEMENT CHARACTER}b"}),
        ("error", "é" * 70_000, {"status": "RETRYING", "last_error": "é" * 32 * 1024}),
        ("error", "", {"status": "RETRYING", "last_error": "no reason given"}),
        ("retry", [500.0, "later"], {"status": "RETRYING", "last_error": "later", "uncharged": 0}),
        ("discard", "never", {"status": "DEAD_LETTERED", "last_error": "never"}),
        ("snooze", 500, {"status": "PENDING", "last_error": None, "uncharged": 1}),
        ("crash", ["died", -9], {"status": "RETRYING", "last_error": "died", "uncharged": 1, "crashes": 1}),
        ("crash", ["died", 2**40], {"status": "RETRYING", "last_error": "died", "uncharged": 1, "crashes": 1}),
    ],
)
def test_each_outcome_is_written(
    system: System, client: Peer, topic: str, outcome: str, detail: object, expected: Body
) -> None:
    """What a worker reports is in the row when the answer comes."""
    with system.worker("outcome", topics=[topic], capacity=1) as worker:
        (identity,) = client.submit(new_job(topic=topic))
        worker.send("started", None, jobs=[worker.job()])
        worker.send("capacity", None, capacity=0)  # so that it does not come back at once
        assert worker.report([identity, 1, outcome, detail]) == []
        row = system.row(identity)
        assert {name: row[name] for name in expected} == expected
        assert row["attempts"] == 1


def test_a_delay_is_the_workers_own(system: System, client: Peer, topic: str) -> None:
    """retry and snooze are due after the seconds that they name; a plain error after the back-off of one second."""
    with system.worker("delays", topics=[topic], capacity=3) as worker:
        ids = client.submit(*(new_job(topic=topic) for _ in range(3)))
        worker.jobs(3)
        results: list[list[object]] = [["retry", [400.0, "x"]], ["snooze", 300.0], ["error", "x"]]
        worker.report(*([identity, 1, *result] for identity, result in zip(ids, results, strict=True)))
        waits = system.rows(
            "SELECT job_id, extract(epoch FROM next_run_at - ended_at)::float8 AS s"
            " FROM pulse.attempts JOIN pulse.jobs ON job_id = id WHERE topic = $1",
            topic,
        )
        assert {row["job_id"].bytes: row["s"] for row in waits} == dict(zip(ids, [400.0, 300.0, 1.0], strict=True))


def test_a_released_job_is_handed_out_again(system: System, client: Peer, topic: str) -> None:
    """A job that is given back is at once available to others, and the attempt counts for nobody."""
    with system.worker("giver", topics=[topic], capacity=1) as giver:
        (identity,) = client.submit(new_job(topic=topic, max_attempts=1))
        assert giver.job() == (identity, 1)
        giver.send("capacity", None, capacity=0)
        assert giver.report([identity, 1, "release", None]) == []
        with system.worker("taker", topics=[topic]) as taker:
            assert taker.job() == (identity, 2)
            assert taker.done((identity, 2)) == []
    assert system.row(identity)["uncharged"] == 1


def test_a_failed_job_comes_back_without_a_poll(system: System, client: Peer, topic: str) -> None:
    """The retry is assigned when its back-off has passed, though nobody polls."""
    with system.worker("again", topics=[topic], capacity=1) as worker:
        (identity,) = client.submit(new_job(topic=topic))
        worker.job()
        worker.report([identity, 1, "error", "x"])
        assert worker.job() == (identity, 2)
        worker.done((identity, 2))


def test_a_repeated_report_is_not_stale(system: System, client: Peer, topic: str) -> None:
    """The same success once more, as after a lost answer, is fine; any other word about that attempt is stale."""
    with system.worker("repeats", topics=[topic]) as worker:
        (identity,) = client.submit(new_job(topic=topic))
        worker.job()
        assert worker.done((identity, 1)) == []
        assert worker.done((identity, 1)) == []
        assert worker.report([identity, 1, "error", "x"]) == [[identity, 1]]
        assert worker.done((identity, 2)) == [[identity, 2]]
        assert system.row(identity)["status"] == "COMPLETED"


def test_nobody_reports_for_another(system: System, client: Peer, topic: str) -> None:
    """A result for an attempt that somebody else holds is stale and changes nothing, beside good ones too."""
    with system.worker("owner", topics=[topic]) as owner, system.worker("thief", topics=[topic], capacity=0) as thief:
        (identity,) = client.submit(new_job(topic=topic))
        owner.job()
        before = system.row(identity)
        assert thief.done((identity, 1)) == [[identity, 1]]
        assert thief.report([identity, 1, "discard", "x"]) == [[identity, 1]]
        assert thief.beat((identity, 1)) == [[identity, 1]]
        assert system.row(identity) == before
        assert owner.done((identity, 1), (b"n" * 16, 1)) == [[b"n" * 16, 1]]
        assert system.row(identity)["status"] == "COMPLETED"


def test_a_stale_attempt_does_not_hide_behind_a_good_one(system: System, client: Peer, topic: str) -> None:
    """Two attempts of one job reported together: the one that holds the lease is written, the other one is stale."""
    with system.worker("both", topics=[topic], capacity=1) as worker:
        (identity,) = client.submit(new_job(topic=topic))
        worker.job()
        worker.report([identity, 1, "release", None])
        assert worker.job() == (identity, 2)
        assert worker.done((identity, 1), (identity, 2)) == [[identity, 1]]
