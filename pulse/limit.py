"""Limits of jobs: their options, which values are allowed, and what clients get of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, TypedDict

__all__ = ["GROUP_OPTIONS", "LIMIT_OPTIONS", "Limit", "LimitOptions", "problem_of", "problem_of_whole"]

_MAX_NAME: Final = 200
_MOST: Final = 1_000_000
_LEAST_RATE: Final = 1e-6
_SEQUENCES: Final = ("continue", "halt")


class LimitOptions(TypedDict, total=False):
    """
    The policy of a limit; None unsets an option, and one that is not given stays as it is.

    Keys:
        concurrency: Most jobs that run at once, 0 to 1000000; 0: none starts.
        rate: Starts per second, 0.000001 to 1000000.
        burst: How many may start together, 1 to 1000000; without it those of a second, one at least. Needs *rate*.
        group_concurrency: Most jobs of each group that run at once, in each topic.
        group_rate: Starts per second of each group.
        group_burst: How many of each group may start together. Needs *group_rate*.
        sequence: The jobs of each group run one by one, in their order: ``continue`` or ``halt`` at a dead letter.
    """

    concurrency: int | None
    rate: float | None
    burst: int | None
    group_concurrency: int | None
    group_rate: float | None
    group_burst: int | None
    sequence: Literal["continue", "halt"] | None


LIMIT_OPTIONS: Final = tuple(LimitOptions.__annotations__)
GROUP_OPTIONS: Final = LIMIT_OPTIONS[:3]  # those that may differ for one group


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """
    A limit, or what differs for one of its groups.

    Attributes:
        group_key: The group, which has the first three of ``LimitOptions``; None: the limit itself.
        tokens: How many jobs may start now by its rate; a fraction is on its way. None: it has no rate.
        running: How many slots are taken, counted up to 1000; of a group in all topics together.
        topics: Those that go by the limit, at most 100: the one of its name, unless it goes by another, and those whose
            policy names it. Empty for a group.
        declared_by: The application whose code declares it.
        undeclared_at: Since when that does not declare it any more.
    """

    name: str
    group_key: str | None = None
    concurrency: int | None = None
    running: int = 0
    rate: float | None = None
    burst: int | None = None
    tokens: float | None = None
    group_concurrency: int | None = None
    group_rate: float | None = None
    group_burst: int | None = None
    sequence: str | None = None
    topics: tuple[str, ...] = ()
    declared_by: str | None = None
    undeclared_at: datetime | None = None


def problem_of(name: str, policy: Mapping[str, object], group_key: str | None = None) -> str | None:
    """What is wrong with a policy by itself, in one line; the server looks again, together with what is set already."""
    if not _is_name(name):
        return f"the name of a limit is {name!r:.60}; 1 to {_MAX_NAME} characters are allowed"
    if group_key is not None and (not _is_name(group_key) or group_key == "*"):
        return f'the group of limit "{name:.50}" is {group_key!r:.60}; 1 to 200 characters are allowed, but not * alone'
    label = f'limit "{name:.50}"' if group_key is None else f'group "{group_key:.50}" of limit "{name:.50}"'
    allowed = LIMIT_OPTIONS if group_key is None else GROUP_OPTIONS
    for option, value in policy.items():
        if option not in allowed:
            return f'unknown option "{option:.50}" of {label}; allowed are {", ".join(allowed)}'
        problem = None if value is None else _problem_of_value(option, value)
        if problem is not None:
            return f"{option} of {label} is {value!r:.50}; {problem} allowed"
    return None


def problem_of_whole(name: str, policy: Mapping[str, object]) -> str | None:
    """What is wrong with a policy that is all there is."""
    given = {option: value for option, value in policy.items() if value is not None}
    if not given:
        return f'limit "{name:.50}" has no option; one or more of {", ".join(LIMIT_OPTIONS)} are needed'
    for burst, rate in (("burst", "rate"), ("group_burst", "group_rate")):
        if burst in given and rate not in given:
            return f'limit "{name:.50}" has {burst} without {rate}; it is allowed together with that'
    each = given.get("group_concurrency", 1)
    if "sequence" in given and isinstance(each, int) and each > 1:
        return f'limit "{name:.50}" has a sequence, and group_concurrency {each}; 1 at most is allowed then'
    return None


def _is_name(text: object) -> bool:
    return isinstance(text, str) and 1 <= len(text) <= _MAX_NAME


def _problem_of_value(option: str, value: object) -> str | None:
    match option.removeprefix("group_"):
        case "sequence":
            return None if value in _SEQUENCES else f"{' or '.join(_SEQUENCES)} is"
        case "rate":
            is_right = isinstance(value, int | float) and not isinstance(value, bool) and _LEAST_RATE <= value <= _MOST
            return None if is_right else "starts per second from 0.000001 to 1000000 are"
        case plain:
            least = 0 if plain == "concurrency" else 1
            is_right = isinstance(value, int) and not isinstance(value, bool) and least <= value <= _MOST
            return None if is_right else f"a whole number from {least} to 1000000 is"
