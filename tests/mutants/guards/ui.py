"""The door of the dashboard: whose requests pass, who logs in, and that a change hits no more than was asked for."""

from __future__ import annotations

from typing import Final

from tests.mutants.code import Guarded

_RULES: Final = "unit/test_ui_rules.py::"
_PARTS: Final = "unit/test_ui_parts.py::"

RULES: Final = Guarded(
    "pulse.ui.rules",
    {
        _RULES + "test_own_page": [
            ("is_own_page", 'fetch_site is not None and fetch_site != "same-origin"', "False"),
            ("is_own_page", 'parts.scheme in {"http", "https"} and ', ""),
            ("is_own_page", " and parts.netloc.lower() == host.lower()", ""),
        ],
        _RULES + "test_tokens_and_paths": [
            ("is_same", "given is not None and hmac.compare_digest", "hmac.compare_digest"),
            ("own_path", ' or path.startswith(("//", "/\\\\"))', ""),
            ("own_path", " or not path.isprintable()", ""),
            ("own_path", ' or not path.startswith("/")', ""),
        ],
        _RULES + "test_host_name": [
            ("host_name", "parts.username is None and ", ""),
            ("host_name", " and parts.netloc == host", ""),
        ],
    },
    is_part=True,
)

CREDENTIALS: Final = Guarded(
    "pulse.credentials",
    {
        _RULES + "TestCredentials::test_plain_and_bcrypt": [
            ("Credentials.verify", "entry is None or not matches", "not matches"),
            ("Credentials.verify", "if entry is not None and mark in self._verified", "if entry is not None"),
            ("_matches", "        return False\n", "        return True\n"),
        ],
        _RULES + "TestCredentials::test_guessing_gets_slower": [
            ("Throttle._pause_s", "min(self._longest_s, ", "max(0.0, "),
            ("Throttle.failed", "count = 0", "pass"),
        ],
    },
    is_part=True,
)

SESSIONS: Final = Guarded(
    "pulse.ui.sessions",
    {
        _RULES + "TestSessions::test_life": [
            ("Sessions.find", "session is not None and session.ends_s <= now_s", "False"),
            ("Sessions.end", "self._by_hash.pop(_hash(cookie), None)", "pass"),
        ],
        _RULES + "TestSessions::test_bounds": [
            ("Sessions.begin", "while len(self._by_hash) > MOST", "while False"),
            ("Session.show_next", "while len(self.undos) > _MOST_UNDOS", "while False"),
        ],
    },
    is_part=True,
)

FILTERS: Final = Guarded(
    "pulse.ui.filters",
    {
        _PARTS + "TestFilters::test_a_change_hits_no_more_than_was_asked_for": [
            ("Filters._agreements", "yield not self.topic or job.topic == self.topic", "yield True"),
            ("Filters._agreements", "yield not self.name or job.name == self.name", "yield True"),
            ("Filters._agreements", "yield not self.schedule or ", "yield True or "),
            ("Filters._agreements", "yield not self.worker or ", "yield True or "),
            ("Filters._agreements", "yield not self.older or ", "yield True or "),
            ("Filters._agreements", "yield not self.newer or ", "yield True or "),
        ],
    },
    is_part=True,
)
