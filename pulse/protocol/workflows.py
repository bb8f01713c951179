"""Answers about jobs that wait for other jobs or for signals, and about the ends of jobs."""

from __future__ import annotations

from msgspec import Struct

from pulse.protocol.fields import Id


class RelatedJobInfo(Struct, frozen=True):
    """A job that another one waits for, or that waits for it; ``name`` None: it was deleted."""

    id: Id
    name: str | None = None
    status: str | None = None
    on_failure: str = "cancel"
    is_over: bool = False


class SignalInfo(Struct, frozen=True):
    """A signal that was sent to a job; ``payload``: JSON text, None for null or if it is hidden."""

    signal: str = ""
    key: str = ""
    payload: str | None = None
    sent_at: float = 0.0


class NextSignalInfo(Struct, frozen=True):
    """The signal that a handler gets next, its ``id`` and ``payload`` (JSON text)."""

    id: int
    sent_at: float
    payload: str | None = None


class NextSignalAnswer(Struct, frozen=True):
    """
    The answer to handler.signal.

    ``sent``: how many signals its job has had; ``is_over``: the last attempt ended with that wait, and its time has
    passed; ``now``: by the database's clock.
    """

    sent: int
    now: float
    is_over: bool = False
    signal: NextSignalInfo | None = None


class SignalAnswer(Struct, frozen=True):
    """The answer to jobs.signal; ``new``: it was not sent before."""

    new: bool = True


class JobEnd(Struct, frozen=True):
    """
    How a job has ended.

    ``ended_at``: microseconds since 1970: with ``job`` it names the end. ``result``: JSON text; if it is too large it
    is left out, and ``result_omitted`` says so.
    """

    job: Id
    ended_at: int
    attempt: int
    status: str
    topic: str
    name: str
    traceparent: str | None = None
    result: str | None = None
    result_omitted: bool = False
    last_error: str | None = None


class OutboxAnswer(Struct, frozen=True):
    """The answer to outbox.take: the oldest first."""

    ends: list[JobEnd] = []


class OutboxDoneAnswer(Struct, frozen=True):
    """The answer to outbox.done; ``gone``: how many of them were still there."""

    gone: int = 0


class GraphNode(Struct, frozen=True):
    """A job of a graph; ``name`` None: it was deleted."""

    id: Id
    name: str | None = None
    status: str | None = None


class JobGraph(Struct, frozen=True):
    """
    The jobs that dependencies link with one, which is the first of them.

    Attributes:
        jobs: Each of them.
        edges: Dependencies: places in ``jobs`` of the one that is waited for, and of the one that waits.
        is_all: Whether these are all.
    """

    jobs: list[GraphNode] = []
    edges: list[tuple[int, int]] = []
    is_all: bool = True
