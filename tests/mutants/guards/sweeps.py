"""The guard of the sweeps, the watchdog that asks it, and who tells it what cannot be written."""

from __future__ import annotations

from typing import Final

from tests.mutants.code import Guarded

_SWEEPS: Final = "unit/test_sweeps.py::"
_TURNS: Final = "store/test_actor_turns.py::"
_WATCHDOG: Final = "store/test_watchdog_guards.py::"
_UNWRITTEN: Final = "store/test_unwritten.py::"

SWEEPS: Final = Guarded(
    "pulse_actors.watchdog.sweep_guard",
    {
        _SWEEPS + "test_sweeps_in_step_are_believed": [
            ("SweepGuard.doubt", "reason is not None", "True"),
            ("SweepGuard.doubt", "max(self._wait_until_s, reading.heard_s)", "self._wait_until_s"),
            ("SweepGuard.may_reap", "now_s > self._wait_until_s", "now_s >= self._wait_until_s"),
            ("SweepGuard.may_reap", "now_s > self._wait_until_s", "False"),
        ],
        _SWEEPS + "test_a_gap": [
            ("SweepGuard.doubt", "-self.step_s <= gap_s", "True"),
            ("SweepGuard.doubt", " <= self.gap_s", ""),
            ("SweepGuard.doubt", "-self.step_s <= gap_s", "0 <= -gap_s"),
            ("SweepGuard.doubt", "reason is not None", "False"),
            ("SweepGuard.doubt", "reading.heard_s + self.lease_s", "reading.heard_s"),
            ("SweepGuard.may_reap", "now_s > self._wait_until_s", "True"),
        ],
        _SWEEPS + "test_a_clock_that_was_set": [
            ("SweepGuard.doubt", "elif last is None:", "elif True:"),
            ("SweepGuard.doubt", "step_s > self.step_s", "False"),
            ("SweepGuard.doubt", "max(least_s - moved_s, moved_s - most_s)", "moved_s - most_s"),
            ("SweepGuard.doubt", "max(least_s - moved_s, moved_s - most_s)", "least_s - moved_s"),
            ("SweepGuard.__init__", "max(lease_s - BEATS * heartbeat_s, heartbeat_s) / 2", "heartbeat_s / 2"),
        ],
        _SWEEPS + "test_each_step_is_seen_once": [
            ("SweepGuard.doubt", "last, self._last = self._last, reading", "last = self._last = self._last or reading"),
        ],
        _SWEEPS + "test_a_slow_answer_is_no_step": [
            ("SweepGuard.doubt", "reading.asked_s - last.heard_s", "reading.heard_s - last.heard_s"),
            ("SweepGuard.doubt", "reading.heard_s - last.asked_s", "reading.asked_s - last.asked_s"),
        ],
        _SWEEPS + "test_short_leases": [
            ("SweepGuard.__init__", "min(sweep_s, self.gap_s / SWEEPS)", "sweep_s"),
        ],
        _SWEEPS + "test_long_leases": [
            ("SweepGuard.__init__", "min(sweep_s, self.gap_s / SWEEPS)", "self.gap_s / SWEEPS"),
            ("SweepGuard.__init__", "gap_s: Final = lease_s - BEATS * heartbeat_s", "gap_s: Final = SWEEPS * sweep_s"),
        ],
        _SWEEPS + "test_a_wait_that_somebody_else_began": [
            ("SweepGuard.doubt", "if wait_s > 0:", "if False:"),
            ("SweepGuard.doubt", "reading.heard_s + min(wait_s, self.lease_s)", "reading.heard_s"),
            (
                "SweepGuard.doubt",
                "max(self._wait_until_s, reading.heard_s + min(wait_s, self.lease_s))",
                "reading.heard_s + wait_s",
            ),
        ],
        _SWEEPS + "test_a_wait_is_no_longer_than_a_lease": [
            ("SweepGuard.doubt", "min(wait_s, self.lease_s)", "wait_s"),
        ],
        _SWEEPS + "test_no_wait_is_no_moment_of_waiting": [
            ("SweepGuard.doubt", "if wait_s > 0:", "if wait_s >= 0:"),
        ],
    },
)

WATCHDOG: Final = Guarded(
    "pulse_actors.watchdog.actor",
    {
        _TURNS + "test_after_a_gap_nobody_is_reaped": [
            ("Watchdog.turn", "not self._guard.may_reap(time.monotonic())", "False"),
        ],
        _TURNS + "test_a_lapsed_lease_is_ended_through_the_retry_path": [
            ("Watchdog.turn", "not self._guard.may_reap(time.monotonic())", "True"),
            ("Watchdog.turn", "if reaped:", "if False:"),
        ],
        _TURNS + "test_a_lease_that_has_not_lapsed_is_left_alone": [
            ("Watchdog.turn", "if reaped:", "if True:"),
        ],
        _TURNS + "test_more_than_one_statement_can_take": [
            ("Watchdog.turn", "len(lapsed) == SWEEP_LIMIT and bool(ended or in_hand)", "False"),
            ("Watchdog.turn", "bool(ended or in_hand)", "bool(in_hand)"),
        ],
        _TURNS + "test_a_long_sweep_is_cut_into_turns": [
            ("Watchdog.turn", "time.monotonic() - turn.now_s > TURN_S", "False"),
            ("Watchdog.turn", "0.0 if more else self._sweep_s", "self._sweep_s"),
        ],
        _TURNS + "test_what_a_living_process_of_this_host_holds_is_spared": [
            ("Watchdog.turn", " if one.worker not in in_hand", ""),
            ("Watchdog.turn", "bool(ended or in_hand)", "bool(ended)"),
            ("Watchdog.turn", ", spared=sorted(spared)", ""),
            ("Watchdog._in_hand", "self._sees_deaths and ", ""),
            ("Watchdog._in_hand", " and identities.is_in_hand(self._host, one)", ""),
            ("Watchdog._in_hand", "self._sees_deaths and", "False and"),
        ],
        _WATCHDOG + "test_the_dispatcher_is_told_whom_the_sweep_has_spared": [
            ("Watchdog.turn", "if spared:", "if False:"),
        ],
        _WATCHDOG + "test_a_dead_letter_wakes_nobody_later": [
            ("Watchdog.turn", ' if one.status != "DEAD_LETTERED"', ""),
        ],
        _WATCHDOG + "test_a_row_that_somebody_has_locked_is_left_to_the_next_sweep": [
            ("Watchdog.turn", "bool(ended or in_hand)", "True"),
            ("Watchdog.turn", "0.0 if more else self._sweep_s", "0.0 if lapsed else self._sweep_s"),
        ],
        _WATCHDOG + "test_a_sweep_that_waits_says_why": [
            ("Watchdog._begin", "doubt is not None", "False"),
        ],
        _WATCHDOG + "test_a_sweep_that_does_not_wait_says_nothing": [
            ("Watchdog._begin", "doubt is not None", "True"),
            ("Watchdog.turn", "if spared:", "if True:"),
        ],
        _WATCHDOG + "test_a_full_statement_that_was_the_last_one": [
            ("Watchdog.turn", "len(lapsed) == SWEEP_LIMIT and ", ""),
            ("Watchdog.turn", "while more:", "while True:"),
        ],
    },
)

UNWRITTEN: Final = Guarded(
    "pulse_actors.dispatcher.writes.unwritten",
    {
        _UNWRITTEN + "test_what_can_be_written_is_told_to_nobody": [
            ("UnwrittenLeases.look", "not reports and not self._doubted.is_set()", "False"),
        ],
        "store/test_refused.py::test_nobody_waits_for_a_refused_report": [
            ("UnwrittenLeases.look", " - self._registry.refused.keys()", ""),
            ("UnwrittenLeases.look", "await self._keep_refused()", "pass"),
        ],
        _UNWRITTEN + "test_a_row_that_is_locked_for_a_moment": [
            ("UnwrittenLeases._late", "DOUBTED_SHARE * self._lease_s", "0"),
            ("UnwrittenLeases._late", "one_s <= latest_s", "True"),
            ("UnwrittenLeases._failed", "if self._late(", "if any("),
        ],
        _UNWRITTEN + "test_what_stays_locked_is_told": [
            ("UnwrittenLeases.extend", "            self._failed(renewals, began_s)\n", ""),
            ("UnwrittenLeases._failed", "self._doubted.set()", "pass"),
            ("UnwrittenLeases._late", "DOUBTED_SHARE * self._lease_s", "2 * DOUBTED_SHARE * self._lease_s"),
            ("UnwrittenLeases._late", "one_s <= latest_s", "False"),
            ("UnwrittenLeases.look", "        self._doubted = anyio.Event()\n", ""),
            ("UnwrittenLeases.look", "await self._store.doubt_leases(self._lease_s)", "pass"),
            ("UnwrittenLeases.look", "doubt_leases(self._lease_s)", "doubt_leases(1.0)"),
            ("UnwrittenLeases.look", " and not self._doubted.is_set()", ""),
        ],
        _UNWRITTEN + "test_a_trigger_that_raises": [
            ("UnwrittenLeases.extend", "except Exception:", "except UnavailableError:"),
        ],
        _UNWRITTEN + "test_a_statement_that_takes_long": [
            ("UnwrittenLeases._failed", "(one.id, one.attempt), began_s)", "(one.id, one.attempt), time.monotonic())"),
        ],
        _UNWRITTEN + "test_what_was_extended_again": [
            ("UnwrittenLeases.extend", "self._beats_s.pop((one.id, one.attempt), None)", "pass"),
        ],
        _UNWRITTEN + "test_what_failed_long_ago": [
            ("UnwrittenLeases._failed", "began_s - self._failed_s > self._lease_s", "False"),
        ],
        _UNWRITTEN + "test_a_report_that_waits": [
            ("UnwrittenLeases.look", "not reports and not", "not"),
            ("UnwrittenLeases.look", "self._reports_s.get(pair, now_s)", "now_s"),
        ],
        _UNWRITTEN + "test_a_report_that_was_written": [
            ("UnwrittenLeases.look", "self._reports_s = {pair", "self._reports_s |= {pair"),
        ],
        _UNWRITTEN + "test_what_cannot_be_told_is_told_later": [
            ("UnwrittenLeases.look", "            self._doubted.set()\n", "            pass\n"),
            ("UnwrittenLeases.look", "except UnavailableError:", "except KeyError:"),
        ],
        _UNWRITTEN + "test_it_is_told_at_once_and_again": [
            ("UnwrittenLeases.run", "await self._doubted.wait()", "await anyio.sleep_forever()"),
            ("UnwrittenLeases.look", "if backoff.may_log():", "if True:"),
            ("UnwrittenLeases.look", "if backoff.may_log():", "if False:"),
        ],
        _UNWRITTEN + "test_reports_are_looked_at_by_themselves": [
            ("UnwrittenLeases.run", "anyio.move_on_after(LOOK * self._lease_s)", "anyio.CancelScope()"),
        ],
    },
)
