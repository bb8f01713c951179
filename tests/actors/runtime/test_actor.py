"""What every actor does: which ends are the database's, its loop's log lines, its hints, the gate without room."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import asyncpg
import msgspec
import pytest

from pulse.errors import ProtocolError, StatementError, UnavailableError
from pulse.protocol import encode
from pulse.protocol.bus import (
    HINT_DATA,
    MAX_BUS_FRAME_BYTES,
    MAX_HINT_BYTES,
    NOTHING,
    CanceledJobs,
    Hint,
    HintEvent,
    LapsedLeases,
    OperatorAction,
    ReadyJobs,
    RefusedStatement,
    RefusedStatementsHint,
    TopicGate,
    WorkSomewhere,
    hint,
    received_hint,
)
from pulse.store.failures import UnreadableAnswerError
from pulse_actors.runtime.actor import MOST_ERROR, MOST_REFUSED, _is_of_database, hear_loop, until_available
from pulse_actors.runtime.gate_summary import fitting, told
from pulse_actors.scheduler.actor import HINT_JOBS

OF_DATABASE = (
    UnavailableError(),
    StatementError("no", sqlstate="22021", statement="claim_jobs", may_be_done=True),
    asyncpg.PostgresError("no"),
    asyncpg.InterfaceError("no"),
    asyncpg.InternalClientError("no"),
    UnreadableAnswerError("no"),
)


@pytest.mark.parametrize("error", OF_DATABASE, ids=lambda error: type(error).__name__)
def test_errors_of_the_database(error: Exception) -> None:
    assert _is_of_database(error)
    assert _is_of_database(ExceptionGroup("", [error, ExceptionGroup("", [error])]))
    assert not _is_of_database(ExceptionGroup("", [error, KeyError()]))


def test_others() -> None:
    assert not _is_of_database(KeyError())


pytestmark = pytest.mark.anyio


async def test_a_reader_that_is_told_twice_is_nothing_to_tell(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(hear_loop)
    try:
        waiting: asyncio.Future[None] = loop.create_future()
        waiting.cancel()
        with caplog.at_level(logging.DEBUG, logger="asyncio"):
            loop.call_soon(waiting.set_result, None)
            await asyncio.sleep(0.01)
            assert not caplog.records
            loop.call_soon(divmod, 1, 0)
            await asyncio.sleep(0.01)
    finally:
        loop.set_exception_handler(before)
    (record,) = caplog.records
    assert "divmod" in record.message


async def test_who_has_no_more_time_stops_trying() -> None:
    tries: list[object] = []

    async def away() -> None:
        tries.append(None)
        if len(tries) > 3:
            raise KeyError  # it has not stopped
        raise UnavailableError

    with pytest.raises(UnavailableError):
        await until_available(away, "store", deadline_s=-1.0)
    assert len(tries) == 1


PAUSE = {"reason": "x" * 1000, "paused_at": 1.0, "paused_by": None, "paused_until": None}


def test_what_does_not_fit_is_counted() -> None:
    gate = {"paused": False, "reason": None, "topics": {f"t{number:05}": PAUSE for number in reversed(range(10_000))}}
    short = fitting(gate)
    kept = short["topics"]
    assert isinstance(kept, dict)
    assert [*kept] == [f"t{number:05}" for number in range(len(kept))]
    assert short["topics_omitted"] == 10_000 - len(kept)
    assert MAX_BUS_FRAME_BYTES / 4 < len(msgspec.msgpack.encode(short)) < MAX_BUS_FRAME_BYTES / 1.5
    small = {"paused": True, "topics": {"t": PAUSE}}
    assert fitting(small) == small


def test_a_line_of_the_log_stays_a_line() -> None:
    before = {"paused": False, "topics": {"open again": PAUSE, "as before": PAUSE}}
    after = {"paused": False, "topics": {"as before": PAUSE, "new": PAUSE}}
    assert told(after, before) == {"paused": False, "topics": 2, "changed": ["new", "open again"]}
    many = {"paused": False, "topics": {f"{number:04}": PAUSE for number in range(1000)}}
    line = told(many, {})
    assert (line["topics"], line["changed"]) == (1000, [f"{number:04}" for number in range(20)])


SAID: dict[HintEvent, tuple[Any, dict[str, object]]] = {
    HintEvent.READY: (ReadyJobs([0.5], 2), {"delays_s": [0.5], "reaped": 2}),
    HintEvent.LAPSED: (LapsedLeases(["w"]), {"workers": ["w"]}),
    HintEvent.CANCELED: (CanceledJobs(["0190163d"]), {"jobs": ["0190163d"]}),
    HintEvent.WORK: (WorkSomewhere("h"), {"from": "h"}),
    HintEvent.FAILING: (
        RefusedStatementsHint([RefusedStatement("pause", "look", "42P01", "no", 3, 1.5)]),
        {"statements": [["pause", "look", "42P01", "no", 3, 1.5]]},
    ),
    HintEvent.GATE_CHANGED: (TopicGate("t"), {"topic": "t"}),
    HintEvent.OPERATOR: (
        OperatorAction("drain", 0, 7, None, {"all": True}),
        {"action": "drain", "uid": 0, "pid": 7, "behalf": None, "detail": {"all": True}},
    ),
}


def test_every_event_says_something() -> None:
    assert HINT_DATA.keys() == set(HintEvent)
    assert hint("pause", HintEvent.READY, ReadyJobs()) == Hint("pause", "ready")
    for event in set(HintEvent) - SAID.keys():
        assert hint("x", event) == Hint("x", event, {})


@pytest.mark.parametrize("event", SAID)
def test_what_is_sent_is_what_is_received(event: HintEvent) -> None:
    data, wire = SAID[event]
    sent = hint("dispatcher", event, data)
    assert (sent.event, sent.data) == (event.value, wire)
    frame = encode("hint", None, {"from": "pause", "event": sent.event, "data": sent.data})
    assert received_hint(msgspec.msgpack.decode(frame[4:])[2]) == Hint("pause", event, wire)


def test_an_event_with_the_words_of_another() -> None:
    with pytest.raises(TypeError, match="hint lapsed: LapsedLeases is allowed, not ReadyJobs"):
        hint("dispatcher", HintEvent.LAPSED, ReadyJobs())
    with pytest.raises(TypeError, match="hint ready: ReadyJobs is allowed, not Nothing"):
        hint("dispatcher", HintEvent.READY)
    for event, data in (("'lapsed'", {"workers": 7}), ("'lapsed'", {}), ("None", {})):
        body = {"from": "watchdog", "data": data} | ({} if event == "None" else {"event": event.strip("'")})
        with pytest.raises(ProtocolError, match=f"hint {event}: "):
            received_hint(body)


def test_a_hint_of_tomorrow() -> None:
    """An unknown event or word is kept as it is."""
    assert received_hint({"from": "a", "event": "new", "data": {"x": 1}}) == Hint("a", "new", {"x": 1})
    assert received_hint({"from": "a", "event": "drain", "data": {"x": 1}}) == Hint("a", "drain", {"x": 1})


def test_the_largest_hints_are_passed_on() -> None:
    jobs = CanceledJobs(["0190163d-8694-739b-aea5-966c26f8ad91"] * HINT_JOBS)
    one = RefusedStatement("scheduler", "a_statement_with_a_name", "42P01", "x" * MOST_ERROR, 2**31, 1e6)
    statements = RefusedStatementsHint([one] * MOST_REFUSED)
    for event, data in ((HintEvent.CANCELED, jobs), (HintEvent.FAILING, statements)):
        sent = hint("dispatcher", event, data)
        assert len(encode("hint", None, {"to": sent.peer, "event": sent.event, "data": sent.data})) <= MAX_HINT_BYTES
    assert MAX_HINT_BYTES < MAX_BUS_FRAME_BYTES
    assert hint("x", HintEvent.RELOAD, NOTHING).data == {}
