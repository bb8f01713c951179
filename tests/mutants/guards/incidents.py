"""What is told while somebody looks: why a worker says nothing, and what of the doctor's findings is news."""

from __future__ import annotations

from typing import Final

from tests.mutants.code import Guarded

_KNOWN: Final = "unit/test_known.py::"
_SAYS_NOTHING: Final = _KNOWN + "test_why_it_says_nothing"
_INCIDENTS: Final = "unit/test_incidents.py::"
_ATTEMPTS: Final = _INCIDENTS + "test_attempts"
_LOOKS: Final = _INCIDENTS + "test_it_looks_while_somebody_asks"

CONDITION: Final = Guarded(
    "pulse_actors.dispatcher.workers.health",
    {
        _SAYS_NOTHING: [
            ("condition_of", "worker.held and ", ""),
            ("condition_of", "quiet_s(worker, now_s) >= QUIET_BEATS * heartbeat_s", "True"),
            ("condition_of", "worker.watched and ", ""),
            ("condition_of", " and processes.state(worker.facts.pid) in STOPPED", ""),
            ("condition_of", "worker.contact.heard_s > worker.contact.said_s and ", ""),
            ("condition_of", "Condition.SILENT if worker.contact.silent else Condition.WELL", "Condition.WELL"),
        ],
        _KNOWN + "test_who_was_never_heard_of": [
            ("quiet_s", "max(0.0, now_s - worker.contact.said_s)", "now_s - worker.contact.said_s"),
        ],
    },
    is_part=True,
)

INCIDENTS: Final = Guarded(
    "pulse_actors.dispatcher.monitoring.incidents",
    {
        _ATTEMPTS: [
            ("_is_recent", 'row["age_s"] > NEW_S', "False"),
            ("_is_recent", 'row["age_s"] > NEW_S', 'row["age_s"] >= NEW_S'),
            ("_is_recent", 'row["outcome"] in {"crashed", "lease_expired"} or ', ""),
            ("_is_recent", 'row["killed"] > 0 or ', ""),
            ("_is_recent", 'row["attempts"] >= MANY', 'row["attempts"] > MANY'),
        ],
        _INCIDENTS + "test_hosts": [
            ("judge", ' if row["running"] or row["lapsed"]', ""),
            ("judge", 'row["running"] or ', ""),
            ("judge", ' or row["lapsed"]', ""),
            ("judge", " if one.state is not State.OK", ""),
        ],
        _INCIDENTS + "test_what_is_known_without_the_database": [("Incidents.current", "*self._own_findings(), ", "")],
        _LOOKS: [
            ("Incidents.run", "            await self._wanted.wait()\n", ""),
            ("Incidents.current", "if time.monotonic() - self._looked_s >= EVERY_S:", "if True:"),
            ("Incidents.current", "[] if is_old else ", ""),
        ],
    },
    is_part=True,
)
