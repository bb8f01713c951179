"""Jobs that the database refuses: what is read of them, and what is told."""

from __future__ import annotations

from typing import Final

from tests.mutants.code import Guarded

_ASIDE: Final = "store/test_set_aside.py::"

LEGIBLE: Final = Guarded(
    "pulse.store.reading.damaged_jobs",
    {
        _ASIDE + "test_what_can_be_read_is_told": [
            ("legible_job", "if not await _is_read(connection, read):", "if False:"),
            ("legible_job", '{**row, "omitted": omitted} if omitted else row', "row"),
            ("legible_jobs", "if len(ids) == 1:", "if True:"),
            ("_is_read", "async with connection.transaction():", "if True:"),
        ],
        _ASIDE + "test_who_is_away_is_not_illegible": [
            ("_is_read", "if meaning_of(error) in {Meaning.AWAY, Meaning.CONTESTED}:", "if False:"),
        ],
        _ASIDE + "test_what_is_not_there_is_not_told": [
            ("legible_job", "if found is None:", "if False:"),
        ],
    },
    without={
        ("", "TYPE_CHECKING"): "for the type checkers",
        ("legible_jobs", "ids"): "of no ids there is nothing to read, however it is tried",
        ("legible_jobs", "await _is_read(connection, read)"): "rows one by one are the same rows, more slowly",
        ("legible_jobs", "job is None"): "a list is read in one snapshot; this one is for the type checkers",
    },
)

WHY: Final = Guarded(
    "pulse_actors.dispatcher.diagnosis.why",
    {
        _ASIDE + "test_what_cannot_be_canceled_is_set_aside": [
            ("explain", "if job.aside_since is not None:", "if False:"),
            ("_set_aside", "if job.aside_for_good else", "if False else"),
        ],
        _ASIDE + "test_what_is_set_aside_by_itself_is_tried_again": [
            ("_set_aside", "if job.aside_for_good else", "if True else"),
        ],
    },
    is_part=True,
)
