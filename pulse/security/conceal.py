"""Answers for accounts that may see the state of the queue, but not the contents of jobs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast

# Args, progress, checkpoints, results and payloads of signals. Errors stay, since viewers need them.
CONTENTS: Final = frozenset({"args", "progress", "result", "payload"})
PARTS: Final = frozenset({"job", "jobs", "schedule", "schedules", "history", "signals"})
_KINDS: Final = frozenset({"jobs.get", "jobs.list", "jobs.parents", "schedules.get", "schedules.list"})


def is_about_contents(kind: str) -> bool:
    """Whether the answer to a request of *kind* has contents of jobs or schedules."""
    return kind in _KINDS


def conceal(answer: Mapping[str, object]) -> dict[str, object]:
    """*answer* without contents; where some are left out, ``concealed`` is true."""
    return {key: _part(value) if key in PARTS else value for key, value in answer.items()}


def _part(value: object) -> object:
    if isinstance(value, list | tuple):
        return [_part(one) for one in cast("Sequence[object]", value)]
    if not isinstance(value, Mapping):
        return value
    row = cast("Mapping[str, object]", value)
    shown = {key: value for key, value in conceal(row).items() if key not in CONTENTS}
    return shown if len(shown) == len(row) else {**shown, "concealed": True}
