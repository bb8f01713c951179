"""
Calls the hooks of an app for an attempt that failed.

They run before the failure is reported. So it is called for each attempt that failed, unless its
process died, and a flood of failures waits for it; for how long it may hold up a report is bounded.
"""

from __future__ import annotations

import time
from typing import Final

import anyio
from anyio.to_thread import run_sync

from pulse.app.handler import Handler
from pulse.app.hooks.functions import is_async, shown
from pulse.app.outcome import Discard, Outcome, RetryAfter
from pulse.errors import ResultError
from pulse.system.failure_log import LineLimit
from pulse.worker.execution.attempt import HUNG, Attempt

__all__ = ["counts", "log_hook", "tell_failure"]

HOOKS_S: Final = 5.0  # for all hooks of a failure: the attempt holds its slot meanwhile
# After a stop: the server waits for 7 s after a time limit, of which the handler may have used 5.
HOOKS_AFTER_STOP_S: Final = 1.0
_CHARGED: Final = frozenset({"error", "retry", "discard"})
_lines = LineLimit(100, 10.0)  # as many as of failed handlers


def counts(ending: Outcome) -> bool:
    """Whether the attempt failed and is charged."""
    return ending.outcome in _CHARGED


async def tell_failure(
    attempt: Attempt, handler: Handler, ending: Outcome, value: object, threads: anyio.CapacityLimiter
) -> None:
    """
    Call the hooks for a failed attempt, one after the other; never raises.

    Args:
        value: What the handler returned, or raised.
        threads: For plain hooks.
    """
    attempt.leave_thread()
    error = error_of(attempt, ending, value)
    limit_s = HOOKS_S if attempt.stopped is None else HOOKS_AFTER_STOP_S
    until_s = anyio.current_time() + limit_s
    for hook in handler.on_failure:
        try:
            # Shielded: the attempt may have been cancelled, which is why it failed.
            with anyio.CancelScope(deadline=until_s, shield=True) as scope:
                if is_async(hook):
                    await hook(attempt.context, error)  # type: ignore[misc]  # it is async
                else:
                    await run_sync(hook, attempt.context, error, limiter=threads, abandon_on_cancel=True)
            if scope.cancelled_caught:
                raise TimeoutError(f"the hooks of a failure took more than {limit_s:g} s")  # noqa: TRY301 - logged below
        except BaseException as failed:  # noqa: BLE001 - it changes nothing for the attempt, not even SystemExit
            log_hook(shown(hook), failed)


def error_of(attempt: Attempt, ending: Outcome, value: object) -> BaseException:
    """The exception to show: the handler's own, or one for a limit that it passed or a result that cannot be stored."""
    text = ending.detail.partition("\n")[0] if isinstance(ending.detail, str) else ""
    if not isinstance(value, BaseException):
        return ResultError(text)
    if attempt.stopped not in HUNG or isinstance(value, Discard | RetryAfter):
        return value
    passed = TimeoutError(text)
    passed.__cause__ = value if isinstance(value, Exception) else None
    return passed


def log_hook(hook: str, error: BaseException) -> None:
    """Log that a hook failed, as far as the limit allows."""
    if _lines.take(1, time.monotonic()):
        import structlog  # not above: pulse.logs comes first

        log = structlog.get_logger("pulse.worker")
        log.warning("hook_failed", hook=hook, exc_info=error)
