"""What operators asked of the supervisor, which has no database: it tells an actor, and that writes it down."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final, cast

import structlog

from pulse.errors import UnavailableError
from pulse.store.operators.transaction import Operator
from pulse.store.store import Store
from pulse.system.peer_credentials import user_name
from pulse_actors.runtime.bus import Hint

ASKED: Final = (
    "operator"  # hint: ``action``, ``uid``, ``pid``, ``behalf`` and ``detail`` of a request that was carried out
)

log = structlog.get_logger()


def operator_of(uid: int, pid: int, host: str) -> Operator:
    """Who this is, for people; the name is that of this host's accounts."""
    return Operator(uid, user_name(uid), host, pid or None)


async def note_asked(store: Store, host: str, inbox: Iterable[Hint]) -> None:
    """Write down what the supervisor tells of; while the database is away that is left to the log."""
    for hint in inbox:
        if hint.event != ASKED:
            continue
        action, detail = str(hint.data.get("action")), hint.data.get("detail")
        uid, pid = int(str(hint.data.get("uid"))), int(str(hint.data.get("pid")))
        behalf = hint.data.get("behalf")
        operator = replace(operator_of(uid, pid, host), behalf=behalf if isinstance(behalf, str) else None)
        try:
            async with store.acting(operator) as acting:
                await acting.note(
                    action, detail=cast("dict[str, object]", detail) if isinstance(detail, dict) else None
                )
        except UnavailableError as error:
            log.warning("action_not_noted", action=action, uid=uid, detail=detail, error=error.message)
