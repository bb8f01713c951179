"""Work that is told to other hosts and heard from them; and old jobs that are walked, or leapt over."""

from __future__ import annotations

from typing import Final

from tests.mutants.code import Guarded

_NEWS: Final = "store/test_news.py::"
_TURNS: Final = "store/test_actor_turns.py::"
_WALK: Final = "unit/test_retention_walk.py::"
_YOUNG: Final = _WALK + "test_what_is_too_young_is_leapt_over"

NEWS: Final = Guarded(
    "pulse_actors.dispatcher.claims.cross_host",
    {
        _NEWS + "test_it_is_told_once_in_a_while": [
            ("CrossHostHints.run", "await anyio.sleep(PAUSE_S)", "pass"),
        ],
        _NEWS + "test_what_is_heard": [
            ("CrossHostHints.heard", "sender == self._name or ", ""),
            ("CrossHostHints.heard", " or now_s < self._next_s", ""),
            ("CrossHostHints.heard", "now_s < self._next_s", "now_s <= self._next_s"),
        ],
    },
    is_part=True,
)

LISTENING: Final = Guarded(
    "pulse_actors.runtime.pg_listen",
    {
        _NEWS + "test_listening_begins_anew": [("listen", "began()", "pass")],
        _NEWS + "test_a_connection_that_is_cut_before_it_listens": [
            ("listen", "except FAILURES as error", "except (asyncio.TimeoutError, OSError) as error"),
        ],
    },
    is_part=True,
)

NUDGES: Final = Guarded(
    "pulse_actors.runtime.actor",
    {
        "unit/test_hints.py::test_what_anybody_may_say_is_bounded": [
            ("Runtime.nudge", "len(self._inbox) < MOST_NUDGES and ", ""),
            ("Runtime.nudge", " and hint not in self._inbox", ""),
        ],
    },
    is_part=True,
)

PAUSE: Final = Guarded(
    "pulse_actors.pause",
    {
        _TURNS + "test_what_was_told_while_nobody_listened_is_looked_for": [
            ("Pause.turn", "any(told.event == HintEvent.LISTENING for told in turn.inbox)", "False"),
            ("Pause.turn", "self._has_missed |= ", "self._has_missed = "),
            ("Pause.turn", "self._has_missed = False", "pass"),
        ],
        _TURNS + "test_what_others_tell_of_work_is_passed_on": [
            ("Pause.turn", " if told.event == HintEvent.WORK", ""),
            ("Pause.turn", "work and len(work) == len(turn.inbox)", "len(work) == len(turn.inbox)"),
            ("Pause.turn", " and len(work) == len(turn.inbox)", ""),
            ("Pause.turn", " and left_s > 0", ""),
            ("Pause.turn", "self._look_s = turn.now_s + next_s", "pass"),
        ],
        _TURNS + "test_the_gate_is_told_when_it_changes": [
            ("Pause._news", "if gate != self._gate:", "if True:"),
            ("Pause._news", "if gate != self._gate:", "if False:"),
        ],
        _TURNS + "test_policies_are_told_when_they_change": [
            ("Pause._news", "if policies != self._policies:", "if True:"),
            ("Pause._news", "if policies != self._policies:", "if False:"),
        ],
        "store/test_operators.py::test_the_pause_actor_clears_and_tells": [
            ("Pause.turn", "REFRESH_S if ends_s is None else ", ""),
            ("Pause.turn", "if ends_s is None else", "if True else"),
        ],
    },
    is_part=True,
)

RETENTION: Final = Guarded(
    "pulse_actors.watchdog.retention",
    {
        _YOUNG: [
            ("Walk.took", "step.last is not None and self._is_young(step.last, wall_s)", "False"),
            ("Walk.took", "self._low = self._low or going_on", "self._low = going_on"),
            ("Walk.took", "self._low = self._low or going_on\n", "pass\n"),
            ("Walk._is_young", "made_s is not None and ", ""),
            ("Walk._is_young", "wall_s - self._keep_s < made_s", "wall_s < made_s"),
            ("Walk._is_young", " <= wall_s + AHEAD_S", ""),
        ],
        _WALK + "test_what_people_see_of_it": [
            ("Progress.took", "not ends and ", ""),
            ("Progress.took", "self._begins or begins", "begins"),
        ],
        _WALK + "test_a_walk_knows_its_end": [
            ("Walk.took", "self.is_over = step.walked < window", "self.is_over = True"),
        ],
        _WALK + "test_it_goes_on_behind_what_it_has_seen": [
            ("Walk.took", "if self.is_over:", "if False:"),
        ],
        _WALK + "test_now_and_then_it_begins_at_the_start": [
            ("Walk.took", "FIRST if now_s - self._whole_s >= WHOLE_WALKS_S else ", ""),
        ],
        _WALK + "test_who_is_not_alone_waits": [("Walk.took", "if not step.mine:", "if False:")],
    },
    is_part=True,
)
