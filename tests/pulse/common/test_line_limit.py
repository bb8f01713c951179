"""A limited log: whole on a normal day, a count of what is missing on a bad one."""

from __future__ import annotations

from pulse.common.line_limit import LineLimit


def test_a_period_has_so_many_lines_and_counts_the_others() -> None:
    limit = LineLimit(3, 10.0)
    assert [limit.take(2, 0.0), limit.take(2, 9.9), limit.take(2, 9.9)] == [2, 1, 0]
    assert (limit.settle(), limit.settle()) == (3, 0)


def test_the_next_period_begins_with_its_first_line() -> None:
    limit = LineLimit(1, 10.0)
    assert [limit.take(1, 0.0), limit.take(1, 25.0), limit.take(1, 34.9), limit.take(1, 35.0)] == [1, 1, 0, 1]
