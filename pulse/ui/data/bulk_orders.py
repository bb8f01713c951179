"""Changes of many jobs as forms ask for them: what is to be done to which, what takes it back, and how it is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from pulse.common.text import count
from pulse.errors import BadRequestError
from pulse.ops.bulk import ACTIONS, MAX_MATCHING_CHARACTERS, BulkAction, as_body, former_of
from pulse.protocol import answers
from pulse.ui.auth.sessions import Undo, UndoStep
from pulse.ui.data.filters import Filters
from pulse.ui.view import formatting

WITH_DEPENDENTS: Final = "with_dependents"
_MOST_PRIORITY: Final = 100
_PAST: Final = {"retry": "retried"}  # what the dashboard calls otherwise than the command line


@dataclass(frozen=True, slots=True)
class BulkOrder:
    """
    A bulk change: an action and its jobs.

    Attributes:
        action: The action.
        where: The jobs in words.
        filters: Filters of ``jobs.list``; None: *ids* are meant.
        ids: The jobs.
        more: Fields of the request beside the ids.
        matches: Whether a job that the filters found is meant.
        only: Of the jobs that the filters find only these are meant, which were counted. None: all.
        parts: For an undo: ids as one text of 16 bytes each, and the fields beside them.
        fields: The form fields of the same order.
    """

    action: BulkAction
    where: str
    filters: Mapping[str, object] | None = None
    ids: Sequence[bytes] = ()
    more: Mapping[str, object] = field(default_factory=dict[str, object])
    matches: Callable[[answers.JobInfo], bool] | None = None
    only: frozenset[bytes] | None = None
    parts: Sequence[tuple[bytes, Mapping[str, object]]] = ()
    fields: Sequence[tuple[str, str]] = ()


def ordered(form: Mapping[str, list[str]], now_s: float, *, is_final: bool) -> BulkOrder:
    """
    The order in a form.

    The search is repeated when the order is confirmed, which may be long after the count. So the form contains the time
    of the count, and all ids if they are few: jobs that came later, or match only now, are not changed.

    Args:
        form: Its fields.
        now_s: Unix seconds.
        is_final: Whether all must be said; a preview comes before what a change changes.

    Raises:
        BadRequestError: It is none.
    """
    verb = form.get("verb", [""])[0]
    if verb not in ACTIONS:
        raise BadRequestError(f"verb is {verb!r:.40}: {', '.join(ACTIONS)} are allowed")
    more = _changes(form) if verb == "change" and is_final else {}
    if "all" not in form:
        order = _of_ids(verb, form.get("id", []), more)
        if WITH_DEPENDENTS not in form or verb not in {"cancel", "retry"}:
            return order
        return replace(order, more={WITH_DEPENDENTS: True}, fields=[*order.fields, (WITH_DEPENDENTS, "1")])
    filters = Filters.of(form)
    at_s = _moment(form, now_s)
    only = frozenset(_ids(form["found"])) if "found" in form else None
    kin = next(iter(form.get("kin", [])), None)
    words = filters.words() + ("" if kin is None else f", error like “{formatting.foreign(kin, 80)}”")

    def matches(job: answers.JobInfo) -> bool:
        is_meant = only is None or job.id in only
        return is_meant and filters.matches(job, at_s) and (kin is None or formatting.kin(job.last_error) == kin)

    fields = [("verb", verb), ("all", "1"), ("at", repr(at_s)), *filters.query()]
    if kin is not None:
        fields.append(("kin", kin))
    wire = {**filters.wire(now_s - at_s), **({} if kin is not None or filters.needs_rows else {"brief": True})}
    more = {"matching": words[:MAX_MATCHING_CHARACTERS], **more}
    return BulkOrder(ACTIONS[verb], words, wire, more=more, matches=matches, only=only, fields=fields)


def _moment(form: Mapping[str, list[str]], now_s: float) -> float:
    """When what is meant was counted; now, where it was not."""
    try:
        at_s = float(form.get("at", [""])[0])
    except ValueError:
        return now_s
    return min(now_s, at_s)  # in this order: what is no number is now


def undo_of(order: BulkOrder, changed: answers.ChangedAnswer) -> Undo | None:
    """What takes back an order that was carried out on ids, None where nothing can."""
    reverse = order.action.reverse
    groups = former_of(order.action, changed) if changed.done else {}
    if not groups:
        return None
    them = "it" if len(changed.done) == 1 else "them"
    label = f"Undo: {reverse} {them}{' back' if reverse == order.action.verb else ''}"
    request = ACTIONS[reverse].request
    return Undo(label, [UndoStep(request, {"ids": ids, **as_body(former)}) for former, ids in groups.items()])


def past_of(action: BulkAction) -> str:
    """What was done, as in ``12 jobs canceled``."""
    return _PAST.get(action.verb, action.done)


def _ids(texts: Sequence[str]) -> list[bytes]:
    try:
        return [UUID(one).bytes for one in texts]
    except ValueError:
        raise BadRequestError("a job has no id that is one: UUIDs are allowed") from None


def _of_ids(verb: str, texts: Sequence[str], more: Mapping[str, object]) -> BulkOrder:
    ids = _ids(texts)
    if not ids:
        raise BadRequestError("no job is ticked: tick some, or choose all that are found")
    fields = [("verb", verb), *(("id", one) for one in texts)]
    where = count(len(ids), "ticked job") if len(ids) > 1 else f"job {UUID(bytes=ids[0])}"
    return BulkOrder(ACTIONS[verb], where, ids=ids, more=more, fields=fields)


def _changes(form: Mapping[str, list[str]]) -> dict[str, object]:
    """The new priority and topic; at least one of them."""
    topic, priority = (form.get(name, [""])[0].strip() for name in ("to_topic", "to_priority"))
    body: dict[str, object] = {"topic": topic} if topic else {}
    if priority:
        try:
            body["priority"] = int(priority)
        except ValueError:
            body["priority"] = _MOST_PRIORITY + 1
        if abs(int(str(body["priority"]))) > _MOST_PRIORITY:
            raise BadRequestError(f"priority is {priority!r:.40}: a whole number from -100 to 100 is allowed")
    if not body:
        raise BadRequestError("no new topic or priority is given: one is needed")
    return body
