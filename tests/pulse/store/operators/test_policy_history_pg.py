"""
Pause, policy and expiry against a model of them: random histories on the real database, by the stores of several
dispatchers, and after each step every store's answers, and every row, as in the model.

More of it: ``HYPOTHESIS_PROFILE=long``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

import asyncpg
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pulse.errors import BadRequestError
from pulse.protocol import HandlerInfo
from pulse.store.connections.pool import Target
from pulse.store.rows import Ending, EndingKind
from pulse.store.store import Store
from tests.plugins.databases import EMPTY
from tests.support.servers.postgres import Postgres
from tests.support.store.helpers import EXAMPLES, NOW, Sql, job, run_histories
from tests.support.store.model import WAITING, Model, ModelJob

pytestmark = [pytest.mark.long, pytest.mark.heavy]

T = TypeVar("T")
STORES: Final = 3
LEASE_S: Final = 1e6
TOPICS: Final = ("a", "b")
NAMES: Final = ("n", "m")
BACKOFFS: Final[dict[str, list[float]]] = {
    "quadratic": [1, 4, 9, 16], "fixed:3": [3, 3, 3, 3], "list:1,5": [1, 5, 5, 5], "quadratic:0.5": [0.5, 2, 4.5, 8],
}  # fmt: skip
_JOBS: Final = """
    SELECT uuid_send(id) AS id, status::text AS status, attempts, uncharged, max_attempts, next_run_at, expires_at,
        last_error FROM pulse.jobs"""
EXPIRED: Final = "expired: "

stores = st.integers(0, STORES - 1)
topics = st.sampled_from(TOPICS)
places = st.integers(0, 20)
words = st.none() | st.sampled_from(sorted(BACKOFFS))
spans = st.integers(1, 12).map(lambda number: number / 2)


@dataclass(slots=True)
class Policies(Model):
    """The model with pauses that end, and back-offs of one's choice."""

    pauses: dict[str, datetime | None] = field(default_factory=dict)
    backoffs: dict[str, str] = field(default_factory=dict)  # of topics; '' is the server
    handlers: dict[str, str] = field(default_factory=dict)
    max_attempts: dict[str, int] = field(default_factory=dict)

    def is_paused(self, topic: str, now: datetime) -> bool:
        return any(one in self.pauses and ((until := self.pauses[one]) is None or until > now) for one in ("", topic))

    def wait_s(self, job: ModelJob) -> float:
        word = self.handlers.get(job.name) or self.backoffs.get(job.topic) or self.backoffs.get("", "quadratic")
        return BACKOFFS[word][min(job.attempts - job.uncharged, 4) - 1]


class PolicyMachine(RuleBasedStateMachine):
    """A few jobs, three dispatchers' stores, and operators who change their minds."""

    def __init__(self, runner: asyncio.Runner, several: list[Store], connection: Sql) -> None:
        super().__init__()
        self.runner, self.stores, self.connection = runner, several, connection
        self.policies = Policies()
        self.now = NOW

    def do(self, doing: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(doing)

    def at(self, seconds: float) -> datetime:
        return self.now + timedelta(seconds=seconds)

    @initialize()
    def empty(self) -> None:
        self.do(self.connection.execute(EMPTY))

    @rule(seconds=st.integers(0, 8).map(lambda number: number / 2))
    def time_passes(self, seconds: float) -> None:
        self.now = self.at(seconds)

    @rule(store=stores, topic=topics, name=st.sampled_from(NAMES), expires=st.none() | spans, as_time=st.booleans())
    def submit(self, store: int, topic: str, name: str, expires: float | None, as_time: bool) -> None:
        moment = None if expires is None else self.at(expires)
        when: dict[str, Any] = {"expires_in_s": expires}
        if as_time and moment is not None:
            when = {"expires_at": moment.timestamp()}
        new = job(topic=topic, name=name, **when)
        self.do(self.stores[store].submit([new], now=self.now))
        tries = self.policies.max_attempts.get(topic, 5)
        row = ModelJob(new.id or b"", topic, name, "{}", 0, tries, self.now, self.now, expires_at=moment)
        self.policies.jobs[row.id] = row

    @rule(store=stores, limit=st.integers(1, 4), known=st.booleans())
    def claim(self, store: int, limit: int, known: bool) -> None:
        """Of due jobs, not paused, not expired, as many as asked for; nothing else."""
        can = {one for _, one in self.policies.claimable(TOPICS, self.now)}
        levels = [(topic, 0, 0.0) for topic in TOPICS] if known else None
        doing = self.stores[store].claim(TOPICS, ["w"], [0] * limit, LEASE_S, levels=levels, now=self.now)
        claimed = {one.id for one in self.do(doing)}
        assert claimed <= can
        assert len(claimed) == min(limit, len(can))
        self.policies.seated(claimed, ["w"] * len(claimed), LEASE_S, self.now)

    @precondition(lambda self: self.policies.held())
    @rule(store=stores, place=places, kind=st.sampled_from(("error", "retry", "snoozed", "released", "discarded")))
    def end(self, store: int, place: int, kind: str) -> None:
        """By the back-off that is in force now, or the delay that the handler wants."""
        found = self.policies.held()
        own = 2.5 if kind in {"retry", "snoozed"} else None
        endings = [Ending(*found[place % len(found)], EndingKind(kind), "boom", own)]
        assert self.do(self.stores[store].end(endings, now=self.now)) == self.policies.end(endings, self.now)

    @rule(store=stores, limit=st.integers(1, 4))
    def expire(self, store: int, limit: int) -> None:
        late = sorted(
            (row.expires_at or self.now, one)
            for one, row in self.policies.jobs.items()
            if row.status in WAITING and row.is_over(self.now)
        )
        assert len(self.do(self.stores[store].expire(limit, now=self.now))) == min(limit, len(late))
        rows = {row["id"]: row["status"] for row in self.do(self.connection.fetch(_JOBS))}
        given_up = {one for _, one in late if rows[one] == "DEAD_LETTERED"}
        assert len(given_up) == min(limit, len(late))
        assert all(moment <= late[len(given_up) - 1][0] for moment, one in late if one in given_up)
        for one in given_up:
            self.policies.jobs[one].let_go("DEAD_LETTERED", finished_at=self.now)
            self.policies.jobs[one].last_error = EXPIRED

    @rule(store=stores, place=places)
    def retry(self, store: int, place: int) -> None:
        dead = sorted(one for one, row in self.policies.jobs.items() if row.status == "DEAD_LETTERED")
        if dead:
            chosen = [dead[place % len(dead)]]
            assert {*self.do(self.stores[store].retry(chosen, now=self.now))} == self.policies.retry(chosen, self.now)

    @rule(store=stores, topic=st.sampled_from(("", *TOPICS)), span=st.none() | spans, as_time=st.booleans())
    def pause(self, store: int, topic: str, span: float | None, as_time: bool) -> None:
        until = None if span is None else self.at(span)
        gate, for_s, until_s = self.stores[store].gate, span, None
        if as_time and until is not None:
            for_s, until_s = None, until.timestamp()
        self.do(gate.pause(topic, "why", who="me", until_s=until_s, for_s=for_s, now=self.now))
        self.policies.pauses[topic] = until

    @rule(store=stores, topic=st.sampled_from(("", *TOPICS)))
    def resume(self, store: int, topic: str) -> None:
        self.do(self.stores[store].gate.resume(topic))
        self.policies.pauses.pop(topic, None)

    @rule(store=stores)
    def clear(self, store: int) -> None:
        """The pause actor's part: those that are over, and no other."""
        over = {one for one, until in self.policies.pauses.items() if until is not None and until <= self.now}
        cleared = {one.topic for one in self.do(self.stores[store].gate.expire(now=self.now))}
        assert cleared == over
        for one in over:
            del self.policies.pauses[one]

    @rule(store=stores, topic=topics, word=words, tries=st.none() | st.integers(1, 3))
    def set_topic(self, store: int, topic: str, word: str | None, tries: int | None) -> None:
        self.do(self.stores[store].topics.set(topic, {"backoff": word, "max_attempts": tries}))
        pairs: list[tuple[dict[str, Any], object]] = [
            (self.policies.backoffs, word),
            (self.policies.max_attempts, tries),
        ]
        for known, value in pairs:
            known.pop(topic, None)
            if value is not None:
                known[topic] = value

    @rule(store=stores, topic=topics)
    def set_nonsense(self, store: int, topic: str) -> None:
        with pytest.raises(BadRequestError, match="backoff of topic"):
            self.do(self.stores[store].topics.set(topic, {"max_attempts": 1, "backoff": "fixed:-5"}))

    @rule(store=stores, word=words)
    def set_server(self, store: int, word: str | None) -> None:
        self.do(self.stores[store].set_server_defaults(5, 3, word or "quadratic"))
        self.policies.backoffs[""] = word or "quadratic"

    @rule(store=stores, name=st.sampled_from(NAMES), word=words)
    def hello(self, store: int, name: str, word: str | None) -> None:
        self.do(self.stores[store].note_handlers({name: HandlerInfo(backoff=word)}))
        self.policies.handlers.pop(name, None)
        if word is not None:
            self.policies.handlers[name] = word

    @invariant()
    def rows_are_as_in_the_model(self) -> None:
        rows = {row["id"]: dict(row) for row in self.do(self.connection.fetch(_JOBS))}
        assert rows.keys() == self.policies.jobs.keys()
        for identity, found in rows.items():
            row = self.policies.jobs[identity]
            assert (found.pop("last_error") or "").startswith(EXPIRED) is (row.last_error == EXPIRED)
            assert found == {name: getattr(row, name) for name in found}

    @invariant()
    def all_are_told_the_same(self) -> None:
        closed = {one for one, until in self.policies.pauses.items() if until is None or until > self.now}
        for store in self.stores:
            gate, _ = self.do(store.gate.look(now=self.now))
            listed = gate["topics"]
            assert isinstance(listed, dict)
            assert {*listed, *([""] if gate["paused"] else [])} == closed


@pytest.fixture
def server(newest_server: Postgres) -> Postgres:
    return newest_server


@pytest.fixture
def machine(server: Postgres) -> Iterator[Any]:
    with server.database() as dsn, asyncio.Runner() as runner:
        connection = runner.run(asyncpg.connect(dsn))
        several = [Store(Target(dsn, f"model {number}"), hot=1, queries=1) for number in range(STORES)]
        yield lambda: PolicyMachine(runner, several, connection)
        for store in several:
            store.close()
        runner.run(connection.close())


@pytest.mark.rest
@EXAMPLES
def test_the_stores_do_what_the_model_does(machine: Any, part: int) -> None:
    run_histories(machine, part)
