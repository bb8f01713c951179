"""Mutants of what operators do to many jobs, of the notes of it, and of the lists by which they choose."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, cut, swap
from tests.mutants.others import target

# ruff: noqa: E501 - a mutant is a line

DELETE: Final = "delete_jobs"
CHANGE: Final = "change_jobs"
WALK: Final = "walk_jobs"
COLLECT: Final = "collect_jobs"
NOTES: Final = "list_actions"
_DONE: Final = "test_operations.py::"
_TURNS: Final = "test_set_aside.py::"
_ASIDE: Final = "test_set_aside.py::"
_PAGES: Final = _DONE + "test_pages_of_notes"
_FORGOTTEN: Final = _DONE + "test_old_notes_go_in_batches"
_PROGRESS: Final = _DONE + "test_progress_of_retention"
_LISTING: Final = "test_listing.py::test_pages_are_the_list"
_WAYS: Final = "test_listing.py::test_each_way_through_the_table"
_SMALL: Final = "test_listing.py::test_each_part_that_is_small"
_ENDED: Final = "('COMPLETED', 'DEAD_LETTERED', 'CANCELED')"
_WAITS: Final = "('PENDING', 'RETRYING')"
_ONE: Final = _DONE + "test_change_of_one_of_both"
_DUE_NOW: Final = (
    "CASE WHEN j.next_run_at <= coalesce($4, clock_timestamp()) THEN coalesce($4, clock_timestamp())"
    " ELSE j.next_run_at END"
)
OPERATIONS: Final = [
    *target(DELETE, _ENDED, _DONE + "test_delete", _DONE + "test_delete"),
    *target(CHANGE, _WAITS, _DONE + "test_change", _DONE + "test_change"),
    cut(
        "delete_set_aside",
        " JOIN pulse.set_aside s ON s.job_id = j.id",
        _ASIDE + "test_what_is_not_set_aside_is_not_deleted",
    ),
    swap("delete_set_aside", "j.id = ANY ($1::uuid[])", "true", _ASIDE + "test_what_is_set_aside_can_be_deleted"),
    swap("delete_set_aside", "s.job_id = g.id", "true", _ASIDE + "test_what_is_set_aside_can_be_deleted"),
    swap("delete_set_aside", "s.job_id = g.id", "false", _ASIDE + "test_what_is_set_aside_can_be_deleted"),
    swap("delete_set_aside", "a.job_id = g.id", "true", _ASIDE + "test_what_is_set_aside_can_be_deleted"),
    swap("set_aside_jobs", "s.tries + 1", "s.tries", _TURNS + "test_what_is_refused_again"),
    swap("set_aside_jobs", "n.tries = 1", "true", _TURNS + "test_what_is_refused_again"),
    swap("set_aside_jobs", "sqlstate = excluded.sqlstate, ", "", _TURNS + "test_what_is_refused_again"),
    swap(
        "set_aside_jobs",
        "greatest(s.next_try_at, excluded.next_try_at)",
        "excluded.next_try_at",
        _TURNS + "test_what_an_operator_set_aside_stays_so",
    ),
    swap(
        "set_aside_jobs",
        "$6::int IS NULL OR (SELECT count(*) FROM pulse.set_aside) < $6",
        "true OR $6::int IS NULL",
        _TURNS + "test_no_more_than_may_be",
    ),
    swap("readmit_like", "s.sqlstate = $1", "$1::text IS NOT NULL", _TURNS + "test_what_has_the_same_cause"),
    cut("readmit_like", " AND s.statement = 'claim_jobs'", _TURNS + "test_what_has_the_same_cause"),
    cut("readmit_like", " AND s.next_try_at <> 'infinity'", _TURNS + "test_what_has_the_same_cause"),
    swap("next_set_aside", "s.next_try_at <= clock_timestamp()", "true", _TURNS + "test_each_has_its_turn"),
    swap(
        "next_set_aside", "ORDER BY s.next_try_at ", "ORDER BY s.next_try_at DESC ", _TURNS + "test_each_has_its_turn"
    ),
    swap("next_set_aside", "j.expires_at <= clock_timestamp()", "false", _TURNS + "test_what_has_expired"),
    swap("next_set_aside", "j.expires_at <= clock_timestamp()", "true", _TURNS + "test_what_has_expired"),
    swap("next_set_aside", " FOR UPDATE SKIP LOCKED", " FOR UPDATE", _TURNS + "test_one_that_another_server_tries"),
    swap("next_set_aside", "WHERE s.job_id = m.job_id", "", _TURNS + "test_each_has_its_turn"),
    cut("readmit_jobs", " AND s.next_try_at <> 'infinity'", _TURNS + "test_what_an_operator_set_aside_stays_so"),
    swap(
        "readmit_jobs",
        "s.job_id = ANY ($1::uuid[])",
        "$1::uuid[] IS NOT NULL",
        _TURNS + "test_what_an_operator_set_aside_stays_so",
    ),
    swap(
        "lift_jobs",
        "s.job_id = ANY ($1::uuid[])",
        "$1::uuid[] IS NOT NULL",
        _ASIDE + "test_what_can_be_changed_again_is_set_aside_no_more",
    ),
    swap("delete_set_aside", "a.job_id = g.id", "false", _ASIDE + "test_what_is_set_aside_can_be_deleted"),
    swap(
        "set_aside_for_good", "j.id = $1", "$1::uuid IS NOT NULL", _ASIDE + "test_what_cannot_be_canceled_is_set_aside"
    ),
    swap(
        "set_aside_for_good",
        "SET next_try_at = 'infinity', ",
        "SET ",
        _ASIDE + "test_what_is_set_aside_by_itself_is_tried_again",
    ),
    swap("job_history", "a.job_id = $1", "true", _ASIDE + "test_what_can_be_read_is_told"),
    swap("job_text", "j.id = $1", "$1::uuid IS NOT NULL", _ASIDE + "test_what_can_be_read_is_told"),
    swap(DELETE, "a.job_id = g.id", "true", _DONE + "test_delete"),
    swap(DELETE, "a.job_id = g.id", "false", _DONE + "test_delete"),
    swap(CHANGE, "coalesce($2, j.topic), priority", "$2, priority", _ONE),
    swap(CHANGE, "coalesce($3, j.priority),\n", "$3,\n", _ONE),
    cut(
        CHANGE,
        "\n      AND (j.topic, j.priority) IS DISTINCT FROM (coalesce($2, j.topic), coalesce($3, j.priority))",
        _ONE,
    ),
    swap(CHANGE, _DUE_NOW, "j.next_run_at", _DONE + "test_a_cursor_that_has_passed_finds_what_was_changed"),
    swap(CHANGE, _DUE_NOW, "coalesce($4, clock_timestamp())", _DONE + "test_change_of_what_is_not_due"),
    swap(CHANGE, "target t LEFT JOIN", "target t JOIN", _ONE),
    swap("set_operator", ", true)", ", false)", _DONE + "test_functions_note_what_they_do"),
]

AUDIT: Final = [
    swap(NOTES, "a.action = $1 OR ($1", "false OR ($1", _PAGES),
    cut(NOTES, "$1 LIKE '%.' AND ", _PAGES),
    swap(NOTES, "starts_with(a.action, $1)", "starts_with(a.action, 'j')", _PAGES),
    swap(NOTES, "OR a.topic = $2", "OR true", _PAGES),
    swap(NOTES, "a.at >= coalesce", "a.at > coalesce", _PAGES),
    swap(NOTES, "a.at >= coalesce", "true OR a.at > coalesce", _PAGES),
    swap(NOTES, "(a.at, a.id) < ($4, $5::bigint)", "a.at < $4 OR $5::bigint IS NULL", _PAGES),
    swap(NOTES, "(a.at, a.id) < ($4, $5::bigint)", "(a.at, a.id) <= ($4, $5::bigint)", _PAGES),
    swap(NOTES, "ORDER BY a.at DESC", "ORDER BY a.at", _PAGES),
    swap(NOTES, "a.id DESC LIMIT", "a.id LIMIT", _PAGES),
    swap("forget_actions", "a.at < coalesce", "a.at <= coalesce", _FORGOTTEN),
    swap("forget_actions", "- $1 * interval '1 second'", "+ $1 * interval '1 second'", _PAGES),
    swap("forget_actions", "ORDER BY a.at LIMIT $2", "ORDER BY a.at DESC LIMIT $2", _FORGOTTEN),
    swap("forget_actions", "LIMIT $2 FOR", "LIMIT $2 + 1 FOR", _FORGOTTEN),
    cut("forget_actions", " SKIP LOCKED", _FORGOTTEN),
    cut("forget_actions", " WHERE a.id = o.id", _PAGES),
    swap("note_retention", "walked = CASE WHEN $3 THEN 0 ELSE m.walked END + $1, gone", "walked = m.walked + $1, gone", _PROGRESS),
    swap("note_retention", "gone = CASE WHEN $3 THEN 0 ELSE m.gone END + $2,\n", "gone = m.gone + $2,\n", _PROGRESS),
    swap("note_retention", "last_walked = CASE WHEN $4 THEN", "last_walked = CASE WHEN true THEN", _PROGRESS),
    swap("note_retention", "last_walked = CASE WHEN $4 THEN CASE WHEN $3 THEN 0 ELSE m.walked END", "last_walked = CASE WHEN $4 THEN m.walked", _PROGRESS),
    swap("note_retention", "last_gone = CASE WHEN $4 THEN", "last_gone = CASE WHEN true THEN", _PROGRESS),
    swap("note_retention", "last_gone = CASE WHEN $4 THEN CASE WHEN $3 THEN 0 ELSE m.gone END", "last_gone = CASE WHEN $4 THEN m.gone", _PROGRESS),
    swap("note_retention", "ended_at = CASE WHEN $4", "ended_at = CASE WHEN true", _PROGRESS),
    swap("note_retention", "began_at = CASE WHEN $3 THEN coalesce($5, clock_timestamp()) ELSE m.began_at END,\n", "began_at = m.began_at,\n", _PROGRESS),
    swap("note_retention", "CASE WHEN $4 AND NOT $3 THEN m.began_at WHEN $4", "CASE WHEN $4", _PROGRESS),
    swap("note_retention", "total_gone = m.total_gone + $2", "total_gone = $2", _PROGRESS),
]  # fmt: skip

_TIMED_ONES: Final = (
    ("'ids' AND NOT $2 AND", "j.id DESC"),
    ("'ids' AND $2 AND", "j.id"),
    ("'dead' AND NOT $2 AND j.status = 'DEAD_LETTERED' AND", "j.id DESC"),
    ("'dead' AND $2 AND j.status = 'DEAD_LETTERED' AND", "j.id"),
    ("'canceled' AND NOT $2 AND j.status = 'CANCELED' AND", "j.id DESC"),
    ("'canceled' AND $2 AND j.status = 'CANCELED' AND", "j.id"),
)
_RANGE: Final = "j.id >= $3 AND j.id < $4"
_AMONG: Final = (
    " (get_byte(uuid_send(j.id), 6) >> 4 <> 7 OR j.id >= '04000000-0000-0000-0000-000000000000')\n          "
)
_OTHERS: Final = (
    (f"'others' AND NOT $2 AND{_AMONG} AND", "j.submitted_at DESC, j.id DESC", "j.submitted_at, j.id"),
    (f"'others' AND $2 AND{_AMONG} AND", "j.submitted_at, j.id", "j.submitted_at DESC, j.id DESC"),
)
_FROM: Final = " (j.submitted_at, j.id) >= ($5, $6)"
_TO: Final = " AND (j.submitted_at, j.id) < ($7, $8)"


def _walks() -> list[Mutant]:
    """Each way through the table: where it begins and ends, and its order."""
    found = []
    for words, order in _TIMED_ONES:
        whole = f"{words} {_RANGE}\n         ORDER BY {order}"
        turned = "j.id" if order == "j.id DESC" else "j.id DESC"
        found += [
            swap(WALK, whole, whole.replace("j.id >= $3", "j.id > $3"), _WAYS),
            swap(WALK, whole, whole.replace("j.id < $4", "j.id <= $4"), _WAYS),
            swap(WALK, whole, whole.replace("j.id >= $3", "true"), _WAYS),
            swap(WALK, whole, whole.replace("j.id < $4", "true"), _WAYS),
            swap(WALK, whole, whole.replace(f"ORDER BY {order}", f"ORDER BY {turned}"), _WAYS),
        ]
    for words, order, turned in _OTHERS:
        whole = f"{words}{_FROM}{_TO}\n         ORDER BY {order}"
        found += [
            swap(WALK, whole, whole.replace(">= ($5", "> ($5"), _WAYS),
            swap(WALK, whole, whole.replace("< ($7", "<= ($7"), _WAYS),
            swap(WALK, whole, whole.replace(f"ORDER BY {order}", f"ORDER BY {turned}"), _WAYS),
            swap(WALK, whole, whole.replace(" OR j.id >= '04000000-0000-0000-0000-000000000000'", ""), _WAYS),
            swap(WALK, whole, whole.replace(_AMONG, " true\n          "), _WAYS),
        ]
    return found


def _filters(name: str, *, first: int, killer: str = _LISTING) -> list[Mutant]:
    """What is looked for, column by column; *first* is the number of the first of these arguments."""
    columns = (
        f"j.status = ANY (${first}::text[]::pulse.job_status[])",
        f"j.topic = ${first + 1}",
        f"j.name = ${first + 2}",
        f"j.schedule_id = ${first + 3}",
        f"j.last_error ILIKE ${first + 4}",
        f"j.locked_by ILIKE ${first + 5}",
        f"j.id BETWEEN ${first + 6} AND ${first + 7}",
    )
    status, *others = columns
    return [
        swap(name, f"({status} OR", "(true OR", killer),
        *(swap(name, f" OR {column})", " OR true)", killer) for column in others),
        swap(name, f" OR {columns[4]})", f" OR {columns[4].replace('ILIKE', 'LIKE')})", _LISTING),
        swap(name, f" OR {columns[5]})", f" OR {columns[5].replace('ILIKE', 'LIKE')})", killer),
    ]


LISTS: Final = [
    *_walks(),
    *_filters(WALK, first=11),
    cut(WALK, "AND ($1 = 'others' OR get_byte(uuid_send(j.id), 6) >> 4 = 7)", _LISTING),
    cut(WALK, " OR w.place = $9", _LISTING),
    *_filters(COLLECT, first=3, killer=_SMALL),
    cut(COLLECT, "$4::text IS NULL AND ", _SMALL),
    swap(COLLECT, " AND j.id < '04000000-0000-0000-0000-000000000000' AS", " AS", _SMALL),
    swap(COLLECT, "(WHERE w.is_wanted AND w.is_timed)", "(WHERE w.is_timed)", _SMALL),
    swap(COLLECT, "(WHERE w.is_wanted AND w.is_timed)", "(WHERE w.is_wanted)", _SMALL),
    swap(COLLECT, "(WHERE w.is_wanted AND NOT w.is_timed)", "(WHERE NOT w.is_timed)", _SMALL),
    cut(COLLECT, " AND NOT w.is_timed", _SMALL),
    swap(COLLECT, "* 1000000", "* 1000", _SMALL),
    swap(COLLECT, "count(*) AS walked", "0 AS walked", _LISTING),
]

MUTANTS: Final = [*OPERATIONS, *AUDIT, *LISTS]
