"""What a page may leave open in a command's output, and what it may not."""

from __future__ import annotations

import pytest

from tests.docs.shown import Known, compare, plain, with_known

ID = "019dfc5a-7a1e-7c3b-9d52-3f6f2f0b7c11"
OTHER = "01a200f9-ad92-7667-80cb-5caecf959401"


@pytest.mark.parametrize(("shown", "said"), [
    ("done", "done"), ("done\n", "\x1b[32mdone\x1b[0m\r\n"), ("status  COMPLETED", "status     COMPLETED"),
    ("since 2030-01-31T12:00:00Z (12 min ago)", "since 2026-11-22T01:58:47Z (now)"), ("took 1.5 s", "took 20 ms"),
    ("by uid 1000 (ops)", "by uid 0 (root)"), ("worker 10415 of 2", "worker 987654 of 2"), ("a\n…\nz", "a\nb\nc\nz"),
    ("a\n…\nz", "a\nz"), ("a … z", "a b c z"),
])  # fmt: skip
def test_what_differs_from_run_to_run_may(shown: str, said: str) -> None:
    assert compare(shown, said, {})


@pytest.mark.parametrize(("shown", "said"), [
    ("done", "done\nand more"), ("done\nand more", "done"), ("tries 1 of 5", "tries 2 of 5"),
    ("took 1.5 s", "took long"), ("COMPLETED", "completed"), ("a … z", "a\nz"), (f"{ID} {ID}", f"{ID} {OTHER}"),
    ("pid 12 is pid 12", "pid 12 is pid 13"), ("", "Traceback"),
])  # fmt: skip
def test_the_rest_may_not(shown: str, said: str) -> None:
    assert not compare(shown, said, {})


def test_an_id_is_the_same_wherever_it_stands() -> None:
    known: Known = {}
    assert compare(f"{ID} pid 10415", f"{OTHER} pid 7", known)
    assert with_known(f"pulse ctl jobs get {ID} && kill -9 10415", known) == f"pulse ctl jobs get {OTHER} && kill -9 7"
    assert compare(ID, OTHER, known)
    assert not compare(ID, ID, known)


def test_nothing_is_learnt_from_what_differs() -> None:
    known: Known = {}
    assert not compare(f"{ID} done", f"{OTHER} broken", known)
    assert known == {}


def test_plain_is_what_a_person_reads() -> None:
    assert plain("1 of 2\r\x1b[K2 of 2\r\x1b[Kdone\r\n") == "done"
    assert plain("\x1b[1m a \x1b[0m \r\nb\r\n\r\n") == "a\nb"
