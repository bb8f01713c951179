"""Turns rows into columns, the array arguments of statements; and what they return into rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from asyncpg.pgproto.pgproto import UUID

from pulse.common.ids import ID_BYTES
from pulse.store.rows import Claim, Wake
from pulse.store.statements import STATEMENTS

if TYPE_CHECKING:
    from datetime import datetime

    from asyncpg import Record

    from pulse.protocol import SubmittedJob
    from pulse.store.rows import Completion, Ending, Fence, Renewal

T = TypeVar("T")
MOST_KINDS: Final = 100  # of the jobs of one submit: names, and topics of their own, that are looked up once for all
MAX_ERROR_CHARS: Final = 2000  # of the database's message about a job: enough to recognise it


def uuids(ids: Sequence[bytes]) -> list[UUID]:
    """Ids in the form that asyncpg encodes fastest."""
    return [UUID(one) for one in ids]


def pair_columns(pairs: Sequence[tuple[bytes, int]]) -> tuple[str, str]:
    """Ids and attempts as the text of arrays, which takes half as long to write and to parse as real arrays."""
    return _ids_text([pair[0] for pair in pairs]), _text([str(pair[1]) for pair in pairs])


def _ids_text(ids: Iterable[bytes]) -> str:
    return f"{{{b''.join(ids).hex(',', ID_BYTES)}}}"


def _text(elements: Iterable[str]) -> str:
    return f"{{{','.join(elements)}}}"


def fence_columns(fences: Sequence[Fence | Completion | Ending | Renewal]) -> tuple[str, str, str]:
    """The fence of each: id, attempt, worker, as in ``pair_columns``."""
    workers = [fence.worker for fence in fences]
    quoted = {worker: _quoted(worker) for worker in {*workers}}
    ids, attempts = _ids_text([fence.id for fence in fences]), _text([str(fence.attempt) for fence in fences])
    return ids, attempts, _text(map(quoted.__getitem__, workers))


def _quoted(text: str) -> str:
    """An element of an array's text."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def submitted_rows(rows: Iterable[Record], seats: Mapping[str, int]) -> tuple[list[Claim], list[Wake]]:
    """What ``submit_and_claim`` has handed out, to which of the workers in *seats*, and what waits: its rows."""
    claims, woken = list[Claim](), list[Wake]()
    for row in rows:
        attempts = row["attempts"]
        if attempts:
            values: tuple[Any, ...] = *row[:8], seats[row["worker"]], attempts - 1, 0, *[None] * 3, row["traceparent"]
            claims.append(Claim(*values))
        else:
            woken.append(Wake(row["topic"], row["priority"], row["due_at"], jobs=1, group_key=row["group_key"]))
    return claims, woken


def completion_columns(completions: Sequence[Completion]) -> tuple[Sequence[object] | str, ...]:
    """The fence of each, its result and its progress."""
    texts = [one.result for one in completions], [one.progress for one in completions]
    return *fence_columns(completions), *map(short, texts)


def ending_columns(endings: Sequence[Ending]) -> tuple[Sequence[object] | str, ...]:
    """The fence of each, and how it ended."""
    return (
        *fence_columns(endings),
        [ending.kind.value for ending in endings],
        [ending.error for ending in endings],
        [ending.delay_s for ending in endings],
        [ending.exit_code for ending in endings],
        [ending.progress for ending in endings],
        [ending.stack for ending in endings],
        [ending.cpu_s for ending in endings],
        [ending.peak_rss_bytes for ending in endings],
        short([ending.awaits and ending.awaits[0] for ending in endings]),
        short([ending.awaits and ending.awaits[1] for ending in endings]),
    )


def level_columns(levels: Sequence[tuple[str, int, float | None]] | None) -> Sequence[Sequence[object] | None]:
    """Topic, priority and start time of each level; None: all levels."""
    return [None] * 3 if levels is None else [[level[place] for level in levels] for place in range(3)]


def short(values: list[T | None]) -> list[T | None]:
    """An empty array for one of NULLs only: the server reads missing elements as NULL, and each element costs time."""
    return [] if values.count(None) == len(values) else values


def label_columns(jobs: Sequence[SubmittedJob]) -> tuple[list[str | None], list[str | None]]:
    """The span in which each job was submitted, and its group."""
    return short([job.traceparent for job in jobs]), short([job.group_key for job in jobs])


def job_columns(jobs: Sequence[SubmittedJob], *, due: bool = False) -> tuple[Sequence[object], ...]:
    """The first arguments of the statements that insert; *due*: without the times at which jobs are due."""
    return _columns(jobs, [job.name for job in jobs], [job.topic for job in jobs], due=due)


def submit_call(jobs: Sequence[SubmittedJob], now: datetime | None) -> tuple[Any, ...]:
    """The statement that inserts jobs that have no keys, and its arguments."""
    numbers: dict[tuple[str, str | None], int] = {}
    kinds = [str(numbers.setdefault((job.name, job.topic), len(numbers) + 1)) for job in jobs]
    if len(numbers) > MOST_KINDS:
        return STATEMENTS["submit_jobs"].sql, *job_columns(jobs), *label_columns(jobs), now
    columns = _columns(jobs, [name for name, _ in numbers], [topic for _, topic in numbers], due=False)
    return STATEMENTS["submit_alike"].sql, *columns, *label_columns(jobs), now, _text(kinds)


def _columns(
    jobs: Sequence[SubmittedJob], names: list[str], topics: list[str | None], *, due: bool
) -> tuple[Sequence[object], ...]:
    times = () if due else (short([job.run_at for job in jobs]), short([job.delay_s for job in jobs]))
    return (
        _text(["NULL" if job.id is None else job.id.hex() for job in jobs]),
        names,
        [job.args for job in jobs],
        short(topics),
        short([job.priority or None for job in jobs]),
        *times,
        short([job.max_attempts for job in jobs]),
        short([job.timeout_s for job in jobs]),
        short([job.expires_at for job in jobs]),
        short([job.expires_in_s for job in jobs]),
    )
