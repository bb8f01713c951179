"""What a bridge needs of a message broker. A bridge from another one is a module that has this, and a command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class BrokerMessage:
    """
    A message that a broker has delivered, and waits for an answer to.

    Attributes:
        key: The same at each delivery, and of no other message: the id of its job is made of it.
        position: Where the broker keeps it, for people: stream and sequence.
        subject: What it is about, in the broker's words.
        headers: Names and values that came with it.
        data: Its bytes.
        deliveries: How often it was delivered, this time included.
        receipt: What the broker knows it by.
    """

    key: str
    position: str
    subject: str
    headers: Mapping[str, str]
    data: bytes
    deliveries: int
    receipt: object


class Broker(Protocol):
    """
    A consumer of a broker that delivers each message again until it is acknowledged, or terminated.

    An answer that cannot be sent, because the broker is away, is dropped: the message comes again.
    """

    @property
    def keeps_terminated(self) -> bool:
        """Whether a message that was terminated can still be read."""
        ...

    async def pull(self, most: int, within_s: float) -> Sequence[BrokerMessage]:
        """
        Up to about *most* messages, as soon as there is one; none if there is none in time, or the broker is away.

        Raises:
            PulseError: There will be none any more.
        """
        ...

    async def ack(self, message: BrokerMessage) -> None:
        """It is done, and not to be delivered again."""
        ...

    async def nak(self, message: BrokerMessage, delay_s: float) -> None:
        """Deliver it again, to anybody, after *delay_s*."""
        ...

    async def extend(self, message: BrokerMessage) -> None:
        """Wait longer for its answer."""
        ...

    async def terminate(self, message: BrokerMessage) -> None:
        """Never deliver it again, though nobody could do anything with it."""
        ...


class Publishing(Protocol):
    """A broker that stores messages, each once for some time under its message id."""

    @property
    def is_there(self) -> bool:
        """Whether the connection is there now."""
        ...

    @property
    def max_bytes(self) -> int:
        """Of a message."""
        ...

    async def publish(self, subject: str, message_id: str, data: bytes, headers: Mapping[str, str]) -> None:
        """
        Returns when the message is stored.

        Raises:
            UnavailableError: It may not be.
        """
        ...
