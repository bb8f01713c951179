"""
The state of the whole system, asked by one poller for all pages: every second while a page is open, else never.

``SystemSnapshot`` is the result of one round. Pages show the newest; open ones are refreshed by the next.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, TypeVar

import msgspec
import structlog

from pulse.errors import PulseError
from pulse.ops.doctor.checks import CHECKS
from pulse.ops.doctor.finding import Finding, counts
from pulse.ops.doctor.running import findings, starting
from pulse.ops.status import DISPATCHER_S, StatusAnswers
from pulse.ops.worker_text import cpu_shares
from pulse.protocol import answers as views
from pulse.protocol.stats import Stats
from pulse.ui.data.queries import Questions
from pulse.ui.view.charts import Chart, charts_of

_log = structlog.get_logger()
KindT = TypeVar("KindT", bound=msgspec.Struct)

EVERY_S: Final = 1.0  # a worker that is stopped is seen within it
FRESH_S: Final = 1.0  # an older one is asked for again before a page shows it
WATCHED_S: Final = 30.0  # after the last page: the next click is likely
MOST_WATCHERS: Final = 500
MOST_KNOWN: Final = 300  # values that a field offers


@dataclass(frozen=True)  # no slots: what is worked out of it is kept, for all pages until the next round
class SystemSnapshot:
    """
    The answers of one round.

    Attributes:
        status: As in ``pulse ctl status``; unknown parts are None.
        silent: Which process did not answer, and why.
        stats: The dispatcher's answer; None: it does not answer.
        at_s: When, Unix seconds.
        number: Number of the round.
        last: The newest one in which the jobs were counted, where they are not in this.
        cpu: The share of a core that each worker used since the round before, by identity.
    """

    status: views.StatusAnswer
    silent: Mapping[str, str]
    stats: Stats | None
    at_s: float
    number: int
    last: SystemSnapshot | None = None
    cpu: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def counted(self) -> SystemSnapshot | None:
        """This one, or the newest in which the jobs were counted; None: never yet."""
        return self.last if self.status.jobs is None else self

    @property
    def cause(self) -> str | None:
        """Why little is known, as ``pulse ctl status`` names it; None: all is."""
        database = self.status.database
        if database is not None and not database.ok:
            return "the database is away"
        if "dispatcher" not in self.silent:
            return None
        return "the dispatcher is starting" if self.is_starting else "the dispatcher does not answer"

    @property
    def is_starting(self) -> bool:
        """Whether the server has just been started, and the dispatcher does not answer yet."""
        return "dispatcher" in self.silent and "dispatcher" in starting(self.status)

    @cached_property
    def charts(self) -> list[Chart]:
        """The last hour, drawn; the last one that is known."""
        older = None if self.last is None else self.last.stats
        return charts_of(self.stats or older)

    @cached_property
    def findings(self) -> list[Finding]:
        """What is wrong, and the warnings, as `pulse ctl status` says it."""
        return findings(self.status, self.silent)

    def about(self, page: str) -> list[Finding]:
        """What of that is shown on *page* as well."""
        return [one for one in self.findings if one.check in CHECKS and CHECKS[one.check].page == page]

    @cached_property
    def known(self) -> Mapping[str, Sequence[str]]:
        """What fields for a topic, a handler and a worker offer."""
        workers = self.status.workers or []
        topics = {one.topic for one in self.stats.topics} if self.stats else set[str]()
        known = {
            "topic": topics.union(*(one.topics for one in workers)),
            "name": {name for one in workers for name in one.names},
            "worker": {one.name for one in workers},
        }
        return {kind: sorted(values)[:MOST_KNOWN] for kind, values in known.items()}

    @property
    def is_paused(self) -> bool:
        """Whether everything is paused."""
        gate = self.status.gate
        return gate is not None and gate.paused

    @property
    def health(self) -> str:
        """In one word: ``down``, ``wrong``, ``warning`` or ``good``."""
        if self.cause is not None and not self.is_starting:
            return "down"
        if self.findings:
            return self.findings[0].state.value
        return "warning" if self.is_starting else "good"

    @property
    def summary(self) -> str:
        """The same for people."""
        return self.cause or ("all well" if self.health == "good" else counts(self.findings))


@dataclass(slots=True)
class Poller:
    """Asks, keeps the newest answer, and tells all who wait for news."""

    questions: Questions
    _standing: SystemSnapshot | None = None
    _asked_s: float = float("-inf")  # when that round began; monotonic, as the next two
    _changed_s: float = float("-inf")
    _wanted_s: float = float("-inf")
    _watchers: int = 0
    _number: int = 0
    _round: asyncio.Task[SystemSnapshot] | None = None
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Ask while anybody looks; for ever."""
        while True:
            self._wake.clear()
            if self._is_watched():
                try:
                    await asyncio.shield(self._begin())
                except Exception:  # noqa: BLE001 -- one round's trouble: the next may go well, and pages wait for it
                    _log.exception("ui_round_failed")
                await asyncio.sleep(EVERY_S)
            else:
                await self._wake.wait()

    @property
    def newest(self) -> SystemSnapshot | None:
        """The newest answer, without waiting; None where it is old."""
        return self._standing if self._is_fresh() else None

    def touch(self) -> None:
        """A page is open: if the newest answer is old, ask again now, beside the page's own requests."""
        self._wanted_s = time.monotonic()
        self._wake.set()
        if not self._is_fresh():
            self._begin()

    async def latest(self, until_s: float) -> SystemSnapshot:
        """The newest standing; an old one where the new one is not there until then, on the monotonic clock."""
        if (newest := self.newest) is not None:
            return newest
        asked = self._begin()
        if self._standing is not None:
            await asyncio.wait({asked}, timeout=max(0.0, until_s - time.monotonic()))
            return self._standing
        return await asyncio.shield(asked)

    def forget(self) -> None:
        """Something was changed: the next page asks again, and does not take the answer of a round under way."""
        self._changed_s = time.monotonic()
        self._round = None

    async def watch(self) -> AsyncIterator[SystemSnapshot]:
        """Each new standing; a slow reader sees the newest, not all."""
        if self._watchers >= MOST_WATCHERS:
            return
        self._watchers += 1
        self._wake.set()
        seen = -1
        try:
            while True:
                news, standing = self._news, self._standing
                if standing is not None and standing.number != seen:
                    seen = standing.number
                    yield standing
                else:
                    await news.wait()
        finally:
            self._watchers -= 1

    def _is_watched(self) -> bool:
        return bool(self._watchers) or time.monotonic() - self._wanted_s < WATCHED_S

    def _is_fresh(self) -> bool:
        began_s = max(time.monotonic() - FRESH_S, self._changed_s)
        return self._standing is not None and self._asked_s >= began_s

    def _begin(self) -> asyncio.Task[SystemSnapshot]:
        """One round, shared by all who want it now."""
        if self._round is None or self._round.done():
            self._round = asyncio.ensure_future(self._ask())
        return self._round

    async def _ask(self) -> SystemSnapshot:
        asked_s = time.monotonic()
        supervisor, dispatcher, stats = await asyncio.gather(
            _answer(self.questions.ask_supervisor()),
            _answer(self.questions.ask_fresh("status", within_s=DISPATCHER_S)),
            _answer(self.questions.ask_fresh("stats", within_s=DISPATCHER_S)),
        )
        answers = StatusAnswers(supervisor, dispatcher)
        silent = answers.silent
        status = _read(views.StatusAnswer, answers.merged)
        if isinstance(status, PulseError):
            silent["dispatcher"], status = status.message, views.StatusAnswer()
        counted = _read(Stats, stats)
        before = self._standing
        old, passed_s = ([], 0.0) if before is None else (before.status.workers or [], time.time() - before.at_s)
        standing = SystemSnapshot(
            status=status,
            silent=silent,
            stats=None if isinstance(counted, PulseError) else counted,
            at_s=time.time(),
            number=self._number + 1,
            last=None if before is None else before.counted,
            cpu=cpu_shares(status.workers or (), old, passed_s),
        )
        if asked_s < self._asked_s:
            return standing  # a younger round was faster
        self._number += 1
        self._standing, self._asked_s = standing, asked_s
        news, self._news = self._news, asyncio.Event()
        news.set()
        return standing


async def _answer(question: Awaitable[dict[str, object]]) -> dict[str, object] | PulseError:
    try:
        return await question
    except PulseError as error:
        return error


def _read(kind: type[KindT], body: dict[str, object] | PulseError) -> KindT | PulseError:
    try:
        return body if isinstance(body, PulseError) else views.read(kind, body)
    except PulseError as error:
        return error
