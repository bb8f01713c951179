"""How rows are handed to statements: as columns, each an argument."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from asyncpg.pgproto.pgproto import UUID

if TYPE_CHECKING:
    from pulse.protocol import SubmittedJob
    from pulse.store.rows import Completion, Ending, Fence, Renewal

T = TypeVar("T")
MAX_ERROR_CHARS: Final = 2000  # of what the database said of a job: enough to know it again


def uuids(ids: Sequence[bytes]) -> list[UUID]:
    """Ids as they are written fastest."""
    return [UUID(one) for one in ids]


def pair_columns(fences: Sequence[tuple[bytes, int] | Fence | Completion | Ending | Renewal]) -> tuple[str, str]:
    """Ids and attempts as the text of arrays: to write that, and to read it there, takes half as long as real ones."""
    ids, attempts = [fence[0].hex() for fence in fences], [str(fence[1]) for fence in fences]
    return f"{{{','.join(ids)}}}", f"{{{','.join(attempts)}}}"


def fence_columns(fences: Sequence[Fence | Completion | Ending | Renewal]) -> tuple[str, str, list[str]]:
    """The fence of each: id, attempt, worker."""
    return *pair_columns(fences), [fence[2] for fence in fences]


def level_columns(levels: Sequence[tuple[str, int, float | None]] | None) -> Sequence[Sequence[object] | None]:
    """Topic, priority and the time from which on to look of each; None: of all that there are."""
    return [None] * 3 if levels is None else [[level[place] for level in levels] for place in range(3)]


def short(values: list[T | None]) -> list[T | None]:
    """Nothing for nothing but NULLs, which is what the server takes for missing elements: each takes its time."""
    return [] if values.count(None) == len(values) else values


def trace_column(jobs: Sequence[SubmittedJob]) -> list[str | None]:
    """Which spans they were submitted in."""
    return short([job.traceparent for job in jobs])


def job_columns(jobs: Sequence[SubmittedJob], *, due: bool = False) -> tuple[Sequence[object], ...]:
    """The first arguments of the statements that insert; *due*: without the times at which jobs are due."""
    times = () if due else (short([job.run_at for job in jobs]), short([job.delay_s for job in jobs]))
    return (
        [None if job.id is None else UUID(job.id) for job in jobs],
        [job.name for job in jobs],
        [job.args for job in jobs],
        short([job.topic for job in jobs]),
        short([job.priority or None for job in jobs]),
        *times,
        short([job.max_attempts for job in jobs]),
        short([job.timeout_s for job in jobs]),
        short([job.expires_at for job in jobs]),
        short([job.expires_in_s for job in jobs]),
    )
