"""
Sentry: reports what handlers raise, and makes a transaction of each attempt where tracing is on.

``pip install 'pulse-supervisor[sentry]'``; ``sentry_sdk.init(...)`` is the app's, at import. Attempts do not share a
scope: tags, users and breadcrumbs of one never show in an event of another. Args of jobs are sent only as
local variables in tracebacks, which ``include_local_variables=False`` leaves out.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

import sentry_sdk
from sentry_sdk.tracing import TransactionSource
from sentry_sdk.utils import event_from_exception

from pulse.app.app import App, check_app
from pulse.app.context import Context
from pulse.app.hooks.middleware import CallNext
from pulse.app.outcome import Discard, RetryAfter, cause_of

__all__ = ["install"]

FLUSH_S: Final = 0.9  # the process of an isolated job has a second after its result
_ORIGIN: Final = "auto.queue.pulse"
_reported: ContextVar[BaseException | None] = ContextVar("pulse_sentry_reported", default=None)  # by this attempt


def install(app: App) -> None:
    """
    Report the failures of *app* to Sentry; call it before other middleware is registered, which is then inside.

    Events have the tags ``pulse.job_id``, ``pulse.name``, ``pulse.topic`` and ``pulse.attempt``. ``pulse.Discard`` and
    ``pulse.RetryAfter`` are answers, and are not reported.

    Raises:
        HandlerError: It is no app.

    Example:
        ::

            sentry_sdk.init(dsn=..., traces_sample_rate=0.1)
            app = pulse.App()
            pulse.contrib.sentry.install(app)
    """
    check_app("sentry", app)
    app.middleware(_in_scope)
    app.on_failure(_report_rest)
    app.on_shutdown(_flush)


async def _in_scope(ctx: Context, call_next: CallNext) -> object:
    with sentry_sdk.isolation_scope() as scope:
        _describe(scope, ctx)
        with sentry_sdk.start_transaction(
            op="queue.process", name=ctx.name, source=TransactionSource.TASK, origin=_ORIGIN
        ) as transaction:
            transaction.set_data("messaging.system", "pulse")
            transaction.set_data("messaging.message.id", str(ctx.job_id))
            transaction.set_data("messaging.destination.name", ctx.topic)
            transaction.set_data("messaging.message.retry.count", ctx.attempt - 1)
            try:
                value = await call_next()
            except Exception as error:
                _report(error)
                raise
            transaction.set_status("ok")
            return value


async def _report_rest(ctx: Context, error: BaseException) -> None:
    """What no middleware saw: args that do not fit, time limits, results that cannot be stored."""
    if error is not _reported.get():
        with sentry_sdk.isolation_scope() as scope:
            _describe(scope, ctx)
            _report(error)


def _describe(scope: sentry_sdk.Scope, ctx: Context) -> None:
    scope.clear_breadcrumbs()  # those of the worker itself
    scope.set_transaction_name(ctx.name, source=TransactionSource.TASK)
    scope.set_tag("pulse.job_id", str(ctx.job_id))
    scope.set_tag("pulse.name", ctx.name)
    scope.set_tag("pulse.topic", ctx.topic)
    scope.set_tag("pulse.attempt", str(ctx.attempt))


def _report(error: BaseException) -> None:
    _reported.set(error)
    if isinstance(cause_of(error), Discard | RetryAfter):
        return
    event, hint = event_from_exception(
        error, client_options=sentry_sdk.get_client().options, mechanism={"type": "pulse", "handled": False}
    )
    sentry_sdk.capture_event(event, hint=hint)


def _flush() -> None:
    sentry_sdk.flush(timeout=FLUSH_S)
