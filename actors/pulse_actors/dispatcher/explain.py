"""What PostgreSQL says of values that it cannot store, in one line for the person who sent them."""

from __future__ import annotations

from typing import Final

import asyncpg

# What the tables' CHECKs mean; the names of the constraints begin with the table's.
_CHECKS: Final = {
    "args": "args must be a JSON object",
    "name": "name must have 1 to 200 characters",
    "topic": "topic must have 1 to 200 characters",
    "next_run_at": "its time must lie in the years 1 to 9999",
    "expires_at": "its expiry must lie in the years 1 to 9999",
    "run_at": "its time must lie in the years 1 to 9999",
}


def explain(error: asyncpg.PostgresError) -> str:
    """*error* in one line."""
    constraint = str(getattr(error, "constraint_name", None) or "").partition("_")[2]
    if constraint in _CHECKS:
        return _CHECKS[constraint]
    message = str(error.args[0]) if error.args else str(error)
    detail = getattr(error, "detail", None)
    return " ".join(f"{message} ({detail})".split() if detail else message.split())
