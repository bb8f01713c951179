"""The dispatcher's registry: which worker gets which job, and what follows a claim that cannot run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from pulse.store.operators.policies import LivePolicy
from pulse.store.rows import Claim, Completion, Ending, EndingKind, Fence, Running
from pulse_actors.dispatcher.claims import placement as placing
from pulse_actors.dispatcher.claims.placement import Placement, place
from pulse_actors.dispatcher.workers import registry as book
from pulse_actors.dispatcher.workers.policies import TopicPolicies
from pulse_actors.dispatcher.workers.records import BACKLOG_BYTES, HeldJob, RegisteredWorker, WorkerFacts
from pulse_actors.dispatcher.workers.registry import ClaimPlan, WorkerRegistry, deal
from tests.support.store.recovery_kit import Wire, wire_of

NAMES = ("red", "green", "blue")
TOPICS = ("a", "b")


def worker(
    identity: str = "w",
    *,
    capacity: int = 10,
    names: Sequence[str] = NAMES,
    topics: Sequence[str] = ("a",),
    held: int = 0,
) -> RegisteredWorker:
    made = RegisteredWorker(
        WorkerFacts(identity, identity, identity.encode().ljust(16), 1, 0, tuple(topics), frozenset(names)),
        capacity,
        Wire(),
    )
    for number in range(held):
        made.held[f"{identity}{number}".encode().ljust(16), 1] = HeldJob("red", "a")
    return made


def desk_of(*workers: RegisteredWorker) -> WorkerRegistry:
    registry = WorkerRegistry()
    for one in workers:
        registry.join(one)
    return registry


def claim(number: int = 0, *, name: str = "red", topic: str = "a", seat: int = 0, uncharged: int = 0) -> Claim:
    return Claim(number.to_bytes(16), uncharged + 1, name, topic, "{}", None, 0, 0.0, seat, uncharged)


def plan_for(*workers: RegisteredWorker) -> ClaimPlan:
    return ClaimPlan(("a",), tuple(one.identity for one in workers), tuple(range(len(workers))))


def returned(placement: Placement) -> Ending:
    assert (placement.assigned, placement.moved) == ({}, [])
    (ending,) = placement.returned
    return ending


@pytest.mark.parametrize(("capacity", "held", "credit"), [(10, 0, 10), (10, 4, 6), (10, 10, 0), (3, 10, 0), (0, 0, 0)])
def test_credit_is_capacity_minus_held(capacity: int, held: int, credit: int) -> None:
    assert worker(capacity=capacity, held=held).credit == credit


def test_who_has_no_credit_whatever_its_capacity() -> None:
    """Workers that drain, may be killed for hung handlers, or have a large unread backlog."""
    draining, closing, slow = worker(), worker(), worker()
    draining.draining = closing.closing = True
    wire_of(slow).backlog_bytes = BACKLOG_BYTES + 1
    assert [one.credit for one in (draining, closing, slow)] == [0, 0, 0]
    wire_of(slow).backlog_bytes = BACKLOG_BYTES
    assert slow.credit == 10


def plans_of(registry: WorkerRegistry, batch: int) -> list[ClaimPlan]:
    return [one.plan(batch) for one in registry.with_room()]


def test_a_plan_has_a_seat_for_each_free_place() -> None:
    registry = desk_of(worker(capacity=10))
    assert plans_of(registry, 500) == [ClaimPlan(("a",), ("w",), (0,) * 10)]
    assert plans_of(registry, 4) == [ClaimPlan(("a",), ("w",), (0,) * 4)]


def test_workers_with_the_same_topics_share_a_claim() -> None:
    """Workers are grouped by the topics that they serve; each group is one claim, the freest worker first in it."""
    registry = desk_of(
        worker("x", capacity=1), worker("y", capacity=3), worker("z", capacity=2, topics=["b"]), worker("full", held=10)
    )
    plans = {plan.topics: plan for plan in plans_of(registry, 500)}
    assert plans == {("a",): ClaimPlan(("a",), ("y", "x"), (0, 1, 0, 0)), ("b",): ClaimPlan(("b",), ("z",), (0, 0))}


def test_a_plan_names_no_more_workers_than_it_has_seats() -> None:
    """Of thousands that are free: those with the most room, so that a claim does not cost more, the more there are."""
    registry = desk_of(*(worker(f"w{number}", capacity=number) for number in range(5)))
    assert plans_of(registry, 2) == [ClaimPlan(("a",), ("w4", "w3"), (0, 1))]


@pytest.mark.parametrize(
    ("other", "spare", "others"),
    [
        (worker("other", names=(*NAMES, "more")), True, True),
        (worker("other", names=NAMES[1:]), False, True),
        (worker("other", held=10), False, True),
        (worker("other", topics=("a", "b")), False, True),
        (worker("other", topics=("b",)), False, False),
        (None, False, False),
    ],
    ids=["with room", "without a handler", "full", "with more topics", "of another topic", "alone"],
)
def test_what_a_worker_adds(other: RegisteredWorker | None, spare: bool, others: bool) -> None:
    """Nothing, if another one with room could take the same jobs."""
    registry, came = desk_of(*filter(None, [other])), worker()
    registry.join(came)
    assert (registry.is_spare(came), registry.has_others(came)) == (spare, others)


def test_what_is_not_planned_for() -> None:
    """A pool parent, which has no capacity; a worker without topics, or in a drain; none where dispatch is closed."""
    draining = worker("draining")
    draining.draining = True
    registry = desk_of(worker("parent", capacity=0), worker("idle", topics=[]), draining)
    assert registry.with_room() == []
    registry.join(worker())
    assert registry.with_room() != []
    registry.closed = True
    assert registry.with_room() == []


def test_who_comes_again_or_leaves_serves_its_old_topics_no_more() -> None:
    registry, old, new = desk_of(worker("other")), worker(topics=["a", "b"]), worker(topics=["c"])
    registry.join(old)
    registry.join(new)
    assert [one.topics for one in registry.with_room()] == [("a",), ("c",)]
    registry.leave(old)
    assert len(registry.with_room()) == 2, "it is the new one that serves c"
    registry.leave(new)
    assert [one.topics for one in registry.with_room()] == [("a",)]


def test_topics_take_turns() -> None:
    registry = desk_of(worker(topics=["a", "b", "c"]))
    assert {registry.with_room()[0].topics[0] for _ in range(3)} == {"a", "b", "c"}
    assert len({registry.with_room(again=again)[0].topics for again in (False, True, True)}) == 1


@pytest.mark.parametrize(
    ("free", "limit", "seats"),
    [([3, 1, 2], 100, [0, 1, 2, 0, 2, 0]), ([3, 1, 2], 4, [0, 1, 2, 0]), ([5], 3, [0, 0, 0]), ([], 3, [])],
)
def test_jobs_are_dealt_in_turn(free: list[int], limit: int, seats: list[int]) -> None:
    assert deal(free, limit) == seats


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(0, 100))
def test_deal_uses_exactly_what_is_free(free: list[int], limit: int) -> None:
    seats = deal(free, limit)
    assert len(seats) == min(limit, sum(free))
    assert all(count <= free[seat] for seat, count in Counter(seats).items())


def test_a_claim_goes_to_its_seat() -> None:
    one = worker()
    placement = place(desk_of(one), plan_for(one), [claim(1), claim(2)])
    assert placement == Placement(assigned={"w": [claim(1), claim(2)]})
    assert one.held == {}


def test_a_claim_that_its_seat_does_not_name_goes_to_an_heir() -> None:
    seat, small, large = worker("seat", names=["blue"]), worker("small", capacity=1), worker("large")
    placement = place(desk_of(seat, small, large), plan_for(seat), [claim(1)])
    assert placement == Placement(moved=[(claim(1), Fence(claim(1).id, 1, "seat"), "large")])


@pytest.mark.parametrize(
    ("uncharged", "delay_s"), [(0, 5.0), (1, 10.0), (2, 20.0), (3, 40.0), (4, 60.0), (1_000_499, 60.0)]
)
def test_a_name_that_nobody_serves_is_put_back_later_and_later(uncharged: int, delay_s: float) -> None:
    one = worker(names=["blue"])
    placement = place(desk_of(one), plan_for(one), [claim(1, uncharged=uncharged)])
    assert placement.unhandled == [claim(1, uncharged=uncharged)]
    assert returned(placement) == Ending(
        claim(1).id, uncharged + 1, "w", EndingKind.UNASSIGNED, 'no handler named "red" on topic "a"', delay_s, None
    )


def test_a_name_that_finds_workers_but_no_handler() -> None:
    """Only where its topic is served; a submit without a topic takes the topic of its handler, else "default"."""
    one, other = worker("one", names=["red"], topics=["a", "b"]), worker("other", names=["rod", "x"], topics=["a"])
    registry = desk_of(one, other)
    found = [registry.unhandled(*one) for one in (("a", "rod"), (None, "rod"), ("c", "y"), (None, "y"))]
    assert found == [None, None, None, None]
    assert registry.unhandled("b", "rod") == ("b", ["red"])
    assert registry.unhandled("a", "roed") == ("a", ["rod", "red"])
    registry.join(worker("third", names=["z"], topics=["default", "b"]))
    assert registry.unhandled(None, "y") == ("default", [])
    assert registry.unhandled("b", "z") is None
    registry.leave(one)
    assert registry.unhandled("b", "red") == ("b", [])


@pytest.mark.parametrize("why", ["full", "draining"])
def test_a_name_whose_workers_are_busy_comes_back_soon(why: str) -> None:
    seat, other = worker("seat", names=["blue"]), worker("other", held=10 if why == "full" else 0)
    other.draining = why == "draining"
    ending = returned(place(desk_of(seat, other), plan_for(seat), [claim(1)]))
    assert ending == Ending(claim(1).id, 1, "seat", EndingKind.UNASSIGNED, None, placing.ALL_BUSY_MIN_S, None)


def test_what_is_put_back_at_once() -> None:
    """A claim for a worker that has left, if no other takes it; and one after dispatch has closed."""
    one = worker()
    gone, closed = desk_of(worker("other", names=["blue"])), desk_of(one)
    at_once = Ending(claim(1).id, 1, "w", EndingKind.UNASSIGNED, None, 0.0, None)
    assert returned(place(gone, plan_for(one), [claim(1)])) == at_once
    one.draining = True
    assert returned(place(closed, plan_for(one), [claim(1)])).error is None  # it still names its handlers
    closed.closed = True
    assert returned(place(closed, plan_for(one), [claim(1)])) == at_once


@pytest.mark.parametrize(("texts", "error"), [
    ({"args": '{"a": "ééééééé"}'}, "args have 23 bytes as the database prints them; at most 20 can be sent"),
    ({"checkpoint": '"0123456789abcdefgh"'}, "args and checkpoint have 22 bytes as the database prints them"),
    ({"previous": "[" + 18 * "1" + "]"}, ""),
    ({"args": '{"a": "éééééx"}'}, None),
], ids=["args", "checkpoint", "the attempt before", "just fits"])  # fmt: skip
def test_what_no_frame_can_carry_is_a_dead_letter(
    monkeypatch: pytest.MonkeyPatch, texts: dict[str, str], error: str | None
) -> None:
    """A job whose texts no frame can hold ends with a reason, instead of breaking one connection after another."""
    monkeypatch.setattr(placing, "CLAIM_MAX_BYTES", 20)
    one, other = worker("w"), worker("other")
    long = structs.replace(claim(), **texts)
    placement = place(desk_of(one, other), plan_for(one), [long])
    if error is None:
        assert placement == Placement(assigned={"w": [long]})
    else:
        assert returned(placement).kind is EndingKind.DISCARDED
        assert (returned(placement).error or "").startswith(error)


def test_a_superseded_worker_does_not_remove_its_successor() -> None:
    older, newer = worker(), worker()
    registry = desk_of(older, newer)
    registry.leave(older)
    assert registry.get("w") is newer
    assert registry.by_session(newer.facts.session, remote=False) is newer
    registry.leave(newer)
    assert registry.workers() == []
    assert registry.by_session(newer.facts.session, remote=False) is None


def test_held_until_answered() -> None:
    one = worker(capacity=3)
    registry = desk_of(one)
    registry.hand_over("w", [claim(1), claim(2)])
    assert one.credit == 1
    assert registry.held_among([claim(1).id, claim(3).id]) == {claim(1).id}
    one.contact.heard_s = 5.0
    registry.started(one, [(claim(1).id, 1), (claim(9).id, 1)])
    one.contact.heard_s = 6.0
    assert [held.started for held in one.held.values()] == [True, False]
    assert not any(held.apart for held in one.held.values())
    registry.started(one, [(claim(1).id, 1), (claim(2).id, 1)], {(claim(1).id, 1)})
    registry.started(one, [(claim(1).id, 1)])  # told again
    assert [held.apart for held in one.held.values()] == [True, False]
    assert [held.since_s for held in one.held.values()] == [5.0, 6.0]  # the first word counts
    registry.free(one, [(claim(1).id, 1), (claim(2).id, 7)])
    assert set(one.held) == {(claim(2).id, 1)}
    assert one.credit == 2


workers_strategy = st.lists(
    st.tuples(
        *(st.integers(0, 6), st.integers(0, 6), st.sets(st.sampled_from(NAMES))),
        *(st.lists(st.sampled_from(TOPICS), unique=True), st.booleans()),
    ),
    max_size=5,
)


@given(
    workers_strategy, st.integers(1, 12), st.data(),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=3),
)  # fmt: skip
def test_every_claim_is_placed_once_and_nobody_is_overfilled(
    shapes: list[tuple[int, int, set[str], list[str], bool]],
    batch: int,
    data: st.DataObject,
    changes: list[tuple[int, int]],
) -> None:
    registry = WorkerRegistry()
    made: list[RegisteredWorker] = []
    for number, (capacity, held, names, topics, draining) in enumerate(shapes):
        one = worker(f"w{number}", capacity=capacity, held=held, names=sorted(names), topics=topics)
        one.draining = draining
        made.append(one)
        registry.join(one)
    plans = plans_of(registry, batch)
    for plan in plans:
        assert len(plan.seats) <= batch
        planned = Counter(plan.workers[seat] for seat in plan.seats)
        assert all(count <= found.credit for name, count in planned.items() if (found := registry.get(name)))
    for plan in plans:
        for index, capacity in changes:
            if index < len(made):
                made[index].capacity = capacity
                if capacity == 3:
                    registry.leave(made[index])
        claims = [
            claim(
                number, name=data.draw(st.sampled_from(NAMES)), topic=data.draw(st.sampled_from(plan.topics)),
                seat=seat, uncharged=data.draw(st.integers(0, 5)),
            )
            for number, seat in enumerate(plan.seats)
        ]  # fmt: skip
        free = {one.identity: one.credit for one in registry.workers()}
        placement = place(registry, plan, claims)
        assert Counter(placed_ids(placement)) == Counter(one.id for one in claims)
        for identity, count in Counter(who for who, _ in runs(placement)).items():
            assert count <= free[identity]
        for identity, job in runs(placement):
            found = registry.get(identity)
            assert found is not None
            assert not found.draining
            assert job.name in found.facts.names
            assert job.topic in found.facts.topics
        for ending in placement.returned:
            assert ending.kind is EndingKind.UNASSIGNED
            assert ending.delay_s is not None
            assert 0 <= ending.delay_s <= 60


def test_a_silent_worker_gets_no_more() -> None:
    silent, idle, speaking = worker("silent", held=1), worker("idle"), worker("speaking", held=1)
    silent.contact.hear(0.0)
    speaking.contact.hear(20.0)
    registry = desk_of(silent, idle, speaking)
    assert registry.note_silence(10.0) == [silent]
    assert registry.note_silence(10.0) == []
    assert (silent.credit, idle.credit, speaking.credit) == (0, 10, 9)
    assert silent.contact.hear(30.0)
    assert not silent.contact.hear(30.0)
    assert registry.note_silence(10.0) == []
    assert silent.credit == 9


def test_who_speaks_for_a_worker() -> None:
    one = worker("one", held=1)
    one.contact.hear(5.0)
    one.contact.silent = True
    assert one.contact.hear(20.0, itself=False)
    assert (one.contact.heard_s, one.contact.said_s, one.contact.silent) == (20.0, 5.0, False)


def placed_ids(placement: Placement) -> list[bytes]:
    return [one.id for _, one in runs(placement)] + [ending.id for ending in placement.returned]


def runs(placement: Placement) -> list[tuple[str, Claim]]:
    assigned = [(identity, one) for identity, claims in placement.assigned.items() for one in claims]
    return assigned + [(heir, one) for one, _, heir in placement.moved]


@pytest.mark.parametrize(("uncharged", "delay_s"), [(0, 1.0), (1, 2.0), (3, 8.0), (4, 10.0), (1_000_499, 10.0)])
def test_busy_names_come_back_later_and_later(uncharged: int, delay_s: float) -> None:
    registry = WorkerRegistry()
    registry.join(worker("seat", names=["green"]))
    registry.join(worker("full", names=["red"], capacity=1, held=1))
    (ending,) = place(registry, ClaimPlan(("a",), ("seat",), (0,)), [claim(1, uncharged=uncharged)]).returned
    assert (ending.kind, ending.delay_s) == (EndingKind.UNASSIGNED, delay_s)


def test_who_is_known() -> None:
    connected, older, stranger = worker("w"), worker("w"), worker("s")
    registry = desk_of(connected)
    left = worker("a")
    registry.strangers, registry.away = {"w": older, "s": stranger}, {"a": left}
    assert registry.find("w") is connected
    assert registry.find("s") is stranger
    assert registry.find("a") is left
    assert registry.find("x") is None
    for one, session in ((left, b"left"), (stranger, b"strange"), (connected, b"here"), (older, b"older")):
        one.facts = replace(one.facts, session=session)
    assert [registry.unconnected(one) for one in (b"left", b"strange", b"here")] == [left, stranger, None]
    assert not registry.has_met("w")
    registry.is_newest("w", 1)
    assert registry.has_met("w")


def test_who_holds_a_job() -> None:
    first, second, other = worker("first"), worker("second"), worker("other", held=1)
    first.held[claim(1).id, 1] = second.held[claim(1).id, 3] = first.held[claim(1).id, 2] = HeldJob("red", "a")
    registry = desk_of(first, second, other)
    assert registry.holder_of(claim(1).id) == (second, 3)
    assert registry.holder_of(claim(2).id) is None


def test_the_parent_of_a_process() -> None:
    parent, other, child = worker("parent", topics=[]), worker("other", topics=[]), worker("child")
    for pid, one in enumerate((parent, other, child), 5):
        one.facts = replace(one.facts, pid=pid)
    registry = desk_of(other, parent, child)
    assert [registry.parent_of(pid) for pid in (5, 7, 8)] == [parent, None, None]


def test_an_heir_is_not_overfilled() -> None:
    seat, heir = worker("seat", names=["blue"], capacity=3), worker("heir", capacity=1)
    placement = place(desk_of(seat, heir), ClaimPlan(("a",), ("seat",), (0, 0)), [claim(1), claim(2)])
    assert (len(placement.moved), len(placement.returned)) == (1, 1)


def test_who_must_end_in_time() -> None:
    one = worker()
    one.facts = replace(one.facts, stalls={"green": 1.0})
    registry = desk_of(one)
    jobs = [structs.replace(claim(1), timeout_s=5.0), claim(2, name="green"), claim(3)]
    registry.hand_over("w", jobs)
    bounded = registry.started(one, [(job.id, job.attempt) for job in jobs])
    assert [pair for pair, _ in bounded] == [(job.id, 1) for job in jobs[:2]]


def test_a_promise_is_the_handlers_else_the_topics() -> None:
    """As it was sent with the job, whatever the policy says since; of jobs that a worker came with, the policy's."""
    one = worker()
    one.facts = replace(one.facts, stalls={"green": 1.0})
    registry = desk_of(one)
    registry.policies = TopicPolicies({"a": LivePolicy(stall_s=5.0), "": LivePolicy(stall_s=9.0)})
    jobs = [claim(1), claim(2, name="green"), claim(3, topic="b")]
    registry.hand_over("w", jobs)
    registry.policies = TopicPolicies({"a": LivePolicy(stall_s=7.0)})
    came = HeldJob("red", "a")
    one.held[b"came".ljust(16), 1] = came
    registry.started(one, one.held)
    assert [held.stall_s for held in one.held.values()] == [5.0, 1.0, 9.0, 7.0]


def test_where_a_job_waited() -> None:
    one = worker(held=1)
    registry = desk_of(one)
    (pair,) = one.held
    assert registry.topic_of(Completion(*pair, "w", None)) == "a"
    assert registry.topic_of(Completion(pair[0], 2, "w", None)) == ""
    assert registry.topic_of(Completion(*pair, "nobody", None)) == ""


def test_the_newest_connection_counts() -> None:
    """A hello that waited is older than one that was made after it."""
    registry = desk_of()
    assert registry.is_newest("w", 3)
    assert registry.is_newest("w", 3)
    assert not registry.is_newest("w", 2)
    assert registry.is_newest("v", 1)
    assert registry.is_newest("w", 4)
    assert not registry.is_newest("w", 3)


def test_not_every_connection_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book, "NEWEST_MAX", 3)
    registry = desk_of()
    for number, identity in enumerate(["a", "b", "a", "c", "d"], start=5):
        assert registry.is_newest(identity, number)
    assert [registry.is_newest(identity, 1) for identity in ("a", "c", "d", "b")] == [False, False, False, True]


def test_who_is_away_still_holds_its_jobs() -> None:
    """A watched process without a connection may still run them, until it comes back or dies."""
    watched, idle, unseen = worker("watched", held=1), worker("idle"), worker("unseen", held=1)
    watched.watched = idle.watched = True
    registry = desk_of(watched, idle, unseen)
    for one in (watched, idle, unseen):
        registry.leave(one)
    assert registry.away == {"watched": watched}
    job, _ = next(iter(watched.held))
    assert registry.held_among([job]) == {job}
    registry.join(worker("watched"))
    assert registry.away == {}
    assert registry.held_among([job]) == set()


def test_what_runs_in_hand() -> None:
    connected, foreign, stranger = (worker(name, held=1) for name in ("connected", "foreign", "stranger"))
    connected.watched = stranger.watched = True
    connected.held[claim(9).id, 1] = HeldJob("red", "a")
    registry = desk_of(connected, foreign)
    registry.strangers["stranger"] = stranger
    jobs = {name: f"{name}0".encode().ljust(16) for name in ("connected", "foreign", "stranger")}
    assert registry.running_in_hand(jobs.values()) == {jobs["connected"], jobs["stranger"]}


@pytest.mark.parametrize(("uncharged", "delay_s"), [(0, 1.0), (2, 4.0), (1_000_499, 10.0)])
def test_a_job_whose_earlier_attempt_runs_yet_waits(uncharged: int, delay_s: float) -> None:
    """It is put back, later and later, until that process has ended; others go on."""
    one, other = worker(), worker("other")
    other.watched = True
    again, elsewhere, free = (
        structs.replace(claim(number), attempt=uncharged + 2, uncharged=uncharged if number < 3 else 0)
        for number in (1, 2, 3)
    )
    other.held[again.id, 1] = HeldJob("red", "a")
    placement = place(desk_of(one, other), plan_for(one), [again, elsewhere, free], {elsewhere.id})
    assert placement.assigned == {"w": [free]}
    assert placement.returned == [
        Ending(job.id, uncharged + 2, "w", EndingKind.UNASSIGNED, delay_s=delay_s) for job in (again, elsewhere)
    ]


def test_what_a_worker_came_with_is_learned() -> None:
    one = worker()
    running, queued, known, gone = ((claim(number).id, 1) for number in range(4))
    one.jobs.held = {running: HeldJob("", "", started=True), queued: HeldJob("", ""), known: HeldJob("blue", "a")}
    news = {pair: Running("red", "a", 5.0) for pair in (running, queued, known, gone)}
    assert [pair for pair, _ in desk_of(one).learn(one, news)] == [running]
    assert [(one.held[pair].name, one.held[pair].timeout_s) for pair in (running, queued, known)] == [
        ("red", 5.0),
        ("red", 5.0),
        ("blue", None),
    ]
    assert gone not in one.held
