"""
The rows of the restart machine's table: each one that is there left out, or without its deed, and each one that is not
there put in.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from tests.mutants.code import CodeMutant, Edit, source_of, span_of, tree_of

_MODULE: Final = "pulse_supervisor.children.lifecycle"
_TESTS: Final = "unit/test_supervisor_machine.py::"
_POSSIBLE: Final = _TESTS + "TestTable::test_what_can_happen_when"
EVENTS: Final = (
    *(
        "StartAsked",
        "SpawnOk",
        "SpawnFailed",
        "HelloReceived",
        "Briefed",
        "ReadyReceived",
        "PongReceived",
        "RefusalReceived",
        "BusBroken",
        "Exited",
    ),
    *("StopAsked", "StopNow", "RestartAsked", "Deadline", "Slept"),
)

# (where, event) -> the test that notices when nothing is done about it.
_DEEDS: Final = {
    ("_ALIVE", "Exited"): "TestRestart::test_the_second_restart_waits_a_little",
    ("_ALIVE", "RefusalReceived"): "TestRestart::test_exit_code_78_stops_everything_with_the_childs_own_words",
    ("_ALIVE", "BusBroken"): "TestSilence::test_a_broken_bus_is_as_bad_as_silence",
    ("_ALIVE", "StopAsked"): "TestStop::test_an_actor_is_asked_then_told_then_killed",
    ("_ALIVE", "StopNow"): "TestStop::test_at_once_means_sigkill_for_an_actor",
    ("_ALIVE", "RestartAsked"): "TestRestart::test_a_restart_that_was_asked_for_counts_for_nothing",
    ("_ALIVE", "Slept"): "TestSilence::test_the_supervisors_own_sleep_is_nobodys_fault",
    ("STOPPED", "StartAsked"): "TestStart::test_an_actor_goes_through_hello_and_settings_to_ready",
    ("STOPPED", "RestartAsked"): "TestRestart::test_a_restart_starts_what_is_not_there",
    ("SPAWNING", "SpawnOk"): "TestStart::test_an_actor_goes_through_hello_and_settings_to_ready",
    ("SPAWNING", "SpawnFailed"): "TestStart::test_a_program_that_cannot_be_executed_is_a_death",
    ("SPAWNING", "StopAsked"): "TestStop::test_who_is_not_there_yet_does_not_come",
    ("SPAWNING", "StopNow"): "TestStop::test_who_is_not_there_yet_does_not_come",
    ("SPAWNED", "HelloReceived"): "TestStart::test_an_actor_goes_through_hello_and_settings_to_ready",
    ("SPAWNED", "ReadyReceived"): "TestStart::test_a_database_that_is_ready_may_be_silent",
    ("SPAWNED", "Deadline"): "TestStart::test_no_hello_at_boot_stops_everything_with_a_reason",
    ("GREETED", "Briefed"): "TestStart::test_an_actor_goes_through_hello_and_settings_to_ready",
    ("PRIMING", "ReadyReceived"): "TestStart::test_an_actor_goes_through_hello_and_settings_to_ready",
    ("PRIMING", "PongReceived"): "TestStart::test_a_restarted_actor_may_prime_for_ever_as_long_as_it_answers",
    ("PRIMING", "Deadline"): "TestStart::test_not_ready_at_boot_stops_everything_with_a_reason",
    ("RUNNING", "PongReceived"): "TestSilence::test_every_pong_buys_three_seconds",
    ("RUNNING", "Deadline"): "TestSilence::test_a_silent_actor_is_killed_and_started_again",
    ("STOPPING", "Exited"): "TestRestart::test_stop_wins_over_restart",
    ("STOPPING", "StopAsked"): "TestRestart::test_stop_wins_over_restart",
    ("STOPPING", "StopNow"): "TestStop::test_at_once_goes_on_where_the_patient_ladder_stands",
    ("STOPPING", "Deadline"): "TestStop::test_an_actor_is_asked_then_told_then_killed",
    ("STOPPING", "Slept"): "TestSilence::test_sleep_moves_every_deadline_and_makes_none",
    ("WAITING", "Deadline"): "TestRestart::test_six_deaths_in_a_minute_stop_everything_with_70",
    ("WAITING", "RestartAsked"): "TestRestart::test_a_restart_starts_what_is_not_there",
    ("WAITING", "StopAsked"): "TestRestart::test_stop_wins_over_a_pending_restart",
    ("WAITING", "StopNow"): "TestStop::test_who_is_not_there_yet_does_not_come",
    ("WAITING", "Slept"): "TestSilence::test_sleep_moves_every_deadline_and_makes_none",
    ("FAILED", "Exited"): "TestStop::test_nothing_is_started_beside_a_process_that_cannot_be_killed",
}


def _mutants() -> Iterator[CodeMutant]:
    table, alive, late = _constant("TABLE"), _constant("_ALIVE"), _constant("_LATE")
    assert isinstance(alive, ast.Tuple)
    yield from _of_rows("_ALIVE", alive)
    (said,) = (node.iter for node in ast.walk(late) if isinstance(node, ast.comprehension))
    assert isinstance(said, ast.Tuple)
    yield from (_instead("_LATE", said, name, "*()", _POSSIBLE) for name in said.elts)
    several = {"_ALIVE": _events(alive.elts), "_LATE": [ast.unparse(name) for name in said.elts]}
    assert isinstance(table, ast.Dict)
    for key, value in zip(table.keys, table.values, strict=True):
        assert isinstance(key, ast.Attribute)
        assert isinstance(value, ast.Call)
        (rows,) = value.args
        assert isinstance(rows, ast.List)
        yield from _of_rows(key.attr, rows)
        present = _events(rows.elts)
        for row in rows.elts:
            if isinstance(row, ast.Starred):
                present += several[ast.unparse(row.value)]
        for event in EVENTS:
            if event not in present:
                yield _instead("TABLE", rows, rows.elts[0], f"({event}, _stay), {_text(rows.elts[0])}", _POSSIBLE)


def _of_rows(where: str, rows: ast.List | ast.Tuple) -> Iterator[CodeMutant]:
    """Each row left out; each row without its deed."""
    scope = where if where.startswith("_") else "TABLE"
    for row in rows.elts:
        yield _instead(scope, rows, row, "*()", _POSSIBLE)
        if isinstance(row, ast.Call):
            event, deed = map(ast.unparse, row.args)
            if deed != "_stay":
                yield _instead(scope, rows, row, f"({event}, _stay)", _TESTS + _DEEDS[where, event])


def _events(rows: list[ast.expr]) -> list[str]:
    return [ast.unparse(row.args[0]) for row in rows if isinstance(row, ast.Call)]


def _instead(scope: str, rows: ast.expr, row: ast.expr, instead: str, killer: str) -> CodeMutant:
    text = _text(rows)
    start, end = (place - span_of(source_of(_MODULE), rows)[0] for place in span_of(source_of(_MODULE), row))
    return CodeMutant(_MODULE, (Edit(scope, text, text[:start] + instead + text[end:]),), killer)


def _text(node: ast.expr) -> str:
    start, end = span_of(source_of(_MODULE), node)
    return source_of(_MODULE)[start:end]


def _constant(name: str) -> ast.expr:
    for one in tree_of(_MODULE).body:
        if isinstance(one, ast.AnnAssign) and ast.unparse(one.target) == name and one.value is not None:
            return one.value
    raise LookupError(name)


ROWS: Final = list(_mutants())
