"""Why a job does not run: each reason, when it applies, and which of several comes first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final
from uuid import UUID

import pytest
from msgspec import structs

from pulse.store.reading.jobs import BEFORE_MAX, StoredFacts
from pulse_actors.dispatcher.diagnosis.reasons import Candidate, Cause, Holder, JobFacts
from pulse_actors.dispatcher.diagnosis.why import explain
from pulse_actors.dispatcher.workers.health import Condition

ID: Final = UUID("0190163d-8694-739b-aea5-966c26f8ad91")
LAST: Final = UUID("0190163d-8694-739b-aea5-966c26f8ad92")
NOW: Final = 1_900_000_000.0
MINE: Final = "here/b/1/7.8/w1"
JOB: Final = StoredFacts(
    id=ID.bytes, topic="images", name="resize", status="PENDING", priority=0, attempts=0, uncharged=0, max_attempts=5,
    crashes=0, submitted_at=NOW - 60, next_run_at=NOW - 1, now=NOW,
)  # fmt: skip
FREE: Final = Candidate("w1", frozenset({"resize", "crop"}), is_able=True, capacity=2, places=2)
FULL: Final = replace(FREE, held=2, started=2, calls=("resize", "crop"))
OTHER: Final = Candidate("w2", frozenset({"crop"}), is_able=False, capacity=9, places=9)
KNOWN: Final = JobFacts(host="here", poll_s=0.5, candidates=(FREE,), topics=("images",))
RUNNING: Final = structs.replace(
    JOB, status="RUNNING", attempts=2, locked_by=MINE, started_at=NOW - 180, lease_until=NOW + 20
)
HELD: Final = structs.replace(JOB, held=True, next_run_at=253402128000.0, last_job_id=LAST.bytes)
FAILED: Final[dict[str, Any]] = {
    "status": "RETRYING", "attempts": 2, "outcome": "error", "attempt_error": "ValueError: cannot open\nfile",
    "next_run_at": NOW + 4,
}  # fmt: skip


def why(job: StoredFacts = JOB, known: JobFacts = KNOWN, **columns: Any) -> list[Cause]:
    return explain(structs.replace(job, **columns), known)


def codes(job: StoredFacts = JOB, known: JobFacts = KNOWN, **columns: Any) -> list[str]:
    return [reason.code for reason in why(job, known, **columns)]


def only(job: StoredFacts = JOB, known: JobFacts = KNOWN, **columns: Any) -> Cause:
    (reason,) = why(job, known, **columns)
    return reason


def served_by(*candidates: Candidate, **more: Any) -> JobFacts:
    return replace(KNOWN, candidates=candidates, **more)


def test_nothing_is_in_the_way() -> None:
    known = served_by(FREE, replace(FREE, held=1, calls=("crop",)), FULL, OTHER, replace(FREE, stopped="silent"))
    ready = only(known=known)
    assert (ready.code, ready.details["free"], ready.advice) == ("ready", 3, "Ask again.")
    assert ready.text == (
        "Nothing blocks it: it has been due since 2030-03-17T17:46:39Z (1 s ago), and workers have 3 free places. "
        "It should start within 0.5 s."
    )
    assert "log" in only(next_run_at=NOW - 10).advice


@pytest.mark.parametrize(("status", "text"), [
    ("COMPLETED", "it completed at 2030-03-17T17:46:35Z (5 s ago)."),
    ("CANCELED", "it was canceled at 2030-03-17T17:46:35Z (5 s ago)."),
    ("DEAD_LETTERED", "it became a dead letter at 2030-03-17T17:46:35Z (5 s ago): it broke"),
])  # fmt: skip
def test_it_has_ended(status: str, text: str) -> None:
    job = structs.replace(JOB, status=status, completed_at=NOW - 5, last_error="it broke\nagain")
    reason = only(job, paused_at=NOW)
    assert (reason.code, reason.text) == ("ended", f"It does not run any more: {text}")
    assert f"pulse ctl jobs get {ID}" in reason.advice
    assert (f"pulse ctl jobs retry {ID}" in reason.advice) == (status != "COMPLETED")


def test_it_runs() -> None:
    reason = only(RUNNING, replace(KNOWN, holder=Holder(2.0, started=True)), paused_at=NOW)
    assert (reason.code, reason.advice) == ("running", f"Where it is now: pulse ctl jobs stack {ID}")
    assert reason.text == (
        'It runs: attempt 2 is at worker "w1", pid 7, claimed 2030-03-17T17:43:40Z (3 min ago), heard of 2 s ago. '
        "No limit ends it if it hangs, neither timeout_s nor stall_s; it has told no progress."
    )
    limited = Holder(2.0, started=True, timeout_s=60.0, stall_s=5.0, progress_ago_s=3.0)
    text = only(RUNNING, replace(KNOWN, holder=limited)).text
    assert text.endswith("It is ended by timeout_s 60 and stall_s 5; it told progress 3 s ago.")
    assert "not heard of yet" in only(RUNNING, replace(KNOWN, holder=Holder(None, started=True))).text


@pytest.mark.parametrize(("seen_at", "code", "end"), [
    (NOW - 3, "running", ""),
    (NOW - 60, "host_gone", "That host is gone: it was last seen 60 s ago. "),
    (None, "host_gone", "That host is gone: it was last seen never. "),
])  # fmt: skip
def test_it_runs_on_another_host(seen_at: float | None, code: str, end: str) -> None:
    """This server only knows its lease, and when it was seen: a host not seen for a minute runs nothing."""
    reason = only(RUNNING, locked_by="there/b/1/7.8/w9", host_seen_at=seen_at)
    assert (reason.code, reason.details["host"], reason.details["host_seen_at"]) == (code, "there", seen_at)
    assert 'worker "w9", pid 7 of another host, there' in reason.text
    assert reason.text.endswith(f"{end}Its lease ends in 20 s.")
    assert code != "running" or "3 s ago" in reason.advice


def test_it_has_a_worker_that_nobody_knows() -> None:
    for worker in (MINE, "no identity"):
        reason = only(RUNNING, locked_by=worker, lease_until=NOW - 5)
        assert reason.code == "running"
        assert reason.text.endswith("this server does not know it. Its lease ended 5 s ago.")


def test_its_worker_is_silent() -> None:
    for holder, how in (
        (Holder(40.0, condition=Condition.SILENT, started=True), "silent, heard of 40 s ago"),
        (Holder(40.0, condition=Condition.STOPPED, started=True), "stopped (SIGSTOP), heard"),
        (Holder(40.0, is_connected=False, started=True), "not connected, heard of 40 s ago"),
    ):
        reason = only(RUNNING, replace(KNOWN, holder=holder))
        assert (reason.code, how in reason.text) == ("silent", True)
        assert reason.advice.startswith("kill -CONT 7 lets it go on.") == (holder.condition is Condition.STOPPED)


def test_a_handler_blocks_its_worker() -> None:
    holder = Holder(1.0, condition=Condition.BLOCKED, quiet_s=25.0, calls=("resize", "crop", "crop"), started=False)
    reason = only(RUNNING, replace(KNOWN, holder=holder))
    assert (reason.code, reason.details["calls"]) == ("blocked", {"crop": 2, "resize": 1})
    assert "has not answered for 25 s: a handler there blocks the event loop" in reason.text
    assert "Called there: 2 crop, 1 resize." in reason.text
    assert f"pulse ctl jobs stack {ID}" in reason.advice
    assert reason.advice.endswith("kill -9 7")


def test_it_is_suspected_to_kill_workers_and_runs_alone() -> None:
    crashed = {**FAILED, "outcome": "crashed", "attempt_error": "worker process died: SIGKILL"}
    once, twice = (only(crashes=number, **crashed).text for number in (1, 2))
    assert once.endswith(" 1 worker died while it ran: it is suspected to kill them.")
    assert twice.endswith(": it is suspected to kill them, and runs alone, in a process of its own.")
    dead = only(status="DEAD_LETTERED", outcome="crashed", crashes=3, last_error="worker process died: SIGKILL")
    assert dead.text.endswith("SIGKILL. It has killed 3 workers, which is all that it may (max_crashes).")


def test_its_lease_lapsed() -> None:
    lapsed = {**FAILED, "outcome": "lease_expired", "attempt_error": "lapsed", "worker": "there/b/1/7.8/w9"}
    where = ' at worker "w9", pid 7 of host there (which was last seen 2 min ago) with: lapsed.'
    assert where in only(host_seen_at=NOW - 120, **lapsed).text
    assert "(which was never seen)" in only(**lapsed).text


def test_the_database_is_held_back() -> None:
    """It comes after any other reason, or alone; a job that runs, or has ended, does not have it."""
    known = replace(KNOWN, slow=("it is held back", "end it"))
    assert codes(known=known) == ["ready", "slow_database"]
    assert codes(known=known, paused_at=NOW) == ["paused", "slow_database"]
    assert why(known=known)[-1] == Cause("slow_database", "it is held back", "end it")
    assert codes(RUNNING, replace(known, holder=Holder(1.0, started=True))) == ["running"]


def test_it_waits_at_its_worker() -> None:
    """A job whose handler was not called yet does not run; from the second crash on it waits to run alone."""
    known = replace(KNOWN, holder=Holder(0.0, started=False, waiting=3))
    reason = only(RUNNING, known)
    assert (reason.code, reason.details["waiting"]) == ("assigned", 3)
    assert "It holds 3 others that wait, too." in reason.text
    assert only(RUNNING, replace(KNOWN, holder=Holder(0.0, started=None))).code == "running"
    assert [only(RUNNING, known, crashes=number).code for number in (1, 2)] == ["assigned", "isolating"]


def test_it_has_expired() -> None:
    """Then nothing else matters; also where it will expire before it is due."""
    reason = only(expires_at=NOW, paused_at=NOW)
    assert (reason.code, "It expired" in reason.text) == ("expired", True)
    assert codes(expires_at=NOW + 0.1) == ["expires"]
    reason = only(next_run_at=NOW + 60, expires_at=NOW + 60)
    assert (reason.code, "never" in reason.text) == ("expired", True)
    assert codes(next_run_at=NOW + 60, expires_at=NOW + 61) == ["not_due", "expires"]
    assert codes(HELD, last_job_status="RUNNING", expires_at=NOW + 1) == ["held", "expires"]


@pytest.mark.parametrize(("columns", "has_it"), [
    ({"unique_until": "end", "attempts": 3}, True), ({"unique_until": "start", "attempts": 0}, True),
    ({"unique_until": "start", "attempts": 1}, False), ({"unique_until": None, "attempts": 0}, False),
], ids=str)  # fmt: skip
def test_it_has_a_unique_key(columns: dict[str, Any], has_it: bool) -> None:
    """That comes last, since it is no reason; whether it is due or not."""
    later: dict[str, Any] = {"next_run_at": NOW + 60, **({"outcome": "snoozed"} if columns["attempts"] else {})}
    columns = {**columns, "uncharged": columns["attempts"]}
    for more, first in (({}, "ready"), (later, codes(**later)[0])):
        assert codes(unique_key="k", **columns, **more) == [first, *["unique"] * has_it]
        assert codes(**{**columns, "unique_until": None}, **more) == [first]


def test_it_is_paused() -> None:
    every: dict[str, Any] = {"all_paused_at": NOW - 60, "all_paused_by": "uid 7 (me)", "all_reason": "broken\ndisk"}
    topic: dict[str, Any] = {"topic": "a b", **{key.removeprefix("all_"): value for key, value in every.items()}}
    for columns, what, option in ((every, "Everything", ""), (topic, 'Topic "a b"', " --topic 'a b'")):
        reason = only(**columns)
        assert (reason.code, reason.advice) == ("paused", f"pulse ctl dispatch resume{option}")
        assert reason.text == (
            f"{what} has been paused since 2030-03-17T17:45:40Z (60 s ago) by uid 7 (me), until somebody resumes it; "
            "reason: broken disk."
        )


def test_a_pause_that_ends() -> None:
    assert "until 2030-03-17T17:47:00Z (in 20 s)." in only(paused_at=NOW, paused_until=NOW + 20).text
    later: dict[str, Any] = {"next_run_at": NOW + 20, "paused_at": NOW}
    assert codes(**later, paused_until=NOW + 20) == ["not_due"]
    assert codes(**later, paused_until=NOW + 21) == ["paused", "not_due"]


def test_what_stops_it_here() -> None:
    assert codes(known=served_by(FULL, is_stopping=True)) == ["stopping", "full"]
    assert codes(known=served_by(FREE, is_unreadable=True)) == ["claim_failed"]
    known = served_by(FREE, earlier="w7")
    assert codes(known=known) == ["earlier_attempt"]
    assert codes(known=known, attempts=1, next_run_at=NOW + 1) == ["earlier_attempt", "given_back"]


def test_nobody_serves_its_topic() -> None:
    reason = only(known=served_by(topics=["default", "image"]))
    assert (reason.code, reason.advice) == ("no_worker", "Start one: pulse worker MODULE:APP --topic images")
    assert reason.text == (
        'No worker that is connected to this server serves topic "images". Served here: default, image.'
    )
    alone = only(known=served_by(topics=()), other_hosts=2)
    assert "No worker is connected at all." in alone.text
    assert "2 other hosts use this database" in alone.text


def test_no_worker_has_its_handler() -> None:
    reason = only(name="rezise", known=served_by(replace(FREE, is_able=False), OTHER))
    assert (reason.code, reason.details["alike"]) == ("no_handler", ["resize"])
    assert reason.text == ('2 workers serve topic "images", but none has a handler named "rezise". Alike: resize.')
    seen = only(known=served_by(OTHER), handler_topic="pictures", handler_seen_at=NOW - 180)
    assert seen.text.endswith('A worker last came with that handler for topic "pictures" 3 min ago.')


def test_who_could_run_it_gets_no_jobs() -> None:
    reason = only(known=served_by(replace(FREE, stopped="draining"), replace(FULL, stopped="silent"), OTHER))
    assert (reason.code, reason.details["stopped"]) == ("held_back", [["draining", 1], ["silent", 1]])
    assert reason.text == "No worker that could run it starts jobs now: 1 draining, 1 silent."


def test_all_are_full() -> None:
    known = served_by(FULL, replace(FULL, calls=("resize", "resize")), replace(FREE, stopped="draining"), OTHER)
    reason = only(known=known)
    assert (reason.code, reason.details["places"]) == ("full", 4)
    assert reason.details["running"] == [["resize", 3], ["crop", 1]]
    assert reason.text == (
        "All 2 workers that could run it are full: 4 places, taken by 3 resize, 1 crop. 1 more: draining."
    )
    assert only(known=served_by(FULL)).text.startswith("The only worker that could run it is full: 2 places")
    ahead = served_by(replace(FULL, capacity=9, held=9))
    assert only(known=ahead).text.endswith("2 places, taken by 1 resize, 1 crop; 7 more jobs were sent ahead.")
    batch = served_by(replace(FULL, capacity=9, held=9, started=6, calls=("index", "index")))
    assert only(known=batch).text.endswith("2 places, taken by 2 index; 3 more jobs were sent ahead.")
    assert "workers take jobs ahead" in only(known=served_by(replace(FULL, capacity=9))).text
    assert codes(known=served_by(FULL, FREE)) == ["ready"]
    names = tuple(f"n{number}" for number in range(9))
    assert ", …" in only(known=served_by(replace(FREE, capacity=9, held=9, calls=names))).text
    assert ", …" in only(known=served_by(topics=names)).text


def test_it_failed_and_is_tried_again() -> None:
    reason = only(**FAILED, uncharged=1)
    assert (reason.code, reason.details["outcome"]) == ("back_off", "error")
    assert reason.text == (
        "Attempt 2 ended (error) with: ValueError: cannot open. "
        "It is tried again 2030-03-17T17:46:44Z (in 4 s); 1 of 5 tries are used."
    )
    assert codes(**{**FAILED, "next_run_at": NOW}) == ["ready"]
    assert codes(**{**FAILED, "outcome": "snoozed"}) == ["snoozed"]


def test_it_was_given_back() -> None:
    """It follows from the missing worker, so it comes behind that."""
    later: dict[str, Any] = {"attempts": 1, "next_run_at": NOW + 5}
    assert codes(**later) == ["given_back"]
    assert codes(**later, known=served_by(OTHER)) == ["no_handler", "given_back"]
    assert codes(**later, known=served_by(FULL)) == ["full", "given_back"]


def test_it_is_held_behind_its_schedule() -> None:
    for status in ("PENDING", "RETRYING", "RUNNING"):
        reason = only(HELD, last_job_status=status, held_before=2)
        assert (reason.code, reason.advice) == ("held", f"pulse ctl jobs why {LAST}")
        assert reason.text == (
            f"It is held until an earlier job of its schedule has ended (overlap queue): {LAST}, {status}. "
            "2 jobs of it wait before it."
        )
    let_go: list[dict[str, Any]] = [{"last_job_status": "COMPLETED"}, {"last_job_id": None}]
    for columns in let_go:
        reason = only(HELD, **columns)
        assert (reason.code, reason.advice, "within 2 s" in reason.text) == ("held", "", True)


AWAITING: Final[dict[str, Any]] = {
    "attempts": 2, "outcome": "snoozed", "ended_at": NOW - 300, "awaited_signal": "it's ok", "next_run_at": NOW + 3600,
}  # fmt: skip


def test_it_waits_for_a_signal() -> None:
    """Which one, since when and until when, and the command that sends it."""
    reason = only(**AWAITING)
    assert (reason.code, reason.details) == (
        "waits_for_signal", {"signal": "it's ok", "since": NOW - 300, "until": NOW + 3600}
    )  # fmt: skip
    assert reason.text == (
        'Its handler has waited for the signal "it\'s ok" since 2030-03-17T17:41:40Z (5 min ago), '
        "until 2030-03-17T18:46:40Z (in 60 min) at most."
    )
    assert reason.advice == f"""To send it: pulse ctl jobs signal {ID} 'it'"'"'s ok'"""
    endless = only(**{**AWAITING, "ended_at": None, "next_run_at": NOW + 1e9 - 300})
    assert endless.text == 'Its handler has waited for the signal "it\'s ok", without a time limit.'
    assert endless.details["until"] is None


def test_what_goes_before_a_wait_for_a_signal() -> None:
    """It comes before a pause; a wait that is over, or that something else puts off, is none."""
    more: dict[str, Any] = {"all_paused_at": NOW, "known": served_by()}
    assert codes(**more, **AWAITING) == ["waits_for_signal", "paused", "no_worker"]
    assert codes(**{**AWAITING, "next_run_at": NOW}) == ["ready"]
    assert codes(**{**AWAITING, "outcome": None}) == ["given_back"]
    assert codes(**{**AWAITING, "waiting_on": 1, "waits_for": (LAST.bytes,)}) == ["waits_for_jobs"]
    assert codes(HELD, **{**AWAITING, "next_run_at": HELD.next_run_at}) == ["held"]


def test_others_come_first() -> None:
    assert only(before=1).text.startswith('1 job of topic "images" comes first')
    assert only(before=7).text.startswith('7 jobs of topic "images" come first')
    reason = only(before=BEFORE_MAX)
    assert (reason.code, reason.details) == ("behind", {"before": BEFORE_MAX})
    assert reason.text.startswith("1,000 jobs or more of topic")
    assert "topic ages" not in reason.text
    assert "topic ages" in only(before=7, known=served_by(FREE, is_ageing=True)).text


def test_the_order_of_what_is_due() -> None:
    """What a person must end comes before what ends by itself."""
    everything: dict[str, Any] = {"all_paused_at": NOW, "paused_at": NOW, "before": 5, "expires_at": NOW + 9}
    first = ["paused", "paused", "stopping", "claim_failed"]
    last = ["behind", "expires"]
    for candidates, code in (((), "no_worker"), ((OTHER,), "no_handler"), ((FULL,), "full")):
        known = served_by(*candidates, is_stopping=True, is_unreadable=True, earlier="w")
        assert codes(known=known, **everything) == [*first, code, "earlier_attempt", *last]
    assert [reason.details.get("topic") for reason in why(known=KNOWN, **everything)[:2]] == ["", "images"]


def test_the_order_of_what_is_not_due() -> None:
    """A pause without an end decides, then the time; a missing worker comes behind that."""
    more: dict[str, Any] = {"all_paused_at": NOW, "paused_at": NOW, "expires_at": NOW + 99, "known": served_by()}
    assert codes(**more, **FAILED) == ["paused", "paused", "back_off", "no_worker", "expires"]
    assert codes(HELD, **more, last_job_status="RUNNING") == ["held", "paused", "paused", "no_worker", "expires"]
