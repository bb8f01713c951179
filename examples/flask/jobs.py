"""
Handlers; the web application imports them to submit their jobs.

    pulse worker examples.flask.jobs:app --processes 2
"""

from __future__ import annotations

import hashlib

import pulse

app = pulse.App()


@app.handler("digest", topic="texts", max_attempts=3, timeout_s=60)
def digest(text: str, rounds: int = 1) -> str:
    """A plain def may block: it runs in a thread."""
    value = text
    for _ in range(rounds):
        value = hashlib.sha256(value.encode()).hexdigest()
    return value
