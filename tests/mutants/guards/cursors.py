"""Where claims go on, and when they begin at the start again."""

from __future__ import annotations

from typing import Final

from tests.mutants.code import Guarded

_CURSORS: Final = "unit/test_cursors.py::"

CURSORS: Final = Guarded(
    "pulse_actors.dispatcher.claims.cursors",
    {
        _CURSORS + "test_a_claim_goes_on_where_the_last_one_ended": [
            ("Cursors.claimed", "before is None or ", ""),
            ("Cursors.claimed", "before is None or before < position", "True"),
            ("Cursors.claimed", "elif more:", "else:"),
        ],
        _CURSORS + "test_levels_are_served_by_priority_then_in_the_order_of_the_topics": [
            ("Cursors.starts", "found.sort(key=_PRIORITY, reverse=True)", "pass"),
            ("Cursors.starts", "key=_PRIORITY, reverse=True", "key=_PRIORITY"),
        ],
        _CURSORS + "test_news_of_a_known_level_change_nothing": [
            ("Cursors.learn", "if level not in self._positions:", "if True:"),
            ("Cursors.learn", "min(position, due_s - BACK_S)", "due_s - BACK_S"),
            ("Cursors.learn", "if due_s is not None:", "if True:"),
            ("Cursors.learn", "None if due_s is None else ", ""),
        ],
        _CURSORS + "test_a_level_that_is_known_without_a_cursor": [
            ("Cursors.learn", "if position is not None:", "if True:"),
        ],
        _CURSORS + "test_work_that_was_due_long_ago": [
            ("Cursors.claimed", " or before < position", ""),
            ("Cursors.learn", "if position is not None:", "if False:"),
            ("Cursors.learn", "None if due_s is None else due_s - BACK_S", "None"),
        ],
        _CURSORS + "test_the_first_claim_is_a_full_one": [
            ("Cursors.is_full_due", "self._is_asked_for or self._is_polling(now_s)", "False"),
        ],
        _CURSORS + "test_full_claims_take_a_share_of_the_time": [
            ("Cursors.is_full_due", "now_s >= self._next_full_s and ", ""),
            ("Cursors._is_asked_for", "self._wanted or ", ""),
            ("Cursors._is_asked_for", "self._recent or ", ""),
            ("Cursors.want_full", "self._wanted = True", "pass"),
            ("Cursors.want_recent", "self._recent = True", "pass"),
            ("Cursors._dear", "self._full_took_s > CHEAP_S", "self._full_took_s >= CHEAP_S"),
            ("Cursors.full_begins", "self._wanted = self._recent = False", "self._recent = False"),
            ("Cursors.full_begins", "self._wanted = self._recent = False", "self._wanted = False"),
        ],
        _CURSORS + "test_topics_in_which_nothing_waits": [
            ("Cursors.is_empty", "now_s - self._empty_s", "0.0 - self._empty_s"),
            ("Cursors.is_empty", 'now_s - self._empty_s.get(frozenset(topics), float("-inf"))', "now_s - 100.0"),
            ("Cursors.emptied", "self._empty_s[frozenset(topics)] = self._began_s", "pass"),
            ("Cursors.begin", "self._began_s = now_s", "pass"),
        ],
        _CURSORS + "test_work_may_be_in_topics_again": [
            ("Cursors.is_empty", "not any(topic in busy for busy in self._busy.values() for topic in topics)", "True"),
            ("Cursors.full_begins", "self._empty_s.clear()", "pass"),
            ("Cursors.window_begins", "self._empty_s.clear()", "pass"),
        ],
        _CURSORS + "test_news_during_a_claim_that_found_all": [
            ("Cursors.is_empty", "self._recent or ", ""),
            ("Cursors.is_empty", "self._wanted or ", ""),
        ],
        _CURSORS + "test_a_dear_full_claim_is_rare": [
            ("Cursors._next_full_s", "if self._dear:", "if False:"),
            ("Cursors._next_full_s", "if not self._wanted:", "if True:"),
            ("Cursors._next_full_s", "if not self._wanted:", "if False:"),
            ("Cursors._next_full_s", "if not self._wanted:", "if not self._wanted and not self._recent:"),
        ],
        _CURSORS + "test_a_claim_that_was_slow_once": [
            (
                "Cursors._next_full_s",
                "min(self._full_s - self._dear_since_s, UNWANTED_PAUSE_MAX_S)",
                "UNWANTED_PAUSE_MAX_S",
            ),
            ("Cursors._next_full_s", "max(most_s, min(", "max(0.0, min("),
            ("Cursors.full_done", "min(self._dear_since_s, began_s) if self._dear else", "began_s if self._dear else"),
            ("Cursors.full_done", ' if self._dear else float("inf")', ""),
        ],
        _CURSORS + "test_windows_take_the_place_of_dear_full_claims": [
            ("Cursors.window_due", "if not self._dear:", "if False:"),
            ("Cursors.window_due", "if now_s >= next_s", "if True"),
            ("Cursors.window_due", "max(due, default=None)", "min(due, default=None)"),
            ("Cursors.window_done", "range(index)", "range(0)"),
            ("Cursors.pause_s", "if self._dear:", "if False:"),
            ("Cursors.pause_s", "self._next_recent_s if self._recent else next_s", "self._next_recent_s"),
        ],
        _CURSORS + "test_windows_take_a_share_of_the_time": [
            ("Cursors.window_done", ", rest_s(took_s, share, most_s))", ", 0.0)"),
            ("Cursors.window_done", "rest_s(took_s, share, most_s)", 'rest_s(took_s, share, float("inf"))'),
            ("Cursors.window_done", "if took_s > CHEAP_S:", "if True:"),
            ("Cursors.window_done", "if took_s > CHEAP_S:", "if False:"),
        ],
        _CURSORS + "test_news_are_looked_for_in_the_shortest_window": [
            ("Cursors.window_due", "self._recent and ", ""),
            ("Cursors.window_due", " and now_s >= self._next_recent_s", ""),
            ("Cursors.window_begins", "self._recent = False", "pass"),
            ("Cursors.pause_s", "self._next_recent_s if self._recent else next_s", "next_s"),
        ],
        _CURSORS + "test_what_a_window_looks_at": [
            ("Cursors.window", "None if back_s <= RECENT_S else wall_s - back_s", "None"),
            ("Cursors.window", "None if back_s <= RECENT_S else wall_s - back_s", "wall_s - back_s"),
            ("Cursors.window", "recent_s if position is None else position - back_s", "recent_s"),
            ("Cursors.window", "else position - back_s", "else position"),
        ],
        _CURSORS + "test_a_window_of_many_topics": [
            ("Cursors.window", "len(topics) > FEW_TOPICS", "len(topics) >= FEW_TOPICS"),
            ("Cursors.window", "len(topics) > FEW_TOPICS", "False"),
        ],
        _CURSORS + "test_a_full_claim_is_made_at_every_poll": [
            ("Cursors.is_full_due", " or self._is_polling(now_s)", ""),
            ("Cursors._is_polling", "now_s - self._full_s >= self._poll_s", "True"),
            ("Cursors.pause_s", "not self._is_asked_for", "False"),
        ],
        _CURSORS + "test_what_comes_up_during_a_full_claim": [
            (
                "Cursors.full_done",
                "self._full_s, self._full_took_s = ",
                "self._wanted = False\n        self._full_s, self._full_took_s = ",
            ),
        ],
        _CURSORS + "test_much_work_behind_a_cursor": [
            ("Cursors.claimed", "elif more:", "elif False:"),
            ("Cursors.claimed", "self._reached.setdefault(level, before)", "self._reached[level] = before"),
            ("Cursors._go_on", "if reached is not None:", "if False:"),
            ("Cursors._go_on", "max(reached, self._positions[level] or reached)", "reached"),
        ],
        _CURSORS + "test_news_while_a_claim_is_made": [
            ("Cursors.begin", "self._first_due.clear()", "pass"),
            ("Cursors.claimed", "min(due_at, self._first_due.get(level, due_at))", "due_at"),
            ("Cursors.learn", "min(self._first_due.get(level, due_s), due_s)", "due_s"),
            ("Cursors.learn", "if due_s is not None:", "if False:"),
        ],
        _CURSORS + "test_levels_are_bounded": [
            ("Cursors._add_level", "len(self._positions) >= MAX_LEVELS", "False"),
            ("Cursors._add_level", "len(self._positions) >= MAX_LEVELS", "len(self._positions) > MAX_LEVELS"),
            ("Cursors._add_level", "next(iter(self._positions))", "max(self._positions)"),
            ("Cursors.claimed", "if level not in self._positions:", "if False:"),
        ],
        _CURSORS + "test_of_many_topics_only_those_with_work_are_named": [
            ("Cursors.starts", "if len(topics) <= FEW_TOPICS:", "if True:"),
            ("Cursors.starts", "if len(topics) <= FEW_TOPICS:", "if False:"),
            ("Cursors.starts", "            if topic in served\n", ""),
            ("Cursors.starts", "sorted(self._busy, reverse=True)", "sorted(self._busy)"),
            ("Cursors.exhausted", "if topics.get(topic, version + 1) <= version:", "if topic in topics:"),
            ("Cursors.exhausted", "one.topic if isinstance(one, LevelStart) else one", "one"),
            ("Cursors.exhausted", "(one.priority,) if isinstance(one, LevelStart) else ", ""),
            ("Cursors.exhausted", "if topics.get(topic, version + 1) <= version:", "if False:"),
            ("Cursors.learn", "self._version += 1", "pass"),
            ("Cursors.learn", "self._note(level)", "pass"),
        ],
        _CURSORS + "test_of_many_topics_each_has_its_turn": [
            ("Cursors.claimed", "busy[level.topic] = busy.pop(level.topic, 0)", "busy.setdefault(level.topic, 0)"),
        ],
        _CURSORS + "test_a_claim_names_so_many_levels_at_most": [
            ("Cursors.starts", "itertools.islice(busy, LEVELS_MAX)", "busy"),
        ],
        _CURSORS + "test_where_many_topics_age_the_oldest_come_along": [
            ("Cursors.starts", "if not ageing_s:", "if True:"),
            ("Cursors.starts", "if not ageing_s:", "if False:"),
            ("Cursors.starts.rank", "age_s is None or ", ""),
            ("Cursors.starts.rank", " or start.from_s is None", ""),
            ("Cursors.starts.rank", " / age_s", ""),
            ("Cursors.starts", "nlargest(LEVELS_MAX", "nlargest(100"),
        ],
        _CURSORS + "test_a_full_claim_that_found_all": [
            ("Cursors.exhausted", "topics.get(topic, version + 1)", "topics.get(topic, 0)"),
            (
                "Cursors.exhausted",
                "if isinstance(one, LevelStart) else self._busy",
                "if isinstance(one, LevelStart) else (0,)",
            ),
        ],
        _CURSORS + "test_work_anywhere_is_work_at_all_known_levels": [
            ("Cursors.want_full", "self._note(level)", "pass"),
            ("Cursors.want_full", "self._version += 1", "pass"),
        ],
        _CURSORS + "test_what_a_survey_finds": [
            ("Cursors.found", "if self._positions[level] is None:", "if False:"),
            ("Cursors.found", "if self._positions[level] is None:", "if True:"),
            ("Cursors.found", "self.learn(level, due_s)", "self.learn(level)"),
        ],
        _CURSORS + "test_a_survey_goes_on_until_its_end": [
            ("Cursors._is_asked_for", " or self._survey is not None", ""),
            ("Cursors.full_begins", "if self._survey is not None:", "if True:"),
            ("Cursors.full_begins", "if self._survey is not None:", "if False:"),
            ("Cursors.full_begins", "self._wanted or self._recent", "self._wanted"),
            ("Cursors.full_begins", "self._wanted or self._recent", "self._recent"),
            ("Cursors.survey_from", "self._survey or FIRST", "FIRST"),
            ("Cursors.surveyed", "len(found) == SURVEY", "found"),
            ("Cursors.surveyed", "len(found) == SURVEY", "False"),
            ("Cursors.surveyed", "elif self._survey_again:", "elif False:"),
            ("Cursors.surveyed", "elif self._survey_again:", "elif True:"),
            ("Cursors.surveyed", "self._survey_again = FIRST, False", "self._survey_again = FIRST, True"),
        ],
        _CURSORS + "test_what_is_forgotten_is_forgotten_everywhere": [
            ("Cursors._add_level", "self._busy.get(oldest.priority, {}).pop(oldest.topic, None)", "pass"),
            ("Cursors._add_level", "self._priorities[oldest.topic].remove(oldest.priority)", "pass"),
            ("Cursors._add_level", "if not self._priorities[oldest.topic]:", "if False:"),
            ("Cursors._add_level", "if not self._priorities[oldest.topic]:", "if True:"),
        ],
        _CURSORS + "test_a_known_level_needs_no_room": [
            ("Cursors.claimed", "if level not in self._positions:", "if True:"),
        ],
    },
)
