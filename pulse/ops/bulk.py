"""
Changes of many jobs: which there are, the loops that find and change them, and what takes them back.

Command line and dashboard run the same loops: coroutines that are given the function which asks the server. That of the
dashboard waits in its event loop; that of the command line blocks, and ``run_blocking`` runs the loop to its end. The
function also decides about time limits, and whether it asks again after an error.

Each change is guarded by the job's status on the server, so a loop that is slow or stopped does no harm: what is done
is done, and what happened to a job meanwhile is not undone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from pulse.protocol.answers import ChangedAnswer, JobPageAnswer, read

MAX_MATCHING_CHARACTERS: Final = 1000  # of ``matching``, the words of the audit for what was chosen
ENDED: Final = ("COMPLETED", "DEAD_LETTERED", "CANCELED")
WAITING: Final = ("PENDING", "RETRYING")
ACTIVE: Final = (*WAITING, "RUNNING")

Body: TypeAlias = Mapping[str, object]
Ask: TypeAlias = Callable[[str, Body], Awaitable[Body]]  # the kind of a request and its body -> the answer
Former: TypeAlias = "tuple[str, int] | None"  # topic and priority that a job had before; None: they were not changed
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BulkAction:
    """
    One thing that is done to many jobs.

    Attributes:
        verb: As in ``cancel 3 jobs``.
        done: As in ``3 jobs canceled``.
        statuses: Of jobs that it can be done to.
        by_default: Of jobs that are looked for, unless somebody says which; fewer, where all would be a surprise.
        reverse: The verb of the action that takes it back; '': none does.
        is_destructive: Whether its button warns.
    """

    verb: str
    done: str
    statuses: Sequence[str]
    by_default: Sequence[str]
    reverse: str = ""
    is_destructive: bool = True

    @property
    def request(self) -> str:
        """The kind of the request that does it."""
        return f"jobs.{self.verb}"


ACTIONS: Final[Mapping[str, BulkAction]] = {
    "cancel": BulkAction("cancel", "canceled", ACTIVE, by_default=ACTIVE, reverse="retry"),
    "retry": BulkAction(
        "retry", "retried", ENDED, by_default=("DEAD_LETTERED", "CANCELED"), reverse="cancel", is_destructive=False
    ),
    "change": BulkAction("change", "changed", WAITING, by_default=WAITING, reverse="change", is_destructive=False),
    "delete": BulkAction("delete", "deleted", ENDED, by_default=ENDED),
}


async def job_pages(ask: Ask, filters: Body, limit: int) -> AsyncIterator[JobPageAnswer]:
    """
    The jobs that *filters* choose, from the newest on, page by page; what is submitted meanwhile is not met.

    Args:
        ask: Asks the server.
        filters: Of ``jobs.list``.
        limit: Jobs of a page.
    """
    after: str | None = None
    while True:
        place = {} if after is None else {"after": after}
        page = read(JobPageAnswer, await ask("jobs.list", {**filters, "limit": limit, **place}))
        yield page
        after = page.next
        if after is None:
            return


async def change_jobs(
    ask: Ask, action: BulkAction, batches: Iterable[Sequence[bytes]], more: Body, keep: Callable[[ChangedAnswer], None]
) -> None:
    """
    Do *action* to jobs, batch by batch.

    Args:
        ask: Asks the server.
        action: What is done.
        batches: Ids, so many for each request.
        more: What the request says beside the ids.
        keep: Is called with each answer.
    """
    for ids in batches:
        keep(read(ChangedAnswer, await ask(action.request, {**more, "ids": list(ids)})))


def batches(ids: Sequence[bytes], size: int) -> Iterator[Sequence[bytes]]:
    """*ids*, so many at a time."""
    return (ids[start : start + size] for start in range(0, len(ids), size))


def former_of(action: BulkAction, changed: ChangedAnswer) -> dict[Former, list[bytes]]:
    """Ids of the jobs that *action* has changed, by where they were before; {} where nothing takes it back."""
    if not action.reverse:
        return {}
    if action.reverse != action.verb:
        return {None: changed.done} if changed.done else {}
    groups: dict[Former, list[bytes]] = {}
    for job_id, topic, priority in changed.before:
        groups.setdefault((topic, priority), []).append(job_id)
    return groups


def as_body(former: Former) -> dict[str, object]:
    """What the request says that puts jobs back to where they were."""
    return {} if former is None else {"topic": former[0], "priority": former[1]}


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """
    Run a loop of this module whose *ask* blocks, without an event loop.

    Returns:
        What it returns.

    Raises:
        RuntimeError: It waits for something else.
    """
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError("the coroutine waits for an event loop, and there is none")
