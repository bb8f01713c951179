"""What operators asked of the supervisor, which has no database: it tells an actor, and that writes it down."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import msgspec
import structlog

from pulse.errors import UnavailableError
from pulse.protocol.bus import HintEvent, OperatorAction
from pulse.store.operators.transaction import Operator
from pulse.store.store import Store
from pulse.system.peer_credentials import user_name
from pulse_actors.runtime.bus import Hint

log = structlog.get_logger()


def operator_of(uid: int, pid: int, host: str) -> Operator:
    """Who this is, for people; the name is that of this host's accounts."""
    return Operator(uid, user_name(uid), host, pid=pid or None)


async def note_asked(store: Store, host: str, inbox: Iterable[Hint]) -> None:
    """Write down what the supervisor tells of; while the database is away that is left to the log."""
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
