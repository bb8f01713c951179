"""
Changes of many jobs: the actions, the loops that find and change jobs, and how to take a change back.

Command line and dashboard run the same loops: coroutines with a parameter that sends requests to the server. The
dashboard's awaits in its event loop; the command line's blocks, and ``run_blocking`` runs the loop to its end. It also
decides about time limits and retries.

The server checks the job's status in each change, so a loop that is slow or stopped does no harm: finished changes
stay, and jobs that changed meanwhile are left alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from pulse.protocol.answers import ChangedAnswer, JobInfo, JobPageAnswer, read

MAX_MATCHING_CHARACTERS: Final = 1000  # of ``matching``, the filter in the audit
_FOUND_AT_ONCE: Final = 100  # ids in a request
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
    A change of many jobs.

    Attributes:
        verb: As in ``cancel 3 jobs``.
        done: As in ``3 jobs canceled``.
        statuses: Statuses in which it is possible.
        by_default: Statuses to search without a filter; fewer than all where those would be a surprise.
        reverse: The verb of the action that takes it back; '': there is none.
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
    The jobs that match *filters*, from the newest on, page by page, without jobs submitted meanwhile.

    Args:
        ask: Sends a request to the server.
        filters: Filters of ``jobs.list``.
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


async def jobs_with_ids(ask: Ask, ids: Sequence[bytes]) -> list[JobInfo]:
    """The jobs with these *ids*, in brief; those that do not exist are left out."""
    found: list[JobInfo] = []
    for some in batches(ids, _FOUND_AT_ONCE):
        found += read(JobPageAnswer, await ask("jobs.find", {"prefixes": [one.hex() for one in some]})).jobs
    return found


async def change_jobs(
    ask: Ask, action: BulkAction, batches: Iterable[Sequence[bytes]], more: Body, keep: Callable[[ChangedAnswer], None]
) -> None:
    """
    Apply *action* to jobs, batch by batch.

    Args:
        ask: Sends a request to the server.
        action: The change.
        batches: Ids, one batch for each request.
        more: Fields of the request beside the ids; ``matching``: a filter has found them.
        keep: Called with each answer.
    """
    for ids in batches:
        changed = read(ChangedAnswer, await ask(action.request, {**more, "ids": list(ids)}))
        keep(await _with_children(ask, changed) if action.verb == "cancel" and "matching" in more else changed)


async def _with_children(ask: Ask, changed: ChangedAnswer) -> ChangedAnswer:
    """*changed*; the jobs that a batch before has canceled, since they waited for some of its jobs, are no refusals."""
    refused = [job_id for job_id, code in changed.refused if code == "invalid_transition"]
    there = await jobs_with_ids(ask, refused)
    children = {job.id for job in there if job.status == "CANCELED" and job.waiting_on is not None}
    left = [one for one in changed.refused if one[0] not in children]
    done = [*changed.done, *(job_id for job_id in refused if job_id in children)]
    return ChangedAnswer(done, left, before=changed.before, completed=changed.completed)


def batches(ids: Sequence[bytes], size: int) -> Iterator[Sequence[bytes]]:
    """*ids*, so many at a time."""
    return (ids[start : start + size] for start in range(0, len(ids), size))


def former_of(action: BulkAction, changed: ChangedAnswer) -> dict[Former, list[bytes]]:
    """Ids of the changed jobs, by topic and priority before; without those that *action* cannot be taken back for."""
    if not action.reverse:
        return {}
    if action.reverse != action.verb:
        again = frozenset(changed.completed)  # a completed job that runs again: no cancel makes it completed
        ids = [job_id for job_id in changed.done if job_id not in again]
        return {None: ids} if ids else {}
    groups: dict[Former, list[bytes]] = {}
    for job_id, topic, priority in changed.before:
        groups.setdefault((topic, priority), []).append(job_id)
    return groups


def as_body(former: Former) -> dict[str, object]:
    """The fields of the request that moves jobs back."""
    return {} if former is None else {"topic": former[0], "priority": former[1]}


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """
    Run a loop of this module whose *ask* blocks, without an event loop.

    Returns:
        Its result.

    Raises:
        RuntimeError: It awaits something else.
    """
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError("the coroutine waits for an event loop, and there is none")
