"""Between PostgreSQL's timestamps and plain numbers, exactly: float seconds on the wire, int microseconds for
cursors.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def to_us(moment: datetime) -> int:
    """Microseconds since the epoch."""
    return (moment - _EPOCH) // _MICROSECOND


def from_us(microseconds: int) -> datetime:
    """The aware datetime of *microseconds* since the epoch."""
    return _EPOCH + timedelta(microseconds=microseconds)


def to_s(moment: datetime) -> float:
    """Unix seconds."""
    return to_us(moment) / 1e6


def from_s(seconds: float) -> datetime:
    """
    The aware datetime of Unix *seconds*, rounded to microseconds.

    Raises:
        OverflowError: It lies outside the years 1 to 9999.
    """
    return _EPOCH + timedelta(microseconds=round(seconds * 1e6))
