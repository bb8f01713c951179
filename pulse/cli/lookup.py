"""Which jobs and schedules are meant: by a whole id, by the first characters of one, or by a schedule's key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias
from uuid import UUID

from pulse.cli.server import current_server
from pulse.common.text import cut, printable, similar_names
from pulse.errors import BadRequestError, NotFoundError
from pulse.protocol.answers import JobPageAnswer, SchedulePageAnswer, read

IdWord: TypeAlias = bytes | str  # a whole id; or else what a person typed for one
_MOST_AT_ONCE: Final = 100  # prefixes in a request
_MOST_SHOWN: Final = 10  # of the things that a word may mean
_NAME_WIDTH: Final = 30
_MOST_KEYS: Final = 1000  # among which similar ones are looked for


def job_of(word: IdWord) -> bytes:
    """The id of the job that *word* means; raises as ``jobs_of``."""
    return jobs_of([word])[0]


def jobs_of(words: Sequence[IdWord]) -> list[bytes]:
    """
    The ids of the jobs that *words* mean.

    Raises:
        NotFoundError: One of them means no job.
        BadRequestError: One of them may mean several; the message lists them.
    """
    prefixes = [word for word in dict.fromkeys(words) if isinstance(word, str)]
    meant = dict[IdWord, bytes]()
    for start in range(0, len(prefixes), _MOST_AT_ONCE):
        batch = prefixes[start : start + _MOST_AT_ONCE]
        answer = current_server().ask("jobs.find", {"prefixes": batch}, repeatable=True)
        found = read(JobPageAnswer, answer).jobs
        for prefix in batch:
            there = {one.id: f"{one.status}  {_shown(one.name)}" for one in found if one.id.hex().startswith(prefix)}
            if not there:
                raise NotFoundError(f"no job has an id that begins with {prefix}")
            meant[prefix] = _only_one(prefix, "jobs", there.items())
    return [word if isinstance(word, bytes) else meant[word] for word in words]


def schedule_of(word: IdWord) -> bytes:
    """
    The id of the schedule that *word* means.

    Raises:
        NotFoundError: It means none; the message names keys that are nearly the same.
        BadRequestError: It may mean several; the message lists them.
    """
    if isinstance(word, bytes):
        return word
    answer = current_server().ask("schedules.find", {"words": [word]}, repeatable=True)
    found = read(SchedulePageAnswer, answer).schedules
    if not found:
        raise NotFoundError(f"no schedule has the key {word!r:.100}, or an id that begins so{_alike(word)}")
    return _only_one(word, "schedules", ((one.id, _shown(one.key or one.name)) for one in found))


def _only_one(word: str, things: str, found: Iterable[tuple[bytes, str]]) -> bytes:
    there = list(found)
    if len(there) == 1:
        return there[0][0]
    lines = [f"  {UUID(bytes=identity)}  {what}" for identity, what in there[:_MOST_SHOWN]]
    more = ["  and more"] if len(there) > _MOST_SHOWN else []
    raise BadRequestError("\n".join([f"{word} may mean several {things}; more characters tell which:", *lines, *more]))


def _shown(name: str) -> str:
    return cut(printable(name), _NAME_WIDTH)


def _alike(word: str) -> str:
    answer = current_server().ask("schedules.list", {"limit": _MOST_KEYS}, repeatable=True)
    keys = [one.key for one in read(SchedulePageAnswer, answer).schedules if one.key is not None]
    alike = similar_names(word, keys)
    return f"; similar keys: {', '.join(map(printable, alike))}" if alike else ""
