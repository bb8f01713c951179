"""An operator's retry, and what a dead worker left running: no attempt may run beside another one."""

from __future__ import annotations

from typing import Final

from tests.mutants.code import Guarded

_RETRIES: Final = "store/test_dispatcher_retries.py::"
_TREES: Final = "unit/test_trees.py::"

REQUESTS: Final = Guarded(
    "pulse_actors.dispatcher.requests",
    {
        _RETRIES + "test_a_worker_that_is_not_connected": [
            ("_is_absent", "process is not None and ", ""),
            ("_is_absent", " and identities.lives(process)", ""),
            ("retry_jobs", " | {job for job, worker in last_workers.items() if worker in absent}", ""),
            ("retry_jobs", "if worker in absent", "if True"),
        ],
        _RETRIES + "test_a_worker_that_came_back": [
            ("_is_absent", "on.desk.get(worker) is None and ", ""),
            ("retry_jobs", "on.desk.held_among(body.ids) | ", ""),
            ("retry_jobs", "[job for job in body.ids if job not in held]", "body.ids"),
        ],
    },
    is_part=True,
)

TREES: Final = Guarded(
    "pulse.trees",
    {
        _TREES + "test_a_daemon_is_found_by_its_mark": [
            ("mark_of", "entry.startswith(prefix)", "entry.startswith(prefix[:1])"),
            ("kill_tree", " if entry.name.isdigit()", ""),
            ("kill_tree", 'if marked not in _environment(pid).split(b"\\0"):', "if True:"),
        ],
        _TREES + "test_a_pid_that_was_used_again_is_spared": [
            ("kill_tree", 'if marked in _environment(pid).split(b"\\0"):', "if True:"),
        ],
        _TREES + "test_an_empty_mark_is_none": [
            (
                "mark_of",
                'entry[len(prefix) :].decode("ascii", "replace") or None',
                'str(entry[len(prefix) :], "ascii", "replace")',
            ),
        ],
    },
)
