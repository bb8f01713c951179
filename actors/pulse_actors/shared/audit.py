"""Audit entries for requests to the supervisor, which has no database: it sends them to an actor, which writes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import msgspec
import structlog

from pulse.errors import UnavailableError
from pulse.protocol.bus import HintEvent, OperatorAction
from pulse.store.operators.transaction import Operator
from pulse.store.store import Store
from pulse.system.sockets.peer_credentials import user_name
from pulse_actors.runtime.bus import Hint

log = structlog.get_logger()


def operator_of(uid: int, pid: int, host: str) -> Operator:
    """The operator, for people; the name is from this host's accounts."""
    return Operator(uid, user_name(uid), host, pid=pid or None)


async def note_asked(store: Store, host: str, inbox: Iterable[Hint]) -> None:
    """Write an audit entry for the supervisor; while the database is away only the log has it."""
    for hint in inbox:
        if hint.event != HintEvent.OPERATOR:
            continue
        did = msgspec.convert(hint.data, OperatorAction)
        operator = replace(operator_of(did.uid, did.pid, host), behalf=did.behalf)
        try:
            async with store.acting(operator) as acting:
                await acting.note(did.action, detail=did.detail)
        except UnavailableError as error:
            log.warning("action_not_noted", action=did.action, uid=did.uid, detail=did.detail, error=error.message)
