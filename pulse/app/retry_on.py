"""Decides from a handler's ``retry_on`` whether an exception is retried, and when. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, cast

from pulse.app.outcome import MAX_SECONDS, Discard, Outcome, cause_of, clean_text, describe
from pulse.common.backoff import ALLOWED, backoff_s, is_backoff
from pulse.errors import HandlerError

__all__ = ["Delay", "RetryOn", "check_retry_on", "retried"]

# Seconds, a back-off in one word, ``pulse.Discard`` (no further try), or None: the usual back-off.
Delay: TypeAlias = "float | str | type[Discard] | None"
RetryOn: TypeAlias = "Mapping[type[BaseException], Delay] | Callable[[BaseException, int], Delay]"

_DELAYS: Final = f"seconds from 0 to {MAX_SECONDS:g}, pulse.Discard, None, or one of {ALLOWED}"


def check_retry_on(label: str, retry_on: object) -> None:
    """
    Check a ``retry_on``.

    Raises:
        HandlerError: It is neither a function nor a mapping of exception classes, or has an invalid delay.
    """
    if not isinstance(retry_on, Mapping):
        if callable(retry_on) and not isinstance(retry_on, type):
            return
        raise HandlerError(
            f"{label}: retry_on must be a mapping of exception classes or a function, not {retry_on!r:.100}"
        )
    for kind, delay in cast("Mapping[object, object]", retry_on).items():
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise HandlerError(f"{label}: retry_on has {kind!r:.100}; exception classes are allowed")
        if not _is_delay(delay):
            raise HandlerError(f"{label}: retry_on of {kind.__name__} is {delay!r:.100}; allowed are {_DELAYS}")


def retried(retry_on: RetryOn, error: BaseException, ending: Outcome, tries: int) -> Outcome:
    """
    The outcome of an attempt that ended with *error*.

    Args:
        retry_on: The handler's option.
        error: The error.
        ending: The outcome without ``retry_on``: an ``error`` with its text.
        tries: Charged tries, including this one.

    Returns:
        A ``retry`` with its own delay, a ``discard``, or *ending*. Never raises: if the user's function raises or
        returns an invalid delay, the text says so, and the usual back-off applies.
    """
    error, text = cause_of(error), str(ending.detail)
    try:
        delay = retry_on(error, tries) if callable(retry_on) else _of_mapping(retry_on, error)
    except Exception as broken:  # noqa: BLE001 - the user's function may raise anything
        return Outcome("error", clean_text(f"{text}\nretry_on failed: {describe(broken)}"))
    if not _is_delay(delay):
        return Outcome("error", clean_text(f"{text}\nretry_on said {delay!r:.100}; allowed are {_DELAYS}"))
    if delay is None:
        return ending
    if isinstance(delay, type):
        return Outcome("discard", text)
    return Outcome("retry", (backoff_s(delay, tries) if isinstance(delay, str) else float(delay), text))


def _of_mapping(retry_on: Mapping[type[BaseException], Delay], error: BaseException) -> Delay:
    """The delay of the class that is nearest to *error*'s."""
    return next((retry_on[kind] for kind in type(error).__mro__ if kind in retry_on), None)


def _is_delay(delay: Any) -> bool:  # noqa: ANN401 - anything at all that the user wrote
    if delay is None or delay is Discard or is_backoff(delay):
        return True
    is_number = isinstance(delay, int | float) and not isinstance(delay, bool)
    return is_number and math.isfinite(delay) and 0 <= delay <= MAX_SECONDS
