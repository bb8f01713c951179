"""
The role that each kind of frame needs. This table is the whole rule; a missing kind is the error.

Accounts and logins have roles; some roles include others, and an account may have several. ``worker`` and ``client`` of
a hello (``Role``) say what a peer is; these say what it may do.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final, TypeAlias

__all__ = ["ACCESS_OF", "CONTENTS", "EVERYTHING", "NOTHING", "Access", "Rights", "refusal", "rights_of"]


class Access(enum.StrEnum):
    """
    What an account may do.

    ``viewer`` sees the state of the queue, but none of the jobs' contents. ``client`` is for applications: it submits,
    waits, cancels, and has schedules. ``worker`` runs jobs, and enqueues others. ``operator`` may change everything.
    """

    VIEWER = "viewer"
    CLIENT = "client"
    WORKER = "worker"
    OPERATOR = "operator"


Rights: TypeAlias = AbstractSet[Access]

NOTHING: Final[Rights] = frozenset[Access]()
EVERYTHING: Final[Rights] = frozenset(Access)
_CLIENT: Final = frozenset({Access.CLIENT, Access.VIEWER})
_INCLUDES: Final[Mapping[Access, Rights]] = {
    Access.VIEWER: frozenset({Access.VIEWER}),
    Access.CLIENT: _CLIENT,
    Access.WORKER: _CLIENT | {Access.WORKER},
    Access.OPERATOR: _CLIENT | {Access.OPERATOR},
}
CONTENTS: Final = Access.CLIENT  # the role that may see args, results, progress and checkpoints
# Kind -> the role that it needs, for both sockets. A hello needs any role; a worker's needs `worker`.
ACCESS_OF: Final[Mapping[str, Access]] = {
    "started": Access.WORKER,
    "report": Access.WORKER,
    "heartbeat": Access.WORKER,
    "checkpoint": Access.WORKER,
    "capacity": Access.WORKER,
    "stack": Access.WORKER,
    "submit": Access.CLIENT,
    "jobs.cancel": Access.CLIENT,
    "jobs.signal": Access.CLIENT,
    "schedules.create": Access.CLIENT,
    "schedules.update": Access.CLIENT,
    "schedules.delete": Access.CLIENT,
    "schedules.pause": Access.CLIENT,
    "schedules.resume": Access.CLIENT,
    "schedules.trigger": Access.CLIENT,
    "schedules.declare": Access.CLIENT,
    "jobs.list": Access.VIEWER,
    "jobs.count": Access.VIEWER,
    "jobs.errors": Access.VIEWER,
    "jobs.find": Access.VIEWER,
    "jobs.get": Access.VIEWER,
    "jobs.parents": Access.VIEWER,
    "jobs.why": Access.VIEWER,
    "jobs.graph": Access.VIEWER,
    "limits.declare": Access.WORKER,
    "handler.parents": Access.WORKER,
    "handler.signal": Access.WORKER,
    "schedules.list": Access.VIEWER,
    "schedules.find": Access.VIEWER,
    "schedules.get": Access.VIEWER,
    "schedules.preview": Access.VIEWER,
    "dispatch.status": Access.VIEWER,
    "topics.list": Access.VIEWER,
    "topics.get": Access.VIEWER,
    "limits.list": Access.VIEWER,
    "topics.groups": Access.VIEWER,
    "workers.list": Access.VIEWER,
    "stats": Access.VIEWER,
    "status": Access.VIEWER,
    "ping": Access.VIEWER,
    "jobs.retry": Access.OPERATOR,
    "jobs.delete": Access.OPERATOR,
    "jobs.change": Access.OPERATOR,
    "jobs.stack": Access.OPERATOR,
    "dispatch.pause": Access.OPERATOR,
    "dispatch.resume": Access.OPERATOR,
    "topics.set": Access.OPERATOR,
    "topics.unset": Access.OPERATOR,
    "outbox.take": Access.OPERATOR,
    "outbox.done": Access.OPERATOR,
    "limits.set": Access.OPERATOR,
    "limits.unset": Access.OPERATOR,
    "audit.list": Access.OPERATOR,
    "workers.drain": Access.OPERATOR,
    "actors.restart": Access.OPERATOR,
    "drain": Access.OPERATOR,
    "logs": Access.OPERATOR,
}


def rights_of(given: Rights) -> Rights:
    """The roles *given*, with those that they include."""
    return frozenset[Access]().union(*(_INCLUDES[role] for role in given))


def refusal(kind: str, needed: Access, who: str, rights: Rights) -> str:
    """The message for *who*, whose *rights* lack the role for *kind*."""
    has = ", ".join(role for role in Access if role in rights) or "none"
    return f"{kind} needs the role {needed}, which {who} does not have (has: {has})"
