"""
Which jobs, schedules and workers are meant: by a whole id, by the first characters of one, by a schedule's key, or by
a worker's name or pid.

Topics and handlers may have any name: where nobody knows one, a warning names those that are similar.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar
from uuid import UUID

import click

from pulse.cli.server import current_server
from pulse.common.text import cut, printable, shell_word, similar_names
from pulse.errors import BadRequestError, NobodyAnswersError, NotFoundError, PulseError
from pulse.protocol.answers import JobPageAnswer, Worker, WorkerList, read
from pulse.protocol.schedules import SchedulePageAnswer
from pulse.routes import Queue

T = TypeVar("T")
IdWord: TypeAlias = bytes | str  # a whole id; or else what a person typed for one
_MOST_AT_ONCE: Final = 100  # prefixes in a request
_MOST_SHOWN: Final = 10  # of the things that a word may mean
_NAME_WIDTH: Final = 30
_MOST_TOPICS: Final = 1000  # that `stats` tells by themselves
_ASIDE_S: Final = 2.0  # a warning is worth no longer wait
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
    if words:
        server = current_server()
        if server.routes is not None and server.queue is None:
            server.turn_to(_queue_with(words, server.routes.queues))
    prefixes = [word for word in dict.fromkeys(words) if isinstance(word, str)]
    meant = dict[IdWord, bytes]()
    for start in range(0, len(prefixes), _MOST_AT_ONCE):
        batch = prefixes[start : start + _MOST_AT_ONCE]
        answer = current_server().ask("jobs.find", {"prefixes": batch}, repeatable=True)
        found = read(JobPageAnswer, answer).jobs
        for prefix in batch:
            alike = [one for one in found if one.id.hex().startswith(prefix)]
            there = {one.id: _id_line(one.id, f"{one.status}  {_shown(one.name)}") for one in alike}
            if not there:
                raise NotFoundError(f"no job has an id that begins with {prefix}")
            meant[prefix] = _only_one(prefix, "jobs", there.items())
    return [word if isinstance(word, bytes) else meant[word] for word in words]


def _queue_with(words: Sequence[IdWord], queues: Mapping[str, Queue]) -> Queue:
    """
    The queue with the jobs that all *words* mean.

    Raises:
        NotFoundError: No queue has one of them.
        NobodyAnswersError: None that answers has it, or it may mean another one in a queue that does not answer.
        BadRequestError: Jobs of several queues are meant, or may be.
    """
    digits = {one.hex() if isinstance(one, bytes) else one: isinstance(one, bytes) for one in words}
    found: dict[str, list[str]] = {one: [] for one in digits}
    silent: dict[str, str] = {}
    for name, queue in queues.items():
        try:
            ids = _ids_in(queue, list(digits))
        except PulseError as error:
            silent[name] = f"; queue {name}: {error.message}"
            continue
        for one, homes in found.items():
            if any(job_id.startswith(one) for job_id in ids):
                homes.append(name)
    for one, homes in found.items():
        if len(homes) > 1:
            raise BadRequestError(f"{one} may mean jobs of several queues; name one with --queue: {', '.join(homes)}")
        if silent and not (homes and digits[one]):
            what = (
                f"have no job {one}"
                if not homes
                else f"have one job {one}, and the others may, too: name one with --queue"
            )
            raise NobodyAnswersError(f"the queues that answer {what}{''.join(silent.values())}")
        if not homes:
            raise NotFoundError(f"no job in the queues {', '.join(queues)} has an id that begins with {one}")
    meant = {homes[0]: one for one, homes in found.items()}
    if len(meant) > 1:
        told = ", ".join(f"{one} of queue {name}" for name, one in meant.items())
        raise BadRequestError(f"jobs of several queues are meant: {told}; jobs of one queue are allowed")
    return queues[next(iter(meant))]


def _ids_in(queue: Queue, prefixes: Sequence[str]) -> list[str]:
    """The ids of the jobs in *queue* that begin with one of *prefixes*."""
    found: list[str] = []
    with current_server().client(queue=queue) as client:
        for start in range(0, len(prefixes), _MOST_AT_ONCE):
            body = {"prefixes": prefixes[start : start + _MOST_AT_ONCE]}
            answer = client.request("jobs.find", body, repeatable=True)
            found += [one.id.hex() for one in read(JobPageAnswer, answer).jobs]
    return found


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
    return _only_one(word, "schedules", ((one.id, _id_line(one.id, _shown(one.key or one.name))) for one in found))


def worker_of(word: str) -> Worker:
    """
    The connected worker that *word* means: a whole name, identity or pid goes before the beginning of one.

    Raises:
        NotFoundError: It means none; the message names similar ones.
        BadRequestError: It may mean several; the message lists them.
    """
    known = read(WorkerList, current_server().ask("workers.list", repeatable=True)).workers
    whole = [one for one in known if word in {one.name, one.identity, str(one.pid or "")}]
    meant = whole or [one for one in known if one.name.startswith(word) or one.identity.startswith(word)]
    if not meant:
        alike = similar_names(word, [one.name for one in known])
        more = f"; similar names: {', '.join(map(printable, alike))}" if alike else "; pulse ctl workers lists them"
        raise NotFoundError(
            f"no worker here has the name or pid {word!r:.100}, or a name or identity that begins so{more}"
        )
    return _only_one(word, "workers", ((one, _line_of(one)) for one in meant))


def _line_of(worker: Worker) -> str:
    where = [*([] if worker.pid is None else [f"pid {worker.pid}"]), _shown(worker.host or "")]
    return "  ".join([printable(worker.name or worker.identity), *where]).rstrip()


def _only_one(word: str, things: str, found: Iterable[tuple[T, str]]) -> T:
    there = list(found)
    if len(there) == 1:
        return there[0][0]
    lines = [f"  {line}" for _, line in there[:_MOST_SHOWN]]
    more = ["  and more"] if len(there) > _MOST_SHOWN else []
    raise BadRequestError("\n".join([f"{word} may mean several {things}; more characters tell which:", *lines, *more]))


def _id_line(identity: bytes, what: str) -> str:
    return f"{UUID(bytes=identity)}  {what}"


def _shown(name: str) -> str:
    return cut(printable(name), _NAME_WIDTH)


def warn_of_topic(topic: str, *, if_similar: bool = False) -> None:
    """
    Warn if no job and no worker has the topic: its name may be misspelled.

    Args:
        topic: The name.
        if_similar: Only if another topic has a similar name: a new topic is nothing to warn of.
    """
    from pulse.protocol.stats import Stats

    with contextlib.suppress(PulseError):
        body = {"topics": _MOST_TOPICS, "history_s": 0}
        found = read(Stats, current_server().ask("stats", body, repeatable=True, timeout_s=_ASIDE_S))
        if not found.exact or found.others.topics or any(one.topic == topic for one in found.topics):
            return
        alike = similar_names(topic, [one.topic for one in found.topics])
        if alike or not if_similar:
            who = f"no job waits or runs in topic {shell_word(topic)}, and no worker here serves it"
            _warn(who + (f"; similar topics: {', '.join(map(shell_word, alike))}" if alike else ""))


def warn_of_limit(name: str) -> None:
    """Warn if there is no such limit: its name may be misspelled, or it is still to be set."""
    from pulse.protocol.limits import LimitPageAnswer

    with contextlib.suppress(PulseError):
        body = {"name": name, "limit": 1}
        found = read(LimitPageAnswer, current_server().ask("limits.list", body, repeatable=True, timeout_s=_ASIDE_S))
        if not found.limits:
            _warn(f"there is no limit {shell_word(name)} yet: until there is, nothing limits the topic")


def warn_of_handler(name: str) -> None:
    """Warn if no connected worker has a handler of that name, and one has a handler of a similar name."""
    with contextlib.suppress(PulseError):
        answer = current_server().ask("workers.list", repeatable=True, timeout_s=_ASIDE_S)
        names = {one for worker in read(WorkerList, answer).workers for one in worker.names}
        alike = similar_names(name, sorted(names))
        if name not in names and alike:
            _warn(f"no worker here has a handler {shell_word(name)}; similar ones: {', '.join(map(shell_word, alike))}")


def _warn(text: str) -> None:
    click.echo(f"pulse: {text}", err=True)


def _alike(word: str) -> str:
    answer = current_server().ask("schedules.list", {"limit": _MOST_KEYS}, repeatable=True)
    keys = [one.key for one in read(SchedulePageAnswer, answer).schedules if one.key is not None]
    alike = similar_names(word, keys)
    return f"; similar keys: {', '.join(map(printable, alike))}" if alike else ""
