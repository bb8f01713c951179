"""The places of jobs in lists, and how walks become one list; no database."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from pulse.store.reading.list_position import (
    FIRST,
    LAST,
    TIMED_END,
    ListPosition,
    ListWalk,
    first_id,
    hungriest,
    is_timed,
    merged,
    place_of,
    reached,
)

MS = st.integers(min_value=0, max_value=3)
TAILS = st.binary(min_size=9, max_size=9)
TIMED = st.builds(lambda ms, tail: ms.to_bytes(6) + b"\x71" + tail, MS, TAILS)
OTHER = st.binary(min_size=16, max_size=16).filter(lambda one: not is_timed(one))
PLACES = st.one_of(
    TIMED.map(lambda one: place_of(one, 99)),
    st.builds(ListPosition, st.integers(min_value=-5, max_value=4005), OTHER),
    st.sampled_from([FIRST, LAST]),
)


@given(TIMED, PLACES)
def test_ids_are_cut_where_places_are(identity: bytes, cut: ListPosition) -> None:
    """A timed job is at a place or behind it exactly where its id is no less than the place's first id."""
    assert (place_of(identity, 7) >= cut) == (identity >= min(first_id(cut), TIMED_END))


@given(PLACES)
def test_nothing_lies_between_a_place_and_the_next(place: ListPosition) -> None:
    following = place.following()
    assert following > place
    assert int.from_bytes(following.id) == (int.from_bytes(place.id) + 1) % (1 << 128)


@given(st.lists(st.tuples(PLACES, st.integers(0, 2)), unique_by=lambda pair: pair[0]), st.booleans(), st.integers(1, 5))
def test_walks_become_one_list(pairs: list[tuple[ListPosition, int]], oldest: bool, limit: int) -> None:
    """For any division into walks, and any progress of each, the list has all jobs in order, each once."""
    walks = [ListWalk(str(number)) for number in range(3)]
    left = [
        deque(sorted((place for place, number in pairs if number == walk), reverse=not oldest)) for walk in range(3)
    ]
    got: list[ListPosition] = []
    while True:
        got += merged(walks, limit, oldest=oldest)
        hungry = hungriest(walks, oldest=oldest)
        if hungry is None:
            if not any(walk.found for walk in walks):
                break
            continue
        until = reached(walks, oldest=oldest)
        beyond = [place for rest in left for place in rest]
        assert until is None or all((until < place) if oldest else (until > place) for place in beyond)
        rest = left[int(hungry.kind)]
        one = rest.popleft() if rest else None
        hungry.took([one] if one else [], one)
    assert got == sorted((place for place, _ in pairs), reverse=not oldest)


def test_how_far_all_have_come() -> None:
    """Up to the place of the walk that is least far; finished walks do not count."""
    near, far = ListPosition(5, bytes(16)), ListPosition(9, bytes(16))
    one, other = ListWalk("one"), ListWalk("other")
    assert reached([one, other], oldest=True) is None
    one.took([], near)
    other.took([], far)
    assert (reached([one, other], oldest=True), reached([one, other], oldest=False)) == (near, far)
    one.took([], None)
    assert (reached([one, other], oldest=True), reached([one, other], oldest=False)) == (far, far)
    other.took([], None)
    assert (reached([one, other], oldest=True), reached([one, other], oldest=False)) == (LAST, FIRST)
