"""Poolers in the place of the database: who is refused, and who is not."""

from __future__ import annotations

from typing import Final

from tests.mutants.code import Guarded

_POOLERS: Final = "process/test_poolers.py::"

POOLER: Final = Guarded(
    "pulse.store.connections.pooler",
    {
        _POOLERS + "test_a_pooler_is_told_at_start": [
            ("refuse_pooler", "if _UNSUPPORTED in error.message:", "if False:"),
            ("refuse_pooler", "if dropped:", "if False:"),
            ("refuse_pooler", 'if not between["keeps_session"]:', "if False:"),
        ],
        _POOLERS + "test_a_pooler_that_keeps_sessions_is_let_be": [
            ("refuse_pooler", "if dropped:", "if True:"),
            ("refuse_pooler", 'if not between["keeps_session"]:', "if True:"),
            ("refuse_pooler", "if found[name] != value", ""),
        ],
        _POOLERS + "test_what_sets_sessions_otherwise_is_no_pooler": [
            ("refuse_pooler", 'if not between["is_between"]:', "if False:"),
        ],
        _POOLERS + "test_nobody_who_is_away_is_a_pooler": [
            ("refuse_pooler", "if _UNSUPPORTED in error.message:", "if True:"),
        ],
    },
)

START: Final = Guarded(
    "pulse_actors.runtime.actor",
    {
        _POOLERS + "test_only_the_first_start_looks_for_a_pooler": [
            ("Runtime.prime", "if self.boot:", "if True:"),
            ("Runtime.prime", "if self.boot:", "if False:"),
        ],
        _POOLERS + "test_a_pooler_is_told_at_start": [
            ("_run", "isinstance(error, PoolerError)", "False"),
        ],
    },
    is_part=True,
)
