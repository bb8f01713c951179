"""
The loop of a bridge: pull messages, submit their jobs, and acknowledge them once these are committed.

The job of a message has the same id each time. So whatever is lost between the commit and the acknowledgement, the
message comes again, and its second job is the first one. Nothing here knows which broker it is.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar, cast

import anyio
import structlog

from pulse.bridge.broker import Broker, BrokerMessage
from pulse.bridge.jobs import BridgeOptions, job_of, refused_job
from pulse.client.async_client import AsyncClient
from pulse.client.requests import NewJob
from pulse.common.wire_values import IdLike
from pulse.errors import (
    BadRequestError,
    ConfigError,
    ConflictError,
    InternalError,
    NobodyAnswersError,
    NotFoundError,
    TooLargeError,
    UnavailableError,
)

BATCH: Final = 100  # messages in hand: with NATS at most a megabyte each
PULL_S: Final = 1.0  # within it a stop is obeyed
COUNTED_S: Final = 2.0  # so often the server counts what waits
FULL_S: Final = 0.5  # between two looks at a full topic
PAUSES_S: Final = (0.5, 1.0, 2.0)  # while the server is away; then the last one again and again
STUCK_S: Final = 60.0  # until a message comes again that nobody can take
_MOST_TOPICS: Final = 1000  # that `stats` tells by themselves
# Of the message, and not of the server.
_REFUSALS: Final = (BadRequestError, ConflictError, TooLargeError)

AnswerT = TypeVar("AnswerT")
_Pair = tuple[BrokerMessage, NewJob]
log = structlog.get_logger()


class Bridge:
    """
    Makes jobs of a broker's messages.

    Args:
        broker: Where they come from.
        client: Where they go to; its server may be away for a while.
        options: What becomes of them.
        stopping: Set when no more are to be pulled.

    Raises:
        ConfigError: What cannot be a job would be lost.
    """

    def __init__(self, broker: Broker, client: AsyncClient, options: BridgeOptions, *, stopping: anyio.Event) -> None:
        if options.refused_handler is None and not broker.keeps_terminated:
            raise ConfigError(
                "--refused-handler is not given: the stream forgets a message that is terminated, so a handler has to"
                " take those that cannot become jobs"
            )
        self._broker = broker
        self._client = client
        self._options = options
        self._stopping = stopping
        self._in_hand: dict[str, BrokerMessage] = {}  # by position
        self._topic = options.topic
        self._depth = _WaitingCount(options.max_waiting)
        self._passed, self._refused = 0, 0

    async def run(self) -> None:
        """Pass messages on until it is stopped; then all of them have been answered."""
        found = 0
        try:
            while not self._stopping.is_set():
                most = await self._most(found)
                if most < 1:
                    await self._pause(FULL_S)
                    continue
                messages = await self._broker.pull(min(most, BATCH), PULL_S)
                found = len(messages)
                await self._pass_on(messages)
        except _StopError:
            for message in self._in_hand.values():
                await self._broker.nak(message, 0)
        log.info("bridge_stopped", jobs=self._passed, refused=self._refused, given_back=len(self._in_hand))

    async def _most(self, found: int) -> int:
        """How many messages may become jobs now; one tells whether there are any, and which topic it is."""
        if found == 0 or self._topic is None:
            return 1
        if self._depth.is_old:
            asked_s = time.monotonic()
            stats = await self._answered(partial(self._client.stats, topics=_MOST_TOPICS, history_s=0))
            age_s = math.inf if stats.depth_age_s is None else stats.depth_age_s  # None: not counted yet
            waiting = sum(one.ready + one.unhandled + one.retrying for one in stats.topics if one.topic == self._topic)
            self._depth.set(waiting, asked_s, asked_s - age_s)
        return self._depth.left

    async def _pass_on(self, messages: Sequence[BrokerMessage]) -> None:
        self._in_hand = {message.position: message for message in messages}
        pairs: list[_Pair] = []
        for message in messages:
            try:
                pairs.append((message, job_of(message, self._options)))
            except BadRequestError as error:
                await self._refuse(message, error.message)
        if pairs:
            await self._submit(pairs)

    async def _submit(self, pairs: Sequence[_Pair]) -> None:
        """All of them at once; where one is refused, each half by itself."""
        try:
            ids = await self._answered(partial(self._client.submit_many, [job for _, job in pairs]))
        except _REFUSALS as error:
            if len(pairs) > 1:
                middle = len(pairs) // 2
                await self._submit(pairs[:middle])
                await self._submit(pairs[middle:])
                return
            message, job = pairs[0]
            if not isinstance(error, ConflictError) or not await self._is_there(job):
                await self._refuse(message, error.message)
                return
            ids = []
        self._passed += len(pairs)
        self._depth.add(len(pairs))
        for message, _ in pairs:
            await self._broker.ack(message)
            del self._in_hand[message.position]
        if self._topic is None and ids:
            with suppress(NotFoundError):
                self._topic = (await self._answered(partial(self._client.get, ids[0]))).topic

    async def _is_there(self, job: NewJob) -> bool:
        """Whether the job that has this id is the same, but for its topic: somebody has moved it, or its handler."""
        try:
            found = await self._answered(partial(self._client.get, cast("IdLike", job.get("id"))))
        except NotFoundError:
            return True  # another bridge was faster, and the job is done and deleted already
        with suppress(ConflictError):
            await self._answered(partial(self._client.submit_many, [{**job, "topic": found.topic}]))
            return True
        return False

    async def _refuse(self, message: BrokerMessage, reason: str) -> None:
        """Let somebody see a message that cannot be a job."""
        handler = self._options.refused_handler
        tell = log.error if handler is None else log.warning
        position = message.position
        if handler is None:
            await self._broker.terminate(message)
        elif await self._is_taken(refused_job(message, handler, reason), position):
            await self._broker.ack(message)
        else:
            await self._broker.nak(message, STUCK_S)
            del self._in_hand[position]
            return
        subject, deliveries = message.subject, message.deliveries
        tell(
            "bridge_message_refused",
            position=position,
            subject=subject,
            deliveries=deliveries,
            error=reason,
            handler=handler,
        )
        self._refused += 1
        del self._in_hand[position]

    async def _is_taken(self, job: NewJob, position: str) -> bool:
        """Whether the handler of refused messages has this job, perhaps from an earlier delivery."""
        try:
            await self._answered(partial(self._client.submit_many, [job]))
        except ConflictError:
            return True
        except _REFUSALS as error:
            log.warning("bridge_message_stuck", position=position, error=error.message, again_s=STUCK_S)
            return False
        return True

    async def _answered(self, ask: Callable[[], Awaitable[AnswerT]]) -> AnswerT:
        """
        The server's answer; while there is none, the messages are kept, and it is asked again.

        Raises:
            _StopError: It is to end, and nobody has answered.
            RefusedError: The answer is no.
        """
        for tries in range(1_000_000_000):
            try:
                return await ask()
            except (NobodyAnswersError, UnavailableError, InternalError) as error:
                if self._stopping.is_set():
                    raise _StopError from None
                again_s = PAUSES_S[min(tries, len(PAUSES_S) - 1)]
                log.warning("bridge_waits", error=error.message, messages=len(self._in_hand), again_s=again_s)
            for message in self._in_hand.values():
                await self._broker.extend(message)
            await self._pause(again_s)
        raise AssertionError

    async def _pause(self, seconds: float) -> None:
        """For so long, or until it is to end."""
        with anyio.move_on_after(seconds):
            await self._stopping.wait()


class _StopError(Exception):
    """The bridge is to end, and has messages that it cannot pass on."""


class _WaitingCount:
    """
    How many jobs the topic still takes: the server counts them now and then, and the bridge what it adds.

    Args:
        max_waiting: As many may wait.
    """

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._counted, self._asked_s = 0, float("-inf")
        self._added: deque[tuple[float, int]] = deque()  # since the count: when, and how many

    @property
    def is_old(self) -> bool:
        """Whether to ask the server."""
        return self.left < 1 or time.monotonic() - self._asked_s > COUNTED_S

    @property
    def left(self) -> int:
        """How many may be added."""
        return self._max_waiting - self._counted - sum(number for _, number in self._added)

    def set(self, counted: int, asked_s: float, counted_s: float) -> None:
        """The server was *asked_s*, and has *counted* so many at *counted_s*, by this process's monotonic clock."""
        self._counted, self._asked_s = counted, asked_s
        while self._added and self._added[0][0] < counted_s:
            self._added.popleft()

    def add(self, number: int) -> None:
        """The bridge has added some."""
        self._added.append((time.monotonic(), number))
