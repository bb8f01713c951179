"""Answers are cut to one frame: fewer rows, fewer texts, fewer attempts, in this order."""

from __future__ import annotations

from typing import Final

import pytest

from pulse import protocol
from pulse.store.reading import page_size
from pulse.store.reading.page_size import fit_job, fit_page, fit_row, text_bytes

ID: Final = b"i" * 16


def row(**columns: object) -> page_size.Row:
    return {"id": ID, "args": "", "result": None, "progress": None, "last_error": None, **columns}


def test_the_longest_texts_are_left_out() -> None:
    """Up to the very limit nothing is touched; else the longest go first, each named; bytes count, not characters."""
    given = row(args="x" * 60, result="y" * 90, last_error="z" * 50)
    assert fit_row(given, 110) == {**given, "result": None, "omitted": ["result"]}
    assert fit_row(given, 109) == {**given, "result": None, "args": None, "omitted": ["result", "args"]}
    given = row(args="x" * 60, result="y" * 40)
    assert fit_row(given, 100) == given
    assert text_bytes(row(args="\N{PILE OF POO}")) == 4
    assert fit_row(row(args="\N{PILE OF POO}" * 30), 100)["omitted"] == ["args"]


@pytest.mark.parametrize("is_long", [False, True])
def test_the_oldest_attempts_are_left_out(is_long: bool) -> None:
    entries: list[page_size.Row] = [{"attempt": number, "error": "e" * 1000} for number in range(10)]
    fitted = fit_job(row(args="x" * 9999 if is_long else ""), entries, 5000)
    assert fitted["history"] == entries[-3:]
    assert fitted["omitted"] == (["args", "history"] if is_long else ["history"])


def test_a_page_ends_where_its_bytes_do() -> None:
    """The page has the rows that fit; one that does not fit alone makes a page of its own."""
    rows = [row(args="x" * 40), row(args="x" * 60), row(args="x")]
    assert fit_page(rows, 100) == rows[:2]
    assert fit_page(rows, 101) == rows
    assert fit_page(rows[1:], 10) == rows[1:2]
    assert fit_page([], 10) == []


def test_what_is_fitted_goes_into_a_frame() -> None:
    """The limits leave room for all that is around the texts: the longest of each kind is encoded within a frame."""
    times = dict.fromkeys(("started_at", "ended_at"), 1.7e9)
    nothing = {"error": None, "progress": None, "exit_code": -9}
    ended = {"job_id": ID, "attempt": 2**31 - 1, "worker": "w" * 120, "outcome": "lease_expired"}
    entry: page_size.Row = {**ended, **times, **nothing}
    entries: list[page_size.Row] = [entry] * 100_000
    job = fit_job(row(args="x" * (page_size.ROW_BYTES - 4_000_000)), entries)
    assert len(protocol.encode("ok", 1, {"job": job})) <= protocol.MAX_FRAME_BYTES
    page = fit_page([row(args="x" * 4096)] * 1000 + [row(args="x" * page_size.ROW_BYTES)])
    assert len(page) == 1000
    assert len(protocol.encode("ok", 1, {"jobs": page, "next": "n"})) <= protocol.MAX_FRAME_BYTES
    (alone,) = fit_page([row(args="x" * page_size.ROW_BYTES)] * 2)
    assert alone["args"] is not None
    assert len(protocol.encode("ok", 1, {"jobs": [alone], "next": "n"})) <= protocol.MAX_FRAME_BYTES
