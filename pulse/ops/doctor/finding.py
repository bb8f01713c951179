"""The result of one check, and words that all checks share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, TypeAlias

import msgspec

from pulse.common.text import count

Row: TypeAlias = Mapping[str, Any]
MAX_SHOWN: Final = 5  # lines below a finding: the rest is a number
_UNITS_S: Final = ((172_800.0, 86_400, "d"), (7_200.0, 3_600, "h"), (120.0, 60, "min"))
_BYTES_PER_UNIT: Final = 1024


class State(StrEnum):
    """The severity of a result."""

    OK = "ok"
    WARNING = "warning"
    WRONG = "wrong"
    SKIPPED = "skipped"


class Finding(msgspec.Struct, frozen=True):
    """
    The result of one check.

    Attributes:
        check: Its name.
        state: Its severity.
        text: The result in a sentence.
        details: What it is about: names, numbers, ages.
        advice: What to do; a command is a line of its own.
    """

    check: str
    state: State
    text: str
    details: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()


Verdict: TypeAlias = Callable[[Sequence[Row], float], Finding]  # of rows and of the patience in seconds


def bad_of(found: Iterable[Finding]) -> list[Finding]:
    """Those that are wrong, then the warnings."""
    some = list(found)
    return [one for state in (State.WRONG, State.WARNING) for one in some if one.state is state]


def is_well(found: Iterable[Finding], *, strict: bool = False) -> bool:
    """Whether nothing is wrong; *strict*: and no warning either."""
    bad = {State.WRONG, State.WARNING} if strict else {State.WRONG}
    return all(one.state not in bad for one in found)


def counts(found: Iterable[Finding]) -> str:
    """How many are wrong, and how many are warnings, in words."""
    states = Counter(one.state for one in found)
    return f"{states[State.WRONG]} wrong, {count(states[State.WARNING], 'warning')}"


def document_of(found: Finding) -> dict[str, object]:
    """A finding as it is sent, and printed as JSON."""
    return {
        "id": found.check,
        "severity": found.state.value,
        "text": found.text,
        "details": list(found.details),
        "do": "\n".join(found.advice),
    }


def verdict_of(check: str, wrong: Sequence[str], warnings: Sequence[str], text: str, *advice: str) -> Finding:
    """*text* if all is well; else the sentences, the worst first, and the advice."""
    if not wrong and not warnings:
        return Finding(check, State.OK, text)
    first, *rest = (*wrong, *warnings)
    return Finding(check, State.WRONG if wrong else State.WARNING, first, details=tuple(rest), advice=advice)


def list_some(lines: Sequence[str], total: int = 0) -> tuple[str, ...]:
    """The first of *lines*, and how many more there are, *total* in all."""
    more = max(total, len(lines)) - MAX_SHOWN
    return (*lines[:MAX_SHOWN], f"and {more:,} more") if more > 0 else tuple(lines)


def shown_s(seconds: float) -> str:
    """A length of time, as ``42 s``, ``5 min``, ``3 h``, ``12 d``."""
    size, unit = next(((size, unit) for from_s, size, unit in _UNITS_S if seconds >= from_s), (1, "s"))
    return f"{int(max(0.0, seconds) / size)} {unit}"


def shown_bytes(number: float) -> str:
    """A size, as ``12 KiB``, ``3.4 GiB``."""
    for unit in ("B", "KiB", "MiB"):
        if number < _BYTES_PER_UNIT:
            return f"{number:.0f} {unit}"
        number /= _BYTES_PER_UNIT
    return f"{number:.1f} GiB"
