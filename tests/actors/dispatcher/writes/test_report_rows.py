"""From results on the wire to what the store writes: which success, which ending, with which text."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse import protocol
from pulse.errors import ProtocolError
from pulse.protocol import CLAIM_MAX_BYTES, Result, ResultExtra
from pulse.store.rows import Completion, Ending, EndingKind
from pulse_actors.dispatcher.workers.records import RegisteredWorker, WorkerFacts
from pulse_actors.dispatcher.writes import report_rows as results
from pulse_actors.dispatcher.writes.batcher import ROW_BYTES
from pulse_actors.dispatcher.writes.report_rows import MAX_ERROR_BYTES, PendingReport, clean, ending_of, split
from tests.support.store.recovery_kit import Wire

JOB = b"j" * 16


def reported(identity: str, *results: Result) -> PendingReport:
    worker = RegisteredWorker(WorkerFacts(identity, identity, identity.encode(), 1, 0, (), frozenset()), 1, Wire())
    return PendingReport(worker, 1, results, [one.pair for one in results])


@pytest.mark.parametrize(("outcome", "detail", "ending"), [
    ("error", "boom", (EndingKind.ERROR, "boom", None, None)),
    ("error", "", (EndingKind.ERROR, "no reason given", None, None)),
    ("discard", "why", (EndingKind.DISCARDED, "why", None, None)),
    ("discard", "", (EndingKind.DISCARDED, "no reason given", None, None)),
    ("retry", (7.5, "later"), (EndingKind.RETRY, "later", 7.5, None)),
    ("retry", (0.0, ""), (EndingKind.RETRY, "no reason given", 0.0, None)),
    ("snooze", 3.0, (EndingKind.SNOOZED, None, 3.0, None)),
    ("release", None, (EndingKind.RELEASED, None, None, None)),
    ("crash", ("died", -9), (EndingKind.CRASHED, "died", None, -9)),
    ("crash", ("died", None), (EndingKind.CRASHED, "died", None, None)),
    ("crash", ("died", 2**31), (EndingKind.CRASHED, "died", None, None)),
])  # fmt: skip
def test_each_outcome_has_its_ending(
    outcome: str, detail: object, ending: tuple[EndingKind, str | None, float | None, int | None]
) -> None:
    assert ending_of(msgspec.convert((JOB, 3, outcome, detail), Result), "w") == Ending(JOB, 3, "w", *ending)


def test_each_result_keeps_the_identity_of_the_worker_that_sent_it() -> None:
    other = b"o" * 16
    completions, endings = split(
        [
            reported("a", Result(JOB, 1, "ok"), Result(other, 2, "error", "x")),
            reported("b", Result(other, 3, "ok", "1"), Result(JOB, 1, "release")),
        ]
    )
    assert completions == [Completion(JOB, 1, "a", None), Completion(other, 3, "b", "1")]
    assert [(one.id, one.worker, one.kind) for one in endings] == [
        (other, "a", EndingKind.ERROR),
        (JOB, "b", EndingKind.RELEASED),
    ]


def test_what_a_result_tells_beside_its_outcome() -> None:
    """Progress that no heartbeat carried is kept; a handler that its deadline stopped has timed out."""
    told = {"progress": "0.5", "stopped": "timeout"}
    results = [
        msgspec.convert((JOB, 1, *rest, told), Result) for rest in (("ok", None), ("error", "x"), ("discard", "x"))
    ]
    assert split([reported("w", *results)]) == (
        [Completion(JOB, 1, "w", None, "0.5")],
        [
            Ending(JOB, 1, "w", EndingKind.TIMEOUT, "x", progress="0.5"),
            Ending(JOB, 1, "w", EndingKind.DISCARDED, "x", progress="0.5"),
        ],
    )


details = st.one_of(
    st.none(),
    st.text(max_size=20),
    st.floats(),
    st.integers(-(2**63), 2**64 - 1),
    st.tuples(
        st.one_of(st.floats(), st.text(max_size=5)),
        st.one_of(st.text(max_size=5), st.integers(-(2**40), 2**40), st.none()),
    ),
    st.lists(st.integers(-9, 9), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(-9, 9), max_size=2),
)


@pytest.mark.rest
@given(st.sampled_from(["ok", "error", "retry", "discard", "snooze", "release", "crash", "nonsense"]), details)
def test_whatever_passes_the_check_can_be_written(outcome: str, detail: object) -> None:
    """A result off the wire is refused by a ProtocolError, or becomes a success or an ending with sound values."""
    data = protocol.encode("report", 1, {"results": [[JOB, 1, outcome, detail]]})
    frame = protocol.FrameReader().feed(data)[0]
    try:
        report = protocol.decode_body(protocol.Report, frame)
        for result in report.results:
            protocol.check_result(result)
    except ProtocolError:
        return
    completions, endings = split([reported("w", *report.results)])
    assert len(completions) + len(endings) == 1
    for ending in endings:
        assert ending.delay_s is None or 0 <= ending.delay_s <= protocol.MAX_SECONDS
        assert ending.error is None or ending.error
        assert ending.exit_code is None or -(2**31) <= ending.exit_code < 2**31
        assert ending.kind in {EndingKind.SNOOZED, EndingKind.RELEASED} or ending.error


@given(st.text(st.characters(exclude_categories=()), max_size=200))
def test_cleaned_text_can_be_stored(text: str) -> None:
    """The result is UTF-8 without NUL and surrogates, not empty, and unchanged where it was so already."""
    cleaned = clean(text)
    assert cleaned
    assert "\0" not in cleaned
    cleaned.encode()
    if text and "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text):
        assert cleaned == text


@pytest.mark.parametrize("char", ["a", "é", "\u20ac", "\U0001f600", "\0"])
def test_cleaned_text_is_cut_to_64_kib(char: str) -> None:
    """In bytes, never within a character."""
    cleaned = clean(char * 100_000)
    assert MAX_ERROR_BYTES - 9 < len(cleaned.encode()) <= MAX_ERROR_BYTES
    first, note, last = cleaned.split("\n")
    assert set(first) == set(last) == {"\N{REPLACEMENT CHARACTER}" if char == "\0" else char}
    assert note.endswith(" bytes left out …")


def test_what_was_told_beside_a_failure() -> None:
    """Where it hung, its usage, and the limit it had passed; only of errors."""
    told = {"stopped": "stalled", "stack": "there\0", "cpu_s": 1.5, "peak_rss_bytes": 7}
    ending = ending_of(msgspec.convert((JOB, 1, "error", "x", told), Result), "w")
    assert (ending.kind, ending.stack) == (EndingKind.STALLED, "there\N{REPLACEMENT CHARACTER}")
    assert (ending.cpu_s, ending.peak_rss_bytes) == (1.5, 7)
    assert ending_of(msgspec.convert((JOB, 1, "error", "x", {"stopped": "canceled"}), Result), "w").kind == "error"
    assert ending_of(msgspec.convert((JOB, 1, "retry", (1.0, "x"), told), Result), "w").kind == "retry"


@pytest.mark.parametrize(("code", "kept"), [(2**31 - 1, True), (-(2**31) + 1, True), (2**31, False), (-(2**31), False)])
def test_an_exit_code_that_no_column_holds_is_left_out(code: int, kept: bool) -> None:
    ending = ending_of(msgspec.convert((JOB, 1, "crash", ("died", code)), Result), "w")
    assert ending.exit_code == (code if kept else None)


def test_a_result_that_is_too_large_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "MAX_RESULT_BYTES", 5)
    fits, large = Result(JOB, 1, "ok", '"abc"'), Result(JOB, 2, "ok", '"abcd"')
    error = "result is too large: 6 bytes; at most 5 are stored"
    assert split([reported("w", fits, large)]) == (
        [Completion(JOB, 1, "w", '"abc"')],
        [Ending(JOB, 2, "w", EndingKind.ERROR, error)],
    )


def test_a_progress_that_prints_too_long_is_left_out() -> None:
    digits = "1e131071, " * (CLAIM_MAX_BYTES // 131_072 + 1)
    huge, fits = (ResultExtra(progress=f"[{text}1]") for text in (digits, "1e131071, "))
    some = (Result(JOB, 1, "ok", "1", huge), Result(JOB, 2, "error", "no", huge), Result(JOB, 3, "error", "no", fits))
    (done,), endings = split([reported("w", *some, Result(JOB, 4, "error", "no", ResultExtra()))])
    assert [done.progress, *(one.progress for one in endings)] == [None, None, fits.progress, None]


def test_long_texts_weigh_as_many_rows_as_they_have_pages() -> None:
    long, short = Result(JOB, 1, "ok", "x" * 2 * ROW_BYTES), Result(JOB, 1, "snooze", 3.0)
    assert results.weight_of(reported("w", long, short)) == 4
    page = "x" * ROW_BYTES
    others = Result(JOB, 1, "retry", (3.0, page)), Result(JOB, 1, "error", "", ResultExtra(progress=page, stack=page))
    assert [results.weight_of(reported("w", one)) for one in others] == [2, 3]
    assert results.weight_of(results.Obituary([Ending(JOB, 1, "w", EndingKind.RELEASED)] * 3)) == 3
