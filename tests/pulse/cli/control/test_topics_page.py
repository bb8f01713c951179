"""What is set for a topic, in words."""

from __future__ import annotations

import pytest

from pulse.cli.control.topics_page import policy_words


@pytest.mark.parametrize(("policy", "words"), [
    ({}, ""),
    ({"publish": True}, "publish yes"),
    ({"publish": False, "limit": "api"}, "limit api, publish no"),
    ({"max_attempts": 1, "timeout_s": 90.0, "lease_s": 0.5}, "max-attempts 1, timeout 90, lease 0.5"),
])  # fmt: skip
def test_a_policy(policy: dict[str, object], words: str) -> None:
    """A switch is on or off, and no number; a number has no needless digits."""
    assert policy_words(policy) == words
