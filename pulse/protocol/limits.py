"""The answers about limits, as in ``answers``."""

from __future__ import annotations

from msgspec import Struct


class LimitInfo(Struct, frozen=True):
    """A row of pulse.limits: a limit, or what differs for one group; ``running``: slots that are taken, up to 1000."""

    name: str = ""
    group_key: str | None = None
    concurrency: int | None = None
    rate: float | None = None
    burst: int | None = None
    group_concurrency: int | None = None
    group_rate: float | None = None
    group_burst: int | None = None
    sequence: str | None = None
    tokens: float | None = None
    running: int | None = None
    topics: list[str] | None = None
    declared_by: str | None = None
    undeclared_at: float | None = None

    @property
    def is_full(self) -> bool:
        """Whether as many jobs run as may."""
        return self.concurrency is not None and self.running is not None and self.running >= self.concurrency


class LimitPageAnswer(Struct, frozen=True):
    """Some limits, and the cursor after them."""

    limits: list[LimitInfo]
    next: str | None = None


class OneLimit(Struct, frozen=True):
    """A limit as it is now, or was before it was removed."""

    limit: LimitInfo


class DeclaredLimits(Struct, frozen=True):
    """The result of declaring limits: names of those changed, and of those no longer declared."""

    changed: list[str]
    not_declared: list[str]
