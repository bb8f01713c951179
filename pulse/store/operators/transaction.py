"""
What an operator does, and the note of it, in one transaction: neither is there without the other.

The statements are those of the store; only where their connection comes from is another. Functions of the schema note
what they do themselves, by the operator that the transaction names, so that SQL leaves the same notes.
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
from pulse.store.operators.policies import TopicStore
from pulse.store.operators.schedules import ScheduleStore
from pulse.store.statements import STATEMENTS
from pulse.system import peer_credentials

if TYPE_CHECKING:
    from asyncpg import Connection, Record


@dataclass(frozen=True, slots=True)
class Operator:
    """
    Who asks; None: not known.

    Attributes:
        uid: Of the process, by the kernel.
        user: The name of that, or of the credentials.
        host: Of the server that was asked.
        pid: Of the process, where this host sees it.
        behalf: The person that it names as the one who asks.
    """

    uid: int | None = None
    user: str | None = None
    host: str | None = None
    pid: int | None = None
    behalf: str | None = None

    @property
    def shown(self) -> str:
        """Who it is, in a message to it."""
        return peer_credentials.shown(self.uid, self.user)


class _SharedConnection:
    """The one connection of a transaction, lent to each statement in it."""

    def __init__(self, connection: Connection[Record]) -> None:
        self._connection = connection

    @contextlib.asynccontextmanager
    async def connection(self, deadline_s: float = STATEMENT_DEADLINE_S) -> AsyncGenerator[Connection[Record]]:
        """The same for everybody; the whole transaction has one deadline."""
        del deadline_s
        yield self._connection


class Acting(Operations):
    """
    The store, as far as operators change something by it, inside of one transaction.

    Args:
        connection: Whose transaction it is.
    """

    def __init__(self, connection: Connection[Record]) -> None:
        self._lent = _SharedConnection(connection)
        self.gate = GateStore(self._lent)
        self.schedules = ScheduleStore(self._lent)
        self.topics = TopicStore(self._lent)

    @property
    def lender(self) -> Connections:
        """The connection, for each of them in turn."""
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
        Write down what was done.

        Args:
            action: The kind of the request.
            topic: Which it is about; '' for the whole.
            schedule: Likewise.
            job: Likewise, where it is one.
            jobs: How many were changed.
            detail: What else; as JSON.
        """
        ids = [None if one is None else UUID(one) for one in (schedule, job)]
        told = None if detail is None else json.dumps(detail)
        async with self.lender.connection() as connection:
            await connection.execute(STATEMENTS["note_action"].sql, action, topic, *ids, jobs, told)


@contextlib.asynccontextmanager
async def acting(pool: Connections, operator: Operator) -> AsyncGenerator[Acting]:
    """A transaction in which *operator* does something; an error takes all of it back."""
    refusal: PulseError | None = None
    async with pool.connection() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(STATEMENTS["set_operator"].sql, json.dumps(asdict(operator)))
        try:
            yield Acting(connection)
        except PulseError as error:  # not the database's fault: its connection is good
            refusal = error
            await transaction.rollback()
        except BaseException:
            await transaction.rollback()
            raise
        else:
            await transaction.commit()
    if refusal is not None:
        raise refusal
