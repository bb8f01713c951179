"""Limits and groups as people see them: which are full, and what waits in each group of a topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec


class SlotUsage(msgspec.Struct, frozen=True):
    """
    What a limit, or one of its groups, has left for jobs that wait.

    Attributes:
        concurrency: Most jobs that run at once; None: any number.
        running: How many of them run; None: nothing limits that.
        holders: The first of these.
        retry_s: Seconds until the next token; None: there is one, or no rate.
    """

    concurrency: int | None = None
    running: int | None = None
    holders: tuple[bytes, ...] = ()
    retry_s: float | None = None

    @property
    def is_full(self) -> bool:
        """Whether no job may start until another ends."""
        return self.concurrency is not None and (self.running or 0) >= self.concurrency


class GroupTurn(msgspec.Struct, frozen=True):
    """
    What a job of a sequence waits for.

    Attributes:
        policy: ``continue`` or ``halt``.
        ahead_id: The job that goes first; None: it is this one, or it is not due.
        ahead_at: Until when that one is put off, Unix seconds; None: it is not.
        halted_by: The dead letter that halts the sequence.
    """

    policy: str
    ahead_id: bytes | None = None
    ahead_at: float | None = None
    halted_by: bytes | None = None


class LimitFacts(msgspec.Struct, frozen=True):
    """
    How limits, groups and sequences keep a job waiting.

    Attributes:
        limit: The name of the limit that its topic goes by; None: there is none.
        total: Of the limit.
        group: Of its group.
        sequence: In its sequence; None: its group is none.
    """

    limit: str | None = None
    total: SlotUsage = SlotUsage()
    group: SlotUsage = SlotUsage()
    sequence: GroupTurn | None = None


NO_LIMIT: Final = LimitFacts()


def limit_facts(row: Mapping[str, object]) -> LimitFacts:
    """The columns of `why_job` about limits; *row* as it goes on the wire."""
    if row["limit_name"] is None:
        return NO_LIMIT
    total, group = (
        msgspec.convert({name: row[f"{part}_{name}"] for name in SlotUsage.__struct_fields__}, SlotUsage)
        for part in ("limit", "group")
    )
    columns = {name: row["sequence" if name == "policy" else name] for name in GroupTurn.__struct_fields__}
    place = None if row["sequence"] is None else msgspec.convert(columns, GroupTurn)
    return LimitFacts(str(row["limit_name"]), total, group, sequence=place)
