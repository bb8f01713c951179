"""What the dispatcher counts: by topic and step, durations by size, a bounded history."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from pulse.common.histogram import BOUNDS, SAMPLE, Histogram, sample
from pulse.common.ids import uuid7
from pulse.store.rows import Claim, Ended, Ending, EndingKind, Wake
from pulse_actors.dispatcher.monitoring import counters, observe
from pulse_actors.dispatcher.monitoring.counters import Counted, DispatchCounters
from pulse_actors.dispatcher.workers.records import ForcedEnding, HeldJob, Pair
from tests.actors.dispatcher.workers.test_registry import worker


def _counts(**kinds: int) -> list[int]:
    return [kinds.get(kind, 0) for kind in counters.KINDS]


def test_percentiles_are_those_of_the_durations() -> None:
    rng = random.Random(7)
    durations = sorted(10 ** rng.uniform(-3.5, 2) for _ in range(5000))
    histogram = Histogram()
    for one in durations:
        histogram.add(one)
    assert histogram.total == 5000
    assert histogram.sum_s == pytest.approx(sum(durations))
    for share in (0.01, 0.5, 0.9, 0.99, 1.0):
        told = histogram.percentile(share)
        assert told is not None
        assert durations[round(share * 5000) - 1] / 1.7 < told < durations[round(share * 5000) - 1] * 1.7


def test_extremes_have_buckets() -> None:
    for value_s, place in [(-5.0, 0), (1e-4, 0), (1.01e-4, 1), (1e5, -2), (1e9, -1)]:
        histogram = Histogram()
        histogram.add(value_s, 2.5)
        assert (histogram.counts[place], histogram.total) == (2.5, 2.5)
    assert Histogram().percentile(0.5) is None
    assert Histogram().told()["counts"] == [0.0] * (len(BOUNDS) + 1)


@pytest.mark.parametrize("count", [0, 1, SAMPLE, SAMPLE + 1, 500])
def test_a_sample_is_spread_over_the_batch(count: int) -> None:
    chosen = list(sample(count))
    assert len(set(chosen)) == len(chosen) == min(count, SAMPLE)
    assert all(0 <= place < count for place in chosen)
    assert count <= SAMPLE or chosen[-1] >= count * (SAMPLE - 1) // SAMPLE


def test_totals_include_the_step_that_is_open() -> None:
    one = DispatchCounters()
    one.add(Counted.SUBMITTED, "a", 3)
    one.add_all(Counted.STARTED, ["a", "b", "a"])
    assert one.total("a") == _counts(submitted=3, started=2)
    one.close_step(100.0, 7)
    one.add(Counted.STARTED, "b", 1)
    assert (one.total("a"), one.total("b")) == (_counts(submitted=3, started=2), _counts(started=2))
    assert one.grand_total() == _counts(submitted=3, started=4)
    ((ended_at, counts, depth, _),) = one.history
    assert (ended_at, counts, depth) == (100.0, _counts(submitted=3, started=3), 7)


def test_rates_are_of_the_last_minute() -> None:
    one = DispatchCounters()
    one.add(Counted.COMPLETED, "a", 50)
    assert one.rates() == ({}, [0.0] * 5)
    one.close_step(1.0, None)
    each, whole = one.rates()
    assert each == {"a": [0.0, 0.0, 10.0, 0.0, 0.0]}
    assert whole == each["a"]
    for _ in range(counters.RECENT):
        one.close_step(2.0, None)
    assert one.rates() == ({}, [0.0] * 5)


def test_topics_and_history_are_bounded() -> None:
    """Topics beyond the limit are counted together, without a name; steps beyond the hour are gone."""
    one = DispatchCounters()
    for number in range(counters.MAX_TOPICS + 500):
        one.add(Counted.SUBMITTED, f"t{number}", 2)
    assert len(one.totals) <= counters.MAX_TOPICS + 1
    assert one.total("") == _counts(submitted=1000)
    assert one.grand_total() == _counts(submitted=2 * (counters.MAX_TOPICS + 500))
    for number in range(counters.HISTORY + 5):
        one.close_step(float(number), None)
    assert [one.history[0][0], len(one.history)] == [5.0, counters.HISTORY]


@pytest.mark.parametrize(("kind", "status", "failed", "retried", "dead"), [
    (EndingKind.ERROR, "RETRYING", 1, 1, 0), (EndingKind.CRASHED, "DEAD_LETTERED", 1, 0, 1),
    (EndingKind.RELEASED, "PENDING", 0, 0, 0), (EndingKind.SNOOZED, "RETRYING", 0, 0, 0),
    (EndingKind.UNASSIGNED, "PENDING", 0, 0, 0),
])  # fmt: skip
def test_ends_are_counted_by_outcome(kind: EndingKind, status: str, failed: int, retried: int, dead: int) -> None:
    """A charged one has failed, one with another try is retried; one that was given back is neither."""
    one = DispatchCounters()
    observe.count_ended(one, [Ending(bytes(16), 1, "w", kind)], [Ended(bytes(16), 1, status, "a", 0, 0.0, 0.0)])
    assert one.grand_total() == _counts(failed=failed, retried=retried)
    assert (one.outcomes, one.dead_lettered) == ({kind.value: 1}, dead)


def test_submits_are_counted_by_the_topics_that_they_got() -> None:
    one = DispatchCounters()
    observe.count_submitted(one, [Wake("a", 0, None, 3), Wake("a", 1, 5.0, 2)], [_claim("b"), _claim("b")])
    assert (one.total("a"), one.total("b")) == (_counts(submitted=5), _counts(submitted=2))


def _claim(topic: str = "a", *, identity: bytes | None = None, attempt: int = 1, due_at: float = 0.0) -> Claim:
    return Claim(identity or uuid7().bytes, attempt, "n", topic, "{}", None, 0, due_at, 0, 0)


@pytest.mark.parametrize("topics", [("a",), ("a", "b")])
def test_a_batch_is_measured_by_a_sample_and_counted_whole(topics: Sequence[str]) -> None:
    one, who = DispatchCounters(), worker(topics=topics)
    claims = [_claim("a") for _ in range(100)]
    observe.count_assigned(one, who, claims)
    assert one.total("a") == _counts(started=100)
    assert one.timed["wait_s"].total == pytest.approx(100)


def test_a_start_is_measured_from_the_submit() -> None:
    """Only of first attempts that were due at once, when their handlers are called, each once."""
    one, who = DispatchCounters(), worker()
    due = _claim(due_at=_now())
    for claim in (due, _claim(attempt=2, due_at=_now()), _claim(due_at=_now() + 60), _claim(identity=bytes(16))):
        observe.count_assigned(one, who, [claim])
        who.held[claim.id, claim.attempt] = HeldJob("n", "a")
    observe.count_started(one, who)
    assert one.timed["start_s"].total == 0
    for held in who.held.values():
        held.started = True
    observe.count_started(one, who)
    observe.count_started(one, who)
    assert one.timed["start_s"].total == 1
    assert one.timed["start_s"].sum_s < 10
    for _ in range(observe.MAX_STARTING + 5):
        observe.count_assigned(one, who, [_claim(due_at=_now())])
    assert len(who.jobs.starting) == observe.MAX_STARTING


def _now() -> float:
    return int.from_bytes(uuid7().bytes[:6]) / 1000


def test_runs_are_measured_where_their_start_is_known() -> None:
    one, who = DispatchCounters(), worker()
    pairs: list[Pair] = [(bytes([number] * 16), 1) for number in range(2)]
    who.held[pairs[0]] = HeldJob("n", "a", started=True, since_s=1e-9)
    who.held[pairs[1]] = HeldJob("n", "a", started=True)
    observe.count_runs(one, who, pairs)
    observe.count_runs(one, who, [])
    assert one.timed["run_s"].total == 1


def test_margins_are_what_was_left_of_a_lease() -> None:
    one, idle, new, busy = DispatchCounters(), worker(), worker(held=1), worker(held=1)
    idle.contact.extended_s = busy.contact.extended_s = 100.0
    for who in (idle, new, busy):
        observe.count_margin(one, who, 30.0, 110.0)
    assert (one.timed["lease_margin_s"].total, one.timed["lease_margin_s"].sum_s) == (1, 20.0)


@pytest.mark.parametrize(("status", "leaving", "reason", "cause"), [
    (9, False, "SIGKILL", "signal"), (256, False, "exit code 1", "exit"), (None, False, "", "unknown"),
    (9, False, f"it died: {observe.OUT_OF_MEMORY}", "out_of_memory"), (9, True, "SIGKILL", "asked"),
])  # fmt: skip
def test_deaths_have_few_causes(status: int | None, leaving: bool, reason: str, cause: str) -> None:
    one, who = DispatchCounters(), worker()
    who.leaving = leaving
    observe.count_death(one, who, status, reason)
    who.jobs.forced_endings[bytes(16), 1] = ForcedEnding(EndingKind.TIMEOUT, "too long")
    observe.count_death(one, who, status, reason)
    assert one.worker_deaths == {cause: 1, "killed": 1}


@pytest.mark.parametrize("topics", [("a",), ("a", "b")])
def test_successes_are_counted_by_topic(topics: Sequence[str]) -> None:
    one, who = DispatchCounters(), worker(topics=topics, held=3)
    stale, ended, _ = held = list(who.held)
    observe.count_completed(one, who, held, [stale], [Ended(*ended, "RETRYING", "a", 0, 0.0, 0.0)])
    assert one.total("a") == _counts(completed=1)
    observe.count_completed(one, who, held)
    assert (one.total("a"), one.outcomes) == (_counts(completed=4), {"completed": 4})


def test_recovery_is_the_time_until_the_next_claim() -> None:
    one = DispatchCounters()
    lost, freed, dead, other = (uuid7().bytes for _ in range(4))
    kinds = {lost: EndingKind.CRASHED, freed: EndingKind.UNASSIGNED, dead: EndingKind.CRASHED}
    endings = [Ending(job, 1, "w", kind) for job, kind in kinds.items()]
    endings.append(Ending(other, 1, "w", EndingKind.SILENT))  # somebody else has ended it
    statuses = {lost: "RETRYING", freed: "PENDING", dead: "DEAD_LETTERED"}
    ended = [Ended(job, 1, status, "a", 0, 0.0, 0.0) for job, status in statuses.items()]
    observe.count_reaped(one, endings, ended, 10.0)
    assert one.reaped == {"crashed": 2}
    one.claimed_again([lost, freed, dead], 10.5)
    assert one.timed["recovery_s"].sum_s == pytest.approx(0.5)
    assert one.timed["recovery_s"].total == 1
    assert not one.is_recovering


def test_percentiles_are_of_the_last_minute() -> None:
    one = DispatchCounters()
    one.observe("wait_s", 0.02)
    assert one.percentiles("wait_s")["p99"] == pytest.approx(0.02, rel=0.3)
    for _ in range(counters.RECENT + 1):
        one.close_step(0.0, None)
    assert one.percentiles("wait_s") == {"p50": None, "p90": None, "p99": None}
    assert one.history[0][3]["wait_p50_s"] == pytest.approx(0.02, rel=0.3)
    assert one.timed["wait_s"].total == 1
