"""Where claims go on, and when they begin at the start again."""

from __future__ import annotations

from typing import Final

from tests.mutants.code import Guarded

_CURSORS: Final = "unit/test_cursors.py::"

CURSORS: Final = Guarded(
    "pulse_actors.dispatcher.cursors",
    {
        _CURSORS + "test_a_claim_goes_on_where_the_last_one_ended": [
            ("Cursors.starts", "            if level.topic in places\n", ""),
            ("Cursors.claimed", "before is None or ", ""),
            ("Cursors.claimed", " or before < position", ""),
            ("Cursors.claimed", "before is None or before < position", "True"),
        ],
        _CURSORS + "test_levels_are_served_by_priority_then_in_the_order_of_the_topics": [
            ("Cursors.starts", "(-one.priority, places[one.topic])", "places[one.topic]"),
            ("Cursors.starts", "(-one.priority, places[one.topic])", "-one.priority"),
        ],
        _CURSORS + "test_news_of_a_known_level_change_nothing": [
            ("Cursors.learn", "if level not in self._known:", "if True:"),
            ("Cursors.learn", "if due_s is not None and ", "if "),
            ("Cursors.learn", "min(position, due_s - BACK_S)", "due_s - BACK_S"),
            ("Cursors.learn", "None if due_s is None else ", ""),
        ],
        _CURSORS + "test_a_level_that_is_known_without_a_cursor": [
            ("Cursors.learn", " and position is not None", ""),
        ],
        _CURSORS + "test_work_that_was_due_long_ago": [
            ("Cursors.learn", "due_s is not None and position is not None", "False"),
            ("Cursors.learn", "None if due_s is None else due_s - BACK_S", "None"),
        ],
        _CURSORS + "test_the_first_claim_is_a_full_one": [
            ("Cursors.is_full_due", "self._wanted or now_s - self._full_s >= self._poll_s", "False"),
        ],
        _CURSORS + "test_full_claims_take_a_share_of_the_time": [
            ("Cursors.is_full_due", " and now_s >= self._next_full_s", ""),
            ("Cursors.full_done", "took_s <= CHEAP_S", "True"),
            ("Cursors.pause_s", "0.0 if self._wanted else ", ""),
            ("Cursors.pause_s", ", self._next_full_s - now_s", ""),
        ],
        _CURSORS + "test_a_full_claim_is_made_at_every_poll": [
            ("Cursors.is_full_due", " or now_s - self._full_s >= self._poll_s", ""),
            ("Cursors.is_full_due", "now_s - self._full_s >= self._poll_s", "True"),
            ("Cursors.full_begins", "self._wanted = False", "pass"),
            ("Cursors.pause_s", "0.0 if self._wanted else self._full_s + self._poll_s - now_s", "0.0"),
        ],
        _CURSORS + "test_what_comes_up_during_a_full_claim": [
            ("Cursors.is_full_due", "self._wanted or ", ""),
            ("Cursors.want_full", "self._wanted = True", "pass"),
        ],
        _CURSORS + "test_levels_are_bounded": [
            ("Cursors._make_room", "len(self._known) >= KNOWN_MAX", "False"),
            ("Cursors._make_room", "len(self._known) >= KNOWN_MAX", "len(self._known) > KNOWN_MAX"),
            ("Cursors._make_room", "next(iter(self._known))", "max(self._known)"),
            ("Cursors.claimed", "if level not in self._known:", "if False:"),
        ],
        _CURSORS + "test_a_known_level_needs_no_room": [
            ("Cursors.claimed", "if level not in self._known:", "if True:"),
        ],
    },
)
