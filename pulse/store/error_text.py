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
    "starts_at": "starts_at must lie in the years 1 to 9999",
    "ends_at": "ends_at must lie in the years 1 to 9999",
}


_OF_A_ROW: Final = (asyncpg.CheckViolationError, asyncpg.NotNullViolationError)


def explain(error: Exception) -> str:
    """*error*, of the database or about it, in one line."""
    constraint = str(getattr(error, "constraint_name", None) or "").partition("_")[2]
    if constraint in _CHECKS:
        return _CHECKS[constraint]
    message = str(error.args[0]) if error.args else str(error)
    # Of a row that a constraint refuses, the detail is the row: others' args, and what is redacted.
    detail = None if isinstance(error, _OF_A_ROW) else getattr(error, "detail", None)
    return " ".join(f"{message} ({detail})".split() if detail else message.split())
