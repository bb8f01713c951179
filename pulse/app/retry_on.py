"""What an exception of a handler means for the next try, by what the handler declared as ``retry_on``. Pure."""

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
    Whether a handler may declare this.

    Raises:
        HandlerError: It is neither a function nor a mapping of exception classes, or says something that is no delay.
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
    What an attempt came to that ended by *error*.

    Args:
        retry_on: What its handler declared.
        error: As it was raised.
        ending: What it is without that: an ``error`` with its text.
        tries: Charged tries, with this one.

    Returns:
        A ``retry`` with a delay of its own, a ``discard``, or *ending*. Never raises: what a function of the user's
        raises, or says wrongly, is told in the text, and the usual back-off is taken.
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
    """What is said of the class that is nearest to that of *error*."""
    return next((retry_on[kind] for kind in type(error).__mro__ if kind in retry_on), None)


def _is_delay(delay: Any) -> bool:  # noqa: ANN401 - anything at all that the user wrote
    if delay is None or delay is Discard or is_backoff(delay):
        return True
    is_number = isinstance(delay, int | float) and not isinstance(delay, bool)
    return is_number and math.isfinite(delay) and 0 <= delay <= MAX_SECONDS
