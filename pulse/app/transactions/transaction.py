"""
``ctx.transaction``: a transaction that commits only while the attempt holds its job.

The fence is asked twice: at the beginning, so that a stale attempt does not start to work, and as the last statement
before COMMIT, which completes the job and locks its row until then. Only the second one decides. In between the row is
not locked, since heartbeats write it; a transaction with one snapshot is the exception (``pulse.check_attempt``).
"""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Final
from uuid import UUID

import anyio

from pulse.app.transactions.connections import (
    DriverTransaction,
    async_transaction,
    blocking_transaction,
    carry_out,
)
from pulse.app.transactions.drivers import USUAL, Meanings, errors_told_apart
from pulse.app.transactions.fence import AttemptFence
from pulse.errors import (
    BadRequestError,
    ForbiddenError,
    StaleAttemptError,
    TooLargeError,
    TransactionError,
)
from pulse.security.schema_name import quoted

__all__ = ["Transaction"]

ROLL_BACK_S: Final = 5.0  # for a cancelled handler; a connection that takes longer is broken, and the server rolls back
_CALL: Final = "(CAST(CAST({{}} AS text) AS uuid), CAST({{}} AS int), CAST({{}} AS text), {})"
_CHECK: Final = "SELECT {schema}.check_attempt" + _CALL.format("CAST({} AS boolean)")
_COMPLETE: Final = "SELECT {schema}.complete_attempt" + _CALL.format(
    "CAST(CAST({} AS text) AS jsonb), CAST(CAST({} AS text) AS jsonb)"
)
_MEANINGS: Final[Meanings] = {
    **USUAL,
    "PU001": lambda said: StaleAttemptError(f"{said}: it was ended, and another attempt may run already"),
    "22": lambda said: BadRequestError(f"ctx.complete: {said}"),
    "54000": TooLargeError,
    "42501": lambda said: ForbiddenError(
        f"{said}; roles of handlers that use ctx.transaction are members of pulse_submit (pulse migrate --roles)"
    ),
    "25P02": lambda _: TransactionError("a statement of the block has failed, so its transaction cannot be committed"),
}


class Transaction:
    """
    A block of ``ctx.transaction``, for ``with`` or ``async with``.

    Args:
        pair: The job, and the number of the attempt.
        fence: The attempt's.
        connection: Of a driver that is known.
        completes: Whether the job is completed, too.
    """

    def __init__(self, pair: tuple[UUID, int], fence: AttemptFence, connection: object, *, completes: bool) -> None:
        self._fence = fence
        self._connection = connection
        self._completes = completes
        self._key = (str(pair[0]), pair[1], fence.worker)
        self._mine: DriverTransaction
        self._may_wait = False

    def __enter__(self) -> None:
        with errors_told_apart(self._connection, _MEANINGS):
            self._mine = blocking_transaction(self._connection)
            carry_out(self._begin())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        carry_out(self._end(error))

    async def __aenter__(self) -> None:
        with errors_told_apart(self._connection, _MEANINGS):
            self._mine = async_transaction(self._connection)
            self._may_wait = True
            await self._begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end(error)

    async def _begin(self) -> None:
        self._fence.open(completes=self._completes)
        try:
            await self._mine.begin(may_nest=self._fence.holds is not None)
            try:
                await self._ask(_CHECK, False)
            except BaseException as error:
                await self._roll_back(error)
                raise
        except BaseException:
            self._fence.close()
            raise

    async def _end(self, error: BaseException | None) -> None:
        try:
            if error is not None:
                await self._roll_back(error)
                return
            try:
                with errors_told_apart(self._connection, _MEANINGS):
                    await self._pass_fence()
            except BaseException as failure:
                await self._roll_back(failure)
                raise
            await self._commit()
        finally:
            self._fence.close()

    async def _pass_fence(self) -> None:
        if not self._mine.is_open():
            raise TransactionError("the transaction was ended inside its block: ctx.transaction commits it itself")
        if self._completes:
            await self._ask(_COMPLETE, self._fence.result, self._fence.progress())
        else:
            await self._ask(_CHECK, True)

    async def _ask(self, statement: str, *values: object) -> None:
        """The fence: the database, or the test in whose memory the job is."""
        holds = self._fence.holds
        if holds is None:
            await self._mine.run(statement, (*self._key, *values), quoted(self._fence.schema))
        elif not holds():
            raise StaleAttemptError("the attempt no longer holds its job")

    async def _commit(self) -> None:
        if not self._completes:
            await self._mine.commit()
            return
        self._fence.move("commits")
        try:
            await self._mine.commit()
        except BaseException:
            self._fence.move("")  # whether it is committed, only the database knows
            raise
        self._fence.move("completed")

    async def _roll_back(self, error: BaseException) -> None:
        with suppress(Exception):  # of a broken connection the server rolls back; what counts is *error*
            if self._may_wait:
                with anyio.move_on_after(ROLL_BACK_S, shield=True):
                    await self._mine.roll_back(error)
            else:
                await self._mine.roll_back(error)
