"""Finds jobs by handler and arguments; an empty result says what was submitted instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar, cast

from pulse.app.call import Call, HandlerRef
from pulse.app.handler import name_of
from pulse.common import json_text
from pulse.common.json_text import JsonValue
from pulse.errors import BadRequestError
from pulse.job import Job

__all__ = ["SubmittedJobs", "find_submitted", "told"]

JobT = TypeVar("JobT", bound=Job)
_MAX_SHOWN: Final = 20
_MAX_VALUE: Final = 60  # characters of one argument


class SubmittedJobs(list[JobT]):
    """
    The jobs that match, the oldest first. Without any, it is printed as what there is instead.

    Example:
        ``assert pulse_inline.submitted("resize", path="a.png")``
    """

    def __init__(self, found: Iterable[JobT], wanted: str, others: Iterable[Job]) -> None:
        super().__init__(found)
        self._wanted = wanted
        self._others = tuple(others)

    def __repr__(self) -> str:
        if self:
            return f"[{', '.join(map(_in_words, self))}]"
        if not self._others:
            return f"<no {self._wanted}: nothing was submitted>"
        return f"<no {self._wanted}, but {', '.join(map(_in_words, self._others[-_MAX_SHOWN:]))}>"


def find_submitted(jobs: Iterable[JobT], handler: HandlerRef | None, args: Mapping[str, object]) -> SubmittedJobs[JobT]:
    """
    Those of *jobs* that call *handler* with at least these *args*.

    Args:
        jobs: The oldest first.
        handler: A function, a name, or a call, whose arguments count too; None: any.
        args: Arguments by name, as the caller of the handler has them.

    Raises:
        BadRequestError: They have no form in JSON, so that no job has them.
    """
    there = list(jobs)
    name = None if handler is None else handler.name if isinstance(handler, Call) else name_of(handler)
    try:
        wanted = cast("dict[str, JsonValue]", json_text.to_json(dict(args), "args"))
    except json_text.NotOfTypeError as error:
        raise BadRequestError(f"submitted: {error}") from None
    if isinstance(handler, Call):
        wanted = {**cast("dict[str, JsonValue]", json_text.loads(handler.args)), **wanted}
    found = [job for job in there if (name is None or job.name == name) and _has(job, wanted)]
    return SubmittedJobs(found, _call("job" if name is None else f"job {name}", wanted), there)


def told(jobs: Iterable[Job]) -> str:
    """A line for each job, for the report of a test that failed."""
    lines = [f"{_in_words(job)}{_reason(job)}" for job in jobs]
    hidden = len(lines) - _MAX_SHOWN
    return "\n".join([*lines[:_MAX_SHOWN], f"… and {hidden} more"] if hidden > 0 else lines) or "no jobs"


def _has(job: Job, wanted: Mapping[str, JsonValue]) -> bool:
    args = job.args if isinstance(job.args, dict) else {}
    return all(name in args and args[name] == value for name, value in wanted.items())


def _in_words(job: Job) -> str:
    return f"{_call(job.name, job.args if isinstance(job.args, dict) else {})} {job.status}"


def _call(name: str, args: Mapping[str, JsonValue]) -> str:
    return f"{name}({', '.join(f'{key}={_short(value)}' for key, value in args.items())})"


def _short(value: JsonValue) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_VALUE else f"{text[: _MAX_VALUE - 1]}…"


def _reason(job: Job) -> str:
    return f": {job.last_error.partition(chr(10))[0]}" if job.last_error else ""
