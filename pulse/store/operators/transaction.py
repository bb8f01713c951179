"""
Runs an operator's change and its audit entry in one transaction: neither is stored without the other.

The statements are the store's, on the connection of that transaction. Functions of the schema write their own audit
entries, with the operator that the transaction names, so changes by SQL are recorded, too.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from asyncpg.pgproto.pgproto import UUID

from pulse.errors import PulseError
from pulse.store.connections.pool import STATEMENT_DEADLINE_S
from pulse.store.operators.gate import GateStore
from pulse.store.operators.jobs import Connections, Operations
from pulse.store.operators.limits import LimitStore
from pulse.store.operators.policies import TopicStore
from pulse.store.operators.schedules import ScheduleStore
from pulse.store.statements import STATEMENTS
from pulse.system.sockets import peer_credentials

if TYPE_CHECKING:
    from asyncpg import Connection, Record


@dataclass(frozen=True, slots=True)
class Operator:
    """
    The origin of a request; None: not known.

    Attributes:
        uid: User id of the process, from the kernel.
        user: Its name, or the user of the credentials.
        host: Host of the server that got the request.
        pid: Process id, if it is on this host.
        behalf: The person on whose behalf the process says that it asks.
    """

    uid: int | None = None
    user: str | None = None
    host: str | None = None
    pid: int | None = None
    behalf: str | None = None

    @property
    def shown(self) -> str:
        """The operator's name in messages."""
        return peer_credentials.shown(self.uid, self.user)


class _SharedConnection:
    """The one connection of a transaction, lent to each statement in it."""

    def __init__(self, connection: Connection[Record]) -> None:
        self._connection = connection

    @contextlib.asynccontextmanager
    async def connection(self, deadline_s: float = STATEMENT_DEADLINE_S) -> AsyncGenerator[Connection[Record]]:
        """The same connection for every statement; the whole transaction has one deadline."""
        del deadline_s
        yield self._connection


class Acting(Operations):
    """
    The changes that operators can make, inside one transaction.

    Args:
        connection: The connection of the transaction.
    """

    def __init__(self, connection: Connection[Record]) -> None:
        self._lent = _SharedConnection(connection)
        self.gate = GateStore(self._lent)
        self.schedules = ScheduleStore(self._lent)
        self.topics = TopicStore(self._lent)
        self.limits = LimitStore(self._lent)

    @property
    def lender(self) -> Connections:
        """Lends the connection to one statement after the other."""
        return self._lent

    async def note(
        self,
        action: str,
        *,
        topic: str | None = None,
        schedule: bytes | None = None,
        job: bytes | None = None,
        jobs: int | None = None,
        detail: Mapping[str, object] | None = None,
    ) -> None:
        """
        Write an audit entry.

        Args:
            action: The kind of the request.
            topic: The topic that was changed; '' for everything.
            schedule: The schedule that was changed.
            job: The job that was changed, if it is a single one.
            jobs: How many jobs were changed.
            detail: More about the change; stored as JSON.
        """
        ids = [None if one is None else UUID(one) for one in (schedule, job)]
        told = None if detail is None else json.dumps(detail)
        async with self.lender.connection() as connection:
            await connection.execute(STATEMENTS["note_action"].sql, action, topic, *ids, jobs, told)


@contextlib.asynccontextmanager
async def acting(pool: Connections, operator: Operator) -> AsyncGenerator[Acting]:
    """A transaction in which *operator* changes something; an error rolls all of it back."""
    refusal: PulseError | None = None
    async with pool.connection() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(STATEMENTS["set_operator"].sql, json.dumps(asdict(operator)))
        try:
            yield Acting(connection)
        except PulseError as error:  # the connection is good
            refusal = error
            await transaction.rollback()
        except BaseException:
            await transaction.rollback()
            raise
        else:
            await transaction.commit()
    if refusal is not None:
        raise refusal
