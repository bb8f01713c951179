"""
NATS JetStream as a broker: a durable pull consumer of a stream, and a publisher.

The connection is renewed for ever. While it is lost nothing is pulled and no answer is sent: JetStream delivers again
what has not been acknowledged.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

import nats
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import ConnectionClosedError, Error, NoRespondersError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StreamInfo
from nats.js.errors import APIError, ServiceUnavailableError
from nats.js.errors import NotFoundError as NatsNotFoundError

from pulse.bridge.broker import BrokerMessage
from pulse.errors import ConfigError, NobodyAnswersError, NotFoundError, UnavailableError

CONNECT_S: Final = 10.0  # for the first connection: a wrong address shows at once
ACK_WAIT_S: Final = 30.0  # of a consumer that is made here, as is usual
_EMPTY_PULLS: Final = 5  # JetStream does not say that a consumer was deleted: after so many it is asked
_AGAIN_S: Final = 1.0  # between two tries to connect
_CLOSE_S: Final = 5  # for the last answers
_STORE_S: Final = 10.0  # until a message is stored
_LOGIN: Final = re.compile("//.*@")
_MESSAGE_ID: Final = "Nats-Msg-Id"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class NatsLogin:
    """
    Which servers, and how to log in there.

    Attributes:
        urls: Addresses of servers of one cluster.
        user, password: To log in with; None: as the address says.
        creds: File with a JWT and a seed to log in with.
        ca: File with the CA certificates to trust; None: those of this machine.
        cert, key: Files with the client's certificate and key.
    """

    urls: Sequence[str]
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    creds: Path | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    @property
    def shown(self) -> str:
        """The addresses without what logs in."""
        return ", ".join(_LOGIN.sub("//", url) for url in self.urls)

    @property
    def tls(self) -> ssl.SSLContext:
        """What the connection trusts and shows, where the server wants TLS."""
        context = ssl.create_default_context(cafile=self.ca)
        if self.cert is not None:
            context.load_cert_chain(self.cert, self.key)
        return context


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsOptions(NatsLogin):
    """
    Where messages come from.

    Attributes:
        stream: Name of the stream.
        consumer: Name of its durable consumer, which is made if it is not there.
        subject: Only messages of these subjects, if the consumer is made; None: all.
    """

    stream: str
    consumer: str
    subject: str | None = None


class NatsBroker:
    """
    A consumer of a stream; made by ``connected``.

    Attributes:
        keeps_terminated: The stream keeps what is acknowledged or terminated: it has limits, and is no work queue.
    """

    def __init__(
        self, client: Client, consumer: JetStreamContext.PullSubscription, *, name: str, keeps_terminated: bool
    ) -> None:
        self._client = client
        self._consumer = consumer
        self._name = name
        self._empty_pulls = 0  # in a row
        self.keeps_terminated: Final = keeps_terminated

    async def pull(self, most: int, within_s: float) -> Sequence[BrokerMessage]:
        """
        As of ``Broker``.

        Raises:
            NotFoundError: The consumer or its stream was deleted.
            NobodyAnswersError: NATS has ended the connection for good.
        """
        try:
            if self._client.is_connected:  # else requests would pile up, and all be served later
                found = [_message(one) for one in await self._consumer.fetch(most, timeout=within_s)]
                self._empty_pulls = 0
                return found
        except TimeoutError:
            self._empty_pulls += 1
            if self._empty_pulls % _EMPTY_PULLS == 0:
                await self._check()
            return []
        except ConnectionClosedError as error:
            raise NobodyAnswersError(f"NATS has closed the connection: {error}") from None
        except Error as error:
            log.warning("bridge_broker_failed", error=str(error))
            await self._check()
        await asyncio.sleep(within_s)
        return []

    async def _check(self) -> None:
        """Whether the consumer is still there; JetStream may just not be ready again."""
        with suppress(Error, TimeoutError):
            try:
                await self._consumer.consumer_info()
            except NatsNotFoundError:
                raise NotFoundError(
                    f"{self._name} was deleted; the bridge makes a new one when it is started, which begins with the"
                    " first message of the stream"
                ) from None

    async def ack(self, message: BrokerMessage) -> None:
        """As of ``Broker``."""
        await self._answer(_receipt(message).ack)

    async def nak(self, message: BrokerMessage, delay_s: float) -> None:
        """As of ``Broker``."""
        await self._answer(lambda: _receipt(message).nak(delay_s))

    async def extend(self, message: BrokerMessage) -> None:
        """As of ``Broker``."""
        await self._answer(_receipt(message).in_progress)

    async def terminate(self, message: BrokerMessage) -> None:
        """As of ``Broker``."""
        await self._answer(_receipt(message).term)

    async def _answer(self, send: Callable[[], Awaitable[None]]) -> None:
        if self._client.is_connected:
            with suppress(Error):
                await send()


class NatsPublisher:
    """Stores messages in the streams that take their subjects; made by ``publishing``."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._jetstream = client.jetstream()  # pyright: ignore[reportUnknownMemberType]

    @property
    def is_there(self) -> bool:
        """As of ``Publishing``."""
        return self._client.is_connected

    @property
    def max_bytes(self) -> int:
        """As of ``Publishing``."""
        return self._client.max_payload

    async def publish(self, subject: str, message_id: str, data: bytes, headers: Mapping[str, str]) -> None:
        """
        As of ``Publishing``.

        Raises:
            UnavailableError: No stream takes the subject, or JetStream has not answered.
        """
        try:
            await self._jetstream.publish(subject, data, timeout=_STORE_S, headers={**headers, _MESSAGE_ID: message_id})
        except (Error, TimeoutError) as error:
            raise UnavailableError(_words(error)) from None


@asynccontextmanager
async def publishing(login: NatsLogin) -> AsyncGenerator[NatsPublisher]:
    """
    A connection to NATS.

    Raises:
        NobodyAnswersError: No server has let it in.
    """
    client = await _connect(login)
    try:
        yield NatsPublisher(client)
    finally:
        with suppress(Error, OSError):
            await client.close()


@asynccontextmanager
async def connected(options: NatsOptions) -> AsyncGenerator[NatsBroker]:
    """
    A connection to NATS, and the consumer.

    Raises:
        NobodyAnswersError: No server has let it in.
        NotFoundError: There is no such stream.
        ConfigError: JetStream is off; or the consumer does not suit.
    """
    client = await _connect(options)
    try:
        with _refusing(options):
            jetstream = client.jetstream()  # pyright: ignore[reportUnknownMemberType]
            stream = await jetstream.stream_info(options.stream)
            await _ensure_consumer(jetstream, options)
            consumer = await jetstream.pull_subscribe_bind(options.consumer, stream=options.stream)
        yield NatsBroker(client, consumer, name=_name(options), keeps_terminated=_keeps(stream))
    finally:
        with suppress(Error, OSError, TimeoutError):
            await client.flush(_CLOSE_S)
        with suppress(Error, OSError):
            await client.close()


async def _connect(options: NatsLogin) -> Client:
    """The first connection, within a time; later ones are awaited for ever."""
    last = ""

    async def note(error: Exception) -> None:
        nonlocal last
        if last != (last := _words(error)):
            log.warning("bridge_broker_failed", error=last)

    async def note_return() -> None:
        nonlocal last
        last = ""
        log.info("bridge_broker_back")

    try:
        async with asyncio.timeout(CONNECT_S):
            return await nats.connect(  # pyright: ignore[reportUnknownMemberType]
                [*options.urls], name="pulse bridge", user=options.user, password=options.password,
                user_credentials=None if options.creds is None else str(options.creds), tls=options.tls,
                max_reconnect_attempts=-1, reconnect_time_wait=_AGAIN_S, error_cb=note,
                reconnected_cb=note_return,
            )  # fmt: skip
    except TimeoutError:
        why = f": {last}" if last else ""
        message = f"no NATS server at {options.shown} has let the bridge in within {CONNECT_S:g} s{why}"
        raise NobodyAnswersError(message) from None
    except (Error, OSError, ValueError) as error:
        raise ConfigError(f"--url is {options.shown}: {_words(error)}") from None


async def _ensure_consumer(jetstream: JetStreamContext, options: NatsOptions) -> None:
    """Make the consumer, or look whether the one that is there can be pulled from, and acknowledged one by one."""
    try:
        there = (await jetstream.consumer_info(options.stream, options.consumer)).config
    except NatsNotFoundError:
        wanted = ConsumerConfig(
            durable_name=options.consumer, ack_policy=AckPolicy.EXPLICIT, ack_wait=ACK_WAIT_S,
            filter_subject=options.subject,
        )  # fmt: skip
        await jetstream.add_consumer(options.stream, wanted)  # pyright: ignore[reportUnknownMemberType]
        return
    if there.deliver_subject is not None or there.ack_policy != AckPolicy.EXPLICIT:
        raise ConfigError(
            f"{_name(options)} {'pushes' if there.deliver_subject is not None else 'has other acknowledgements'}:"
            " a pull consumer with explicit acknowledgements is allowed"
        )
    if options.subject is not None and there.filter_subject != options.subject:
        raise ConfigError(
            f"--subject is {options.subject}: {_name(options)} is there already, with {there.filter_subject or '>'}"
        )


@contextmanager
def _refusing(options: NatsOptions) -> Generator[None]:
    """Errors of JetStream about the stream and the consumer, in one line."""
    try:
        yield
    except NatsNotFoundError:
        raise NotFoundError(f"--stream is {options.stream}: {options.shown} has no such stream") from None
    except (ServiceUnavailableError, NoRespondersError):
        raise ConfigError(f"--url is {options.shown}: JetStream is not enabled, or not ready there") from None
    except APIError as error:
        raise ConfigError(f"{_name(options)} cannot be used: {error.description}") from None
    except (Error, TimeoutError) as error:
        raise NobodyAnswersError(f"{options.shown} does not answer about {_name(options)}: {_words(error)}") from None


def _message(given: Msg) -> BrokerMessage:
    """With the time at which the stream has stored it: one of the same name that is made anew counts from 1 again."""
    facts = given.metadata
    headers = given.headers or {}
    own = headers.get(_MESSAGE_ID)
    number = f"{facts.sequence.stream}/{facts.timestamp.isoformat()}"
    return BrokerMessage(
        key=f"nats/{facts.stream}/{number if own is None else f'id/{own}'}",
        position=f"{facts.stream}/{facts.sequence.stream}",
        subject=given.subject,
        headers=headers,
        data=given.data,
        deliveries=facts.num_delivered,
        receipt=given,
    )


def _receipt(message: BrokerMessage) -> Msg:
    return cast("Msg", message.receipt)


def _keeps(stream: StreamInfo) -> bool:
    return stream.config.retention in {None, RetentionPolicy.LIMITS}


def _name(options: NatsOptions) -> str:
    return f"consumer {options.consumer} of stream {options.stream}"


def _words(error: Exception) -> str:
    return str(error).removeprefix("nats: ") or type(error).__name__
