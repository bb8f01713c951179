"""
Who may do what: each kind of frame needs one role. This table is the whole rule; a kind that is missing is the error.

A role of its own is what an account or a login is given; some roles include others, and an account may have several.
``worker`` and ``client`` of a hello (``Role``) say what a peer is; these say what it may.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final, TypeAlias

__all__ = ["ACCESS_OF", "CONTENTS", "EVERYTHING", "NOTHING", "Access", "Rights", "refusal", "rights_of"]


class Access(enum.StrEnum):
    """
    What somebody may do.

    ``viewer`` sees how the queue is doing, but none of the jobs' contents. ``client`` is what an application is: it
    submits, waits, cancels, and has schedules. ``worker`` runs jobs, and enqueues others. ``operator`` is who is woken
    at night: it changes whatever can be changed.
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
CONTENTS: Final = Access.CLIENT  # what it takes to see args, results, progress and checkpoints
# Kind -> the role that it takes, of both sockets. A hello takes any role; one of a worker takes `worker`.
ACCESS_OF: Final[Mapping[str, Access]] = {
    "started": Access.WORKER,
    "report": Access.WORKER,
    "heartbeat": Access.WORKER,
    "checkpoint": Access.WORKER,
    "capacity": Access.WORKER,
    "stack": Access.WORKER,
    "submit": Access.CLIENT,
    "jobs.cancel": Access.CLIENT,
    "schedules.create": Access.CLIENT,
    "schedules.update": Access.CLIENT,
    "schedules.delete": Access.CLIENT,
    "schedules.pause": Access.CLIENT,
    "schedules.resume": Access.CLIENT,
    "schedules.trigger": Access.CLIENT,
    "schedules.declare": Access.CLIENT,
    "jobs.list": Access.VIEWER,
    "jobs.get": Access.VIEWER,
    "jobs.why": Access.VIEWER,
    "schedules.list": Access.VIEWER,
    "schedules.get": Access.VIEWER,
    "schedules.preview": Access.VIEWER,
    "dispatch.status": Access.VIEWER,
    "topics.list": Access.VIEWER,
    "topics.get": Access.VIEWER,
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
    "audit.list": Access.OPERATOR,
    "actors.restart": Access.OPERATOR,
    "drain": Access.OPERATOR,
    "logs": Access.OPERATOR,
}


def rights_of(given: Rights) -> Rights:
    """What the roles *given* amount to, with those that they include."""
    return frozenset[Access]().union(*(_INCLUDES[role] for role in given))


def refusal(kind: str, needed: Access, who: str, rights: Rights) -> str:
    """The message for *who*, whose *rights* lack what *kind* takes."""
    has = ", ".join(role for role in Access if role in rights) or "none"
    return f"{kind} needs the role {needed}, which {who} does not have (has: {has})"
