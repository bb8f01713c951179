"""Where retention goes on, and how soon."""

from __future__ import annotations

import time
import uuid

import pytest

from pulse.common.ids import first_at, time_of, uuid7
from pulse.config import keeps
from pulse.store.rows import Forgotten
from pulse_actors.watchdog import retention
from pulse_actors.watchdog.retention import (
    AHEAD_S,
    FIRST,
    MAX_PAUSE_S,
    MIN_PAUSE_S,
    NOTE_S,
    OTHERS_S,
    WINDOW,
    Progress,
    Walk,
    after,
)

WALL_S = 1.8e9  # no id of these tests but the last ones' is of version 7


def key(number: int) -> bytes:
    return number.to_bytes(16)


def full(gone: int, last: int, first_left: int | None = None) -> Forgotten:
    return Forgotten(True, WINDOW, gone, key(last), None if first_left is None else key(first_left))


def end(gone: int = 0, last: int | None = None, first_left: int | None = None) -> Forgotten:
    return Forgotten(True, 5, gone, *(None if one is None else key(one) for one in (last, first_left)))


def test_it_goes_on_behind_what_it_has_seen() -> None:
    walk = Walk(60.0)
    assert walk.at == FIRST
    walk.took(full(WINDOW, 100), 0.0, 0.0, WALL_S)
    assert (walk.at, walk.gone) == (key(101), WINDOW)
    walk.took(full(7, 200, 150), 0.0, 1.0, WALL_S)
    assert walk.at == key(201)
    walk.took(end(1, 300, 250), 0.0, 2.0, WALL_S)
    assert (walk.at, walk.gone) == (key(150), 0)
    walk.took(end(0, 300, 260), 0.0, 3.0, WALL_S)
    assert walk.at == key(260)


def test_an_empty_rest_is_not_walked_again() -> None:
    """Where nothing stayed, the next walk begins behind it: its deleted rows may still cost time."""
    walk = Walk(60.0)
    walk.took(end(5, 300), 0.0, 0.0, WALL_S)
    assert walk.at == key(301)
    walk.took(end(), 0.0, 1.0, WALL_S)
    assert walk.at == key(301)


def test_now_and_then_it_begins_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "WHOLE_WALKS_S", 100.0)
    walk = Walk(60.0)
    walk.took(end(0, 300, 200), 0.0, 0.0, WALL_S)
    walk.took(end(0, 300, 200), 0.0, 99.0, WALL_S)
    assert walk.at == key(200)
    walk.took(end(0, 300, 200), 0.0, 100.0, WALL_S)
    assert walk.at == FIRST
    walk.took(end(0, 300, 200), 0.0, 150.0, WALL_S)
    walk.took(end(0, 300, 200), 0.0, 249.0, WALL_S)
    assert walk.at == key(200)


def test_who_is_not_alone_waits() -> None:
    walk = Walk(60.0)
    walk.took(full(0, 100, 50), 0.0, 0.0, WALL_S)
    assert walk.took(Forgotten(False, 0, 0, None, None), 0.0, 1.0, WALL_S) == OTHERS_S
    assert walk.at == FIRST


@pytest.mark.parametrize(
    ("keep_s", "pause_s"), [(0.0, MIN_PAUSE_S), (60.0, MIN_PAUSE_S), (3600.0, 36.0), (7 * 86400.0, MAX_PAUSE_S)]
)
def test_a_walk_is_made_as_often_as_it_has_something_to_do(keep_s: float, pause_s: float) -> None:
    assert Walk(keep_s).took(end(), 0.0, 0.0, WALL_S) == pause_s


def test_it_takes_a_share_of_the_time() -> None:
    """A greater one while most jobs that it meets must go; and it never waits for long between two windows."""
    walk = Walk(60.0)
    assert walk.took(full(WINDOW // 2 - 1, 9), 0.01, 0.0, WALL_S) == pytest.approx(0.09)
    assert walk.took(full(WINDOW // 2, 9), 0.03, 0.0, WALL_S) == pytest.approx(0.07)
    assert walk.took(full(0, 9), 100.0, 0.0, WALL_S) == 1.0


def test_the_id_after_another() -> None:
    assert after(key(255)) == key(256)
    assert after(b"\xff" * 16) == FIRST
    assert keeps(None) == (7 * 86400.0, 30 * 86400.0)
    assert keeps(0.0) == (0.0, 30 * 86400.0)
    assert keeps(1e7) == (1e7, 1e7)


def made(ago_s: float, rest: int = 0) -> bytes:
    return first_at(WALL_S - ago_s)[:6] + (7 << 76 | rest).to_bytes(10)


def window(last: bytes, *, walked: int = WINDOW, first_left: bytes | None = None) -> Forgotten:
    return Forgotten(True, walked, 0, last, first_left)


def test_what_is_too_young_is_leapt_over() -> None:
    """Behind it are ids of other kinds and of fast clocks; the next walk begins at the first that stayed, or there."""
    walk = Walk(60.0)
    for last in (made(61.0), made(-AHEAD_S - 1.0), key(7), bytes([*made(10.0)[:6], 0x40, *bytes(9)])):
        walk.took(window(last), 0.0, 0.0, WALL_S)
        assert walk.at == after(last)
    behind = first_at(WALL_S + AHEAD_S)
    for age_s in (59.0, 0.0, 1.0 - AHEAD_S):
        for first_left, low in ((made(100.0), made(100.0)), (None, after(made(age_s)))):
            walk = Walk(60.0)
            walk.took(window(made(age_s), first_left=first_left), 0.0, 0.0, WALL_S)
            assert walk.at == behind
            walk.took(window(b"\xff" * 16, walked=5), 0.0, 0.0, WALL_S)
            assert walk.at == low


def test_the_time_in_an_id() -> None:
    now_s = time.time()
    identity = uuid7().bytes
    assert time_of(identity) == pytest.approx(now_s, abs=5.0)
    assert first_at(now_s - 0.001) < identity < first_at(now_s + 5.0)
    assert time_of(uuid.uuid4().bytes) is None


def test_what_people_see_of_it() -> None:
    progress = Progress()
    assert progress.took(full(3, 1), 10.0, begins=True, ends=False) == (WINDOW, 3, True)
    assert progress.took(full(4, 1), 10.0 + NOTE_S / 2, begins=False, ends=False) is None
    assert progress.took(full(5, 1), 10.0 + NOTE_S, begins=False, ends=False) == (2 * WINDOW, 9, False)
    assert progress.took(full(1, 1), 10.1 + NOTE_S, begins=True, ends=False) is None
    assert progress.took(end(1), 10.2 + NOTE_S, begins=False, ends=True) == (WINDOW + 5, 2, True)


def test_a_walk_knows_its_end() -> None:
    walk, seen = Walk(60.0), list[bool]()
    seen.append(walk.is_over)
    for step in (full(0, 100, 7), end(0, 200)):
        walk.took(step, 0.0, 0.0, WALL_S)
        seen.append(walk.is_over)
    assert seen == [True, False, True]
