"""
Which jobs a page shows: the fields of its form, as the wire wants them and in words.

A server that is older than this dashboard ignores unknown filters. So before a bulk change each job is checked here
once more (``matches``): a change must never affect more jobs than the user chose.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from pulse.common.duration import seconds_of
from pulse.errors import BadRequestError
from pulse.job import Status
from pulse.protocol import answers
from pulse.ui.view.formatting import foreign

LIMIT: Final = 50
MOST: Final = 1000
_TEXTS: Final = ("q", "topic", "name", "worker", "older", "newer", "schedule", "due")
_DUE: Final = {"yes": True, "no": False}
_NAMES: Final = ("topic", "name")  # taken as they are: one may begin with a space, and without it is another
_ID: Final = re.compile(r"[0-9a-fA-F][0-9a-fA-F-]{5,35}")
_MAX_LIMIT_DIGITS: Final = 4
_CLOCKS_S: Final = 5.0  # by so much the clocks of two machines, and the moments of two looks, may differ


@dataclass(frozen=True, slots=True)
class Filters:
    """
    The fields as they were typed; ``wire`` checks them.

    ``q`` is the begin of an id, else a part of an error; ``due`` is ``yes``, ``no`` or empty.
    """

    status: tuple[str, ...] = ()
    q: str = ""
    topic: str = ""
    name: str = ""
    worker: str = ""
    older: str = ""
    newer: str = ""
    schedule: str = ""
    due: str = ""
    oldest: str = ""
    after: str = ""
    limit: int = LIMIT

    @classmethod
    def of(cls, query: Mapping[str, Sequence[str]]) -> Filters:
        """What a URL or a form asks for; a limit that is none is the usual one."""
        first = {key: values[0] for key, values in query.items() if values}
        texts = {key: first.get(key, "").strip() for key in (*_TEXTS, "oldest", "after")}
        texts |= {key: first.get(key, "") for key in _NAMES}
        limit = first.get("limit", "")
        wanted = int(limit) if limit.isascii() and limit.isdigit() and len(limit) <= _MAX_LIMIT_DIGITS else LIMIT
        status = tuple(one for one in query.get("status", ()) if one)
        return cls(status=status, limit=max(1, min(MOST, wanted)), **texts)

    @property
    def is_any(self) -> bool:
        """Whether all jobs are meant."""
        return not self.status and not any(getattr(self, key) for key in _TEXTS)

    @property
    def whole_id(self) -> UUID | None:
        """The id that was searched for, where it is a whole one."""
        try:
            return UUID(self.q)
        except ValueError:
            return None

    @property
    def is_id(self) -> bool:
        """Whether ``q`` is the begin of an id."""
        return _ID.fullmatch(self.q) is not None

    def query(self) -> list[tuple[str, str]]:
        """As parameters of a URL, without the place in the list."""
        pairs = [("status", one) for one in self.status]
        pairs += [(key, value) for key in (*_TEXTS, "oldest") if (value := getattr(self, key))]
        return pairs if self.limit == LIMIT else [*pairs, ("limit", str(self.limit))]

    def wire(self, since_s: float = 0.0) -> dict[str, object]:
        """
        As the wire wants them, without limit and place.

        Args:
            since_s: Ages are meant as of so many seconds ago, and what was submitted since is not meant.

        Raises:
            BadRequestError: A value cannot be meant.
        """
        body: dict[str, object] = {key: getattr(self, key) for key in ("topic", "name", "worker") if getattr(self, key)}
        for one in self.status:
            if one not in Status.__members__:
                raise BadRequestError(f"status is {one!r:.60}: {', '.join(Status)} are allowed")
        if self.status:
            body["status"] = list(self.status)
        if self.q:
            body["prefix" if self.is_id else "error"] = self.q.replace("-", "") if self.is_id else self.q
        for key in ("older", "newer"):
            if getattr(self, key):
                body[f"{key}_s"] = seconds(key, getattr(self, key)) + since_s
        if since_s > 0:
            body.setdefault("older_s", since_s)
        if self.due:
            if self.due not in _DUE:
                raise BadRequestError(f"due is {self.due!r:.40}: {', '.join(_DUE)} are allowed")
            body["due"] = _DUE[self.due]
        if self.schedule:
            try:
                body["schedule"] = UUID(self.schedule).bytes
            except ValueError:
                raise BadRequestError(f"schedule is {self.schedule!r:.60}: a UUID is allowed") from None
        return body

    def page(self) -> dict[str, object]:
        """The request for this page of them."""
        place = {"after": self.after} if self.after else {}
        return {**self.wire(), **({"oldest": True} if self.oldest else {}), "limit": self.limit, **place}

    @property
    def needs_rows(self) -> bool:
        """Whether a brief row does not tell if a job matches."""
        return bool(self.worker or self.schedule or (self.q and not self.is_id))

    def matches(self, job: answers.JobInfo, now_s: float) -> bool:
        """Whether *job* is one of them, by all that its row tells, as of *now_s*."""
        return all(self._agreements(job, now_s))

    def words(self) -> str:
        """The jobs that are meant, in words."""
        return ", ".join(self._parts()) or "all jobs"

    def _agreements(self, job: answers.JobInfo, now_s: float) -> Iterator[bool]:
        yield not self.status or job.status in self.status
        yield not self.topic or job.topic == self.topic
        yield not self.name or job.name == self.name
        yield not self.schedule or job.schedule_id == UUID(self.schedule).bytes
        is_due = not job.held_back and (job.next_run_at or 0) <= now_s + _CLOCKS_S
        yield not self.due or is_due is _DUE.get(self.due)
        yield not self.worker or self.worker.casefold() in (job.locked_by or "").casefold()
        if self.q and self.is_id:
            yield job.id.hex().startswith(self.q.replace("-", "").lower())
        elif self.q:
            yield self.q.casefold() in (job.last_error or "").casefold()
        age_s = now_s - (job.submitted_at or now_s)
        yield age_s > -_CLOCKS_S
        yield not self.older or age_s > seconds("older", self.older) - _CLOCKS_S
        yield not self.newer or age_s < seconds("newer", self.newer) + _CLOCKS_S

    def _parts(self) -> Iterator[str]:
        if self.status:
            yield "jobs that are " + " or ".join(one.lower().replace("_", " ") for one in self.status)
        elif not self.is_any:
            yield "jobs"
        if self.q:
            yield f"{'id' if self.is_id else 'error'} like “{foreign(self.q, 60)}”"
        for key, label in (("topic", "topic"), ("name", "name"), ("worker", "worker like"), ("schedule", "schedule")):
            if value := getattr(self, key):
                yield f"{label} “{foreign(value, 60)}”"
        if self.due:
            yield "due" if _DUE.get(self.due) else "due later"
        for key in ("older", "newer"):
            if value := getattr(self, key):
                yield f"{key} than {foreign(value, 20)}"


def seconds(label: str, text: str) -> float:
    """
    A length of time as a person types it: 90, 10m, 2h30m.

    Raises:
        BadRequestError: It is none; the message calls it *label*.
    """
    try:
        return seconds_of(text)
    except ValueError as error:
        raise BadRequestError(f"{label} is {text!r:.40}: {error}") from None
