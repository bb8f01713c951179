"""Mutants of the statements about epochs, and of the fence in those that claim."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, cut, swap

_T: Final = "test_epochs.py::"
_CLAIMS: Final = _T + "test_claims_need_what_their_host_has_seen"
_NEWER: Final = _T + "test_a_newer_epoch_stops_claims"
_SUBMITS: Final = _T + "test_a_submit_hands_out_nothing_either"
_OLD: Final = _T + "test_old_jobs_go_on_above_the_floor"
_AGAIN: Final = _T + "test_an_id_that_is_submitted_again_begins_above_it"
_OVER: Final = _T + "test_what_ran_before_is_over"
_LOCKED: Final = _T + "test_a_row_that_is_locked_is_left_to_who_holds_it"
_UNSEEN: Final = _T + "test_a_place_that_was_not_looked_at_is_not_come_to"
_OFF: Final = _T + "test_what_may_run_yet_is_put_off_again"
_TICK: Final = _T + "test_a_tick_needs_all_that_a_claim_needs"
_FLOOR: Final = _T + "test_each_epoch_has_a_higher_floor"
_ONCE: Final = _T + "test_no_epoch_is_raised_twice"
_BEHIND: Final = _T + "test_hosts_that_were_seen_lately_are_waited_for"
_ELSEWHERE: Final = _T + "test_hosts_that_have_not_come_to_this_place"


def _fenced(name: str, number: int, test: str) -> list[Mutant]:
    """Without each part of the fence; its arguments begin at *number*."""
    witness, counter, epoch, started, relation = (f"${number + place}" for place in range(5))
    return [
        cut(name, f"w.instance = {witness} AND ", test),
        swap(name, f"w.counter >= {counter}", f"{counter}::bigint IS NOT NULL", test),
        swap(name, f"w.counter >= {counter}", f"w.counter > {counter}", test),
        swap(name, f"(e.epoch = {epoch} AND pg_post", f"({epoch}::int > 0 AND pg_post", _NEWER),
        swap(name, f"pg_postmaster_start_time() = {started}", f"{started}::timestamptz IS NOT NULL", test),
        swap(name, f"w.tableoid = {relation}", f"{relation}::oid IS NOT NULL", test),
    ]


def _floored(name: str, identity: str, test: str) -> list[Mutant]:
    """Without each part of what tells old jobs."""
    return [
        cut(name, f" OR get_byte(uuid_send({identity}), 6) >> 4 <> 7", test),
        cut(name, f"OR {identity} >= '04000000-0000-0000-0000-000000000000'", test),
        cut(name, f"{identity} < f.first_id OR ", test),
        swap(name, f"({identity} < f.first_id", f"(true OR {identity} < f.first_id", test),
        swap(name, "THEN f.attempts_floor ELSE 0", "THEN 0 ELSE 0", test),
    ]


MUTANTS: Final[list[Mutant]] = [
    *_fenced("claim_jobs", 10, _CLAIMS),
    *_fenced("submit_and_claim", 14, _SUBMITS),
    *_floored("claim_jobs", "id", _OLD),
    *_floored("submit_and_claim", "r.id", _AGAIN),
    swap("claim_jobs", "greatest(j.attempts, s.floor) + 1", "j.attempts + s.floor + 1", _OLD),
    cut("claim_jobs", " + greatest(s.floor - j.attempts, 0)", _OLD),
    swap("claim_jobs", "greatest(s.floor - j.attempts, 0)", "s.floor - j.attempts", _OLD),
    swap("submit_and_claim", "CASE WHEN n.is_open THEN n.floor ELSE 0 END", "0", _AGAIN),
    swap("submit_and_claim", "n.floor + 1 ELSE", "1 ELSE", _AGAIN),
    cut("submit_and_claim", " AND f.first_id IS NOT NULL", _SUBMITS),
    swap("claim_jobs", "ORDER BY n.epoch DESC", "ORDER BY n.epoch", _NEWER),
    swap("tick_witness", "w.instance = $1", "$1::uuid IS NOT NULL", _TICK),
    swap("tick_witness", "w.counter >= $2", "$2::bigint IS NOT NULL", _TICK),
    swap("tick_witness", "w.tableoid = $5", "$5::oid IS NOT NULL", _TICK),
    swap("tick_witness", "pg_postmaster_start_time() = $4", "$4::timestamptz IS NOT NULL", _TICK),
    swap("tick_witness", "(SELECT max(n.epoch) FROM pulse.epochs n) = $3", "$3::int > 0", _TICK),
    swap("tick_witness", "greatest(w.highest, $6)", "$6", _TICK),
    swap("raise_epoch", "greatest($2, ", "greatest(0 * $2, ", _FLOOR),
    swap("raise_epoch", "n.attempts_floor + 1000, ", "n.attempts_floor, ", _FLOOR),
    cut("raise_epoch", ", (SELECT max(w.highest) FROM pulse.witnesses w)", _FLOOR),
    cut("raise_epoch", " AND n.epoch < $1", _ONCE),
    cut("raise_epoch", "ON CONFLICT (epoch) DO NOTHING\n", _T + "test_two_hosts_raise_at_once"),
    swap(
        "raise_epoch",
        "coalesce(w.seen_at >= $4::timestamptz - $6::float8 * interval '1 second', true)",
        "$4::timestamptz < $4::timestamptz - $6::float8 * interval '1 second'",
        _BEHIND,
    ),
    swap(
        "raise_epoch",
        "coalesce(w.seen_at >= $4::timestamptz - $6::float8 * interval '1 second', true)",
        "$4::timestamptz - $6::float8 * interval '1 second' IS NOT NULL",
        _BEHIND,
    ),
    swap("raise_epoch", " + $9::float8 * 1000", " + 0 * $9::float8", _OLD),
    cut(
        "accept_epoch",
        " AND $4 = (SELECT max(n.epoch) FROM pulse.epochs n)",
        _T + "test_an_epoch_that_is_not_the_newest_is_not_accepted",
    ),
    swap("accept_epoch", "pg_postmaster_start_time() = $7", "$7::timestamptz IS NOT NULL", _UNSEEN),
    swap("accept_epoch", "'pulse.witnesses'::regclass::oid = $8", "$8::oid IS NOT NULL", _UNSEEN),
    swap("accept_epoch", "greatest($5, e.attempts_floor + 1000)", "$5", _FLOOR),
    cut("look_at_epoch", " AND o.place <> s.place", _ELSEWHERE),
    swap(
        "look_at_epoch",
        "o.seen_at >= s.back_to - $4 * interval '1 second'",
        "o.seen_at >= s.back_to - $4 * interval '1 day'",
        _ELSEWHERE,
    ),
    swap(
        "look_at_epoch",
        "coalesce($2, (SELECT w.seen_at",
        "coalesce($2, (SELECT w.seen_at + interval '1 hour'",
        _ELSEWHERE,
    ),
    swap(
        "look_at_epoch",
        "n.began_at > clock_timestamp() - $3 * interval '1 second'",
        "n.began_at > clock_timestamp() - $3 * interval '1 second' - interval '1 hour'",
        _BEHIND,
    ),
    cut("look_at_epoch", " AND n.detail->'hosts' ? o.instance::text", _BEHIND),
    cut("look_at_epoch", " AND o.epoch < n.epoch", _BEHIND),
    swap("look_at_epoch", "o.instance <> $1 AND o.epoch", "o.epoch", _BEHIND),
    swap(
        "raise_epoch",
        "greatest(clock_timestamp(), $5)",
        "clock_timestamp()",
        "test_witness.py::test_a_clock_that_has_gone_back",
    ),
    swap("end_epoch", "j.id = ANY ($4))", "true)", "test_witness.py::test_a_row_that_cannot_be_ended"),
    swap("end_epoch", "j.locked_by = ANY ($1::text[])", "$1::text[] IS NULL", _OVER),
    swap("end_epoch", "starts_with(j.locked_by, $2 || '/')", "$2::text IS NULL", _OVER),
    swap("end_epoch", "\n      AND j.attempts <= (SELECT f.attempts_floor FROM fence f)", "", _OVER),
    cut("end_epoch", "j.id < (SELECT f.first_id FROM fence f) OR ", _OVER),
    cut("end_epoch", " OR get_byte(uuid_send(j.id), 6) >> 4 <> 7", _OVER),
    swap("end_epoch", "AND (j.id < (SELECT", "AND (true OR j.id < (SELECT", _OVER),
    cut("end_epoch", " SKIP LOCKED", _LOCKED),
    cut("end_epoch", " + $6 * interval '1 second'", _OVER),
    swap("end_epoch", "uncharged = j.uncharged + 1", "uncharged = j.uncharged", _OVER),
    swap("end_epoch", "THEN 'PENDING' ELSE 'RETRYING'", "THEN 'PENDING' ELSE 'PENDING'", _OVER),
    cut("note_lost", " AND j.attempts < h.attempt", _T + "test_what_is_held_and_not_known_is_in_the_history"),
    cut(
        "note_lost",
        "\nON CONFLICT (job_id, attempt) DO NOTHING",
        _T + "test_what_is_held_and_not_known_is_in_the_history",
    ),
    cut("put_off_jobs", " SKIP LOCKED", _LOCKED),
    swap("put_off_jobs", " AND j.next_run_at < coalesce($3, clock_timestamp()) + $2 * interval '1 second'", "", _OFF),
    Mutant(
        "put_off_jobs",
        (
            (" AND o.status::text IN ('PENDING', 'RETRYING')", ""),
            (" AND j.status::text IN ('PENDING', 'RETRYING')", ""),
        ),
        _OFF,
    ),
    cut("attempts_gone_back", "j.attempts < d.attempt OR ", _T + "test_attempts_that_are_not_known"),
    cut("attempts_gone_back", " AND d.is_kept", _T + "test_attempts_that_are_not_known"),
    cut("attempts_gone_back", " OR (j.id IS NULL AND d.is_kept)", _T + "test_attempts_that_are_not_known"),
    cut(
        "open_again",
        " AND j.status::text IN ('PENDING', 'RETRYING', 'RUNNING')",
        _T + "test_what_was_finished_and_is_open_again",
    ),
    cut("note_reopened", "coalesce(e.reopened, 0) + ", _T + "test_what_was_finished_and_is_open_again"),
    swap("note_reopened", "WHERE e.epoch = $1", "WHERE e.epoch <= $1", _T + "test_what_was_finished_and_is_open_again"),
]
