"""What the dispatcher's book says of one job, for those who ask why it does not run."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, Final, cast

import pytest

from pulse import procs
from pulse.store.standing import Standing
from pulse_actors import identity as identities
from pulse_actors.dispatcher.claims import Claims
from pulse_actors.dispatcher.desk import BACKLOG_BYTES, Desk, Held, Worker
from pulse_actors.dispatcher.desktop import Desktop
from pulse_actors.dispatcher.known import known_of
from pulse_actors.dispatcher.why import Candidate, Holder, Known

JOB: Final = bytes(15) + b"1"
OTHER: Final = bytes(15) + b"2"
HOST: Final = identities.this_host("here")
ME: Final = f"{HOST.id}/{HOST.boot}/{HOST.pidns}/{os.getpid()}.{procs.start_time(os.getpid())}/w"
NOTHING: Final = cast("Any", None)  # not asked
BASE: Final = Standing(
    id=JOB,
    topic="a",
    name="red",
    status="PENDING",
    priority=0,
    attempts=2,
    uncharged=0,
    max_attempts=5,
    crashes=0,
    submitted_at=0.0,
    next_run_at=0.0,
    now=9.0,
)
RUNS: Final[dict[str, Any]] = {"status": "RUNNING", "locked_by": ME}


class Wire:
    """Has so much to say yet."""

    unread_bytes = 0

    def __init__(self) -> None:
        self.backlog_bytes = 0

    def send(self, kind: str, request: int | None, body: object) -> None:
        """Nothing is sent here."""

    def close(self) -> None:
        """Nor closed."""


def worker(identity: str = ME, topics: tuple[str, ...] = ("a",)) -> Worker:
    """A worker that is connected, and was heard of at 5."""
    made = Worker(identity, "w", identity.encode()[-16:], 1, 0, topics, frozenset({"red"}), 3, Wire())
    made.heard_s = 5.0
    return made


def site(*workers: Worker) -> Desktop:
    """A dispatcher with these workers."""
    desk = Desk()
    for one in workers:
        desk.join(one)
    claims = Claims(NOTHING, desk, HOST, lease_s=30.0, poll_s=0.25, batch=1)
    return Desktop(NOTHING, desk, claims, NOTHING, HOST, NOTHING, NOTHING)


def known(on: Desktop, **columns: Any) -> Known:
    """What is known at 9."""
    return known_of(
        on, Standing(**{name: columns.get(name, getattr(BASE, name)) for name in BASE.__struct_fields__}), 9.0
    )


def test_who_serves_its_topic() -> None:
    """Others are told of by their topics; of those that serve it, whether they have its handler, and what they hold."""
    able, other, elsewhere = worker(), replace(worker("h/b/1/2.3/x"), name="x"), worker("h/b/1/2.3/y", ("b", "c"))
    able.held[OTHER, 1] = Held("blue", "a")
    other.names = frozenset({"blue"})
    found = known(site(able, other, elsewhere))
    assert found == Known(
        host="here",
        poll_s=0.25,
        candidates=(
            Candidate("w", frozenset({"red"}), is_able=True, capacity=3, held=("blue",)),
            Candidate("x", frozenset({"blue"}), is_able=False, capacity=3),
        ),
        topics=["a", "b", "c"],
    )


@pytest.mark.parametrize("what", ["silent", "closing", "draining", "backlog"])
def test_who_gets_no_jobs(what: str) -> None:
    """A candidate that has no credit, whatever room it has, says why."""
    one = worker()
    if what == "backlog":
        cast("Any", one.link).backlog_bytes = BACKLOG_BYTES + 1
    else:
        setattr(one, what, True)
    (candidate,) = known(site(one)).candidates
    assert one.credit == 0
    assert candidate.stopped is not None
    cast("Any", one.link).backlog_bytes = BACKLOG_BYTES
    assert (known(site(worker())).candidates[0].stopped, worker().credit) == (None, 3)


def test_who_has_it() -> None:
    """When it was heard of, whether its handler was called, and how many others wait there."""
    one = worker()
    one.held = {(JOB, 2): Held("red", "a"), (OTHER, 1): Held("red", "a"), (OTHER, 2): Held("red", "a", started=True)}
    assert known(site(one), **RUNS).holder == Holder(4.0, started=False, waiting=1)
    one.held[JOB, 2].started, one.silent = True, True
    assert known(site(one), **RUNS).holder == Holder(4.0, is_silent=True, started=True, waiting=1)
    assert known(site(one), **RUNS, attempts=3).holder == Holder(4.0, is_silent=True, started=None, waiting=1)
    one.heard_s = float("inf")
    holder = known(site(one), **RUNS).holder
    assert holder is not None
    assert holder.heard_ago_s is None
    assert known(site(), **RUNS).holder is None
    assert known(site(one)).holder is None


def test_who_has_it_and_is_not_connected() -> None:
    """Its process lives, and has lost its connection."""
    one = worker()
    one.watched, one.held = True, {(JOB, 2): Held("red", "a", started=True)}
    on = site(one)
    on.desk.leave(one)
    assert known(on, **RUNS).holder == Holder(4.0, is_connected=False, started=True)


def test_this_dispatcher() -> None:
    """Whether it stops, whether claims of the topic fail for a while, and whether the topic ages."""
    on = site(worker())
    on.desk.closed = True
    on.claims._unreadable = {frozenset({"a", "b"}): 9.5, frozenset({"c"}): 9.0}
    on.desk.rules.ageing_s["a"] = 5.0
    found = known(on)
    assert (found.is_stopping, found.is_unreadable, found.is_ageing) == (True, True, True)
    elsewhere = known(on, topic="c")
    assert (elsewhere.is_unreadable, elsewhere.is_ageing) == (False, False)
    assert not known(on, topic="d").is_unreadable


def test_an_earlier_attempt_in_the_book() -> None:
    """What a process holds that can be killed may run yet; a job that runs has no earlier attempt that counts."""
    one = worker()
    one.watched, one.held = True, {(JOB, 1): Held("red", "a", started=True)}
    assert known(site(one)).earlier == "w"
    assert known(site(one), **RUNS).earlier is None
    one.watched = False
    assert known(site(one)).earlier is None


@pytest.mark.parametrize(
    ("columns", "earlier"),
    [
        ({"outcome": "canceled", "worker": ME}, "w"),
        ({"outcome": "lease_expired", "worker": ME}, "w"),
        ({"outcome": "error", "worker": ME}, None),
        ({"outcome": "canceled", "worker": "there/b/1/7.8/w"}, None),
        ({"outcome": "canceled", "worker": None}, None),
    ],
)
def test_an_earlier_attempt_of_a_process_that_lives(columns: dict[str, Any], earlier: str | None) -> None:
    """One that did not end of itself, in a process of this host that is not connected."""
    assert known(site(), **columns).earlier == earlier
    assert known(site(worker()), **columns).earlier is None
