"""Log lines: what keeps them from costing memory, a frame, or somebody's time; what the doctor must not overlook."""

from __future__ import annotations

from typing import Final

from tests.mutants.code import Guarded

_RING: Final = "unit/test_log_ring.py::"
_DOCTOR: Final = "unit/test_doctor.py::"

RING: Final = Guarded(
    "pulse_supervisor.ring",
    {
        _RING + "test_the_oldest_go": [
            ("Ring.add", "while self._bytes > self._max_bytes:", "while False:"),
            ("Ring._lost", "after is None or after < self._first", "after is None"),
        ],
        _RING + "test_what_is_no_line": [
            ("Ring.add", "(msgspec.MsgspecError, UnicodeDecodeError)", "UnicodeDecodeError"),
        ],
        _RING + "test_what_is_chosen": [
            ("Ring._chosen", "one.level >= least and ", ""),
            ("Ring._chosen", " and request.actor in {None, one.actor}", ""),
        ],
        _RING + "test_pages": [
            ("_fit", "if left < 0 and count:", "if False:"),
            ("Ring.answer", "fitting[-1].number if more else self._next - 1", "self._next - 1"),
            ("Ring._chosen", "one.number > after and ", ""),
        ],
        _RING + "test_waiting": [
            ("Ring.add", "self._grown.set()", "pass"),
        ],
    },
    is_part=True,
)

TAP: Final = Guarded(
    "pulse.logtap",
    {
        _RING + "test_a_long_line": [("Tap._send", "if len(line) > MAX_LINE_BYTES:", "if False:")],
        _RING + "test_nobody_reads": [
            ("Tap._send", "self._lost += 1", "pass"),
            ("Tap._send", "self._lost = 0", "pass"),
        ],
        _RING + "test_the_tap": [
            ("Tap._send", 'if copy.get("exc_info"):', "if False:"),
            ("Tap._send", "dict(event)", "event"),
        ],
    },
    is_part=True,
)

DOCTOR: Final = Guarded(
    "pulse.doctor.queue",
    {
        _DOCTOR + "test_topics": [
            ("topics", ' and not row["is_paused"]', ""),
            ("topics", 'row["hosts"] <= 1', "True"),
        ],
        _DOCTOR + "test_leases": [
            ("leases", 'row["host_s"] is None or ', "row['host_s'] is not None and "),
        ],
    },
    is_part=True,
)
