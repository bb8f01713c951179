"""
The messages between a handler process, its zygote and its cells. Pure: bytes in, messages out.

Handler process and zygote use a socket that keeps messages apart; two kinds carry descriptors. Handler process and cell
use a stream: 4 bytes of length (big-endian), then the message.
"""

from __future__ import annotations

from typing import Final, Generic, TypeAlias, TypeVar

import msgspec

from pulse.app.outcome import OutcomeName
from pulse.app.transactions.fence import FencePhase
from pulse.app.workflows.receipt import Kept
from pulse.protocol import Assignment
from pulse.security.schema_name import DEFAULT
from pulse.worker.execution.attempt import StopReason

__all__ = [
    "BadCellError",
    "Begun",
    "CellCheckpoint",
    "CellEnded",
    "CellFence",
    "CellJob",
    "CellProgress",
    "CellReader",
    "CellRefused",
    "CellResult",
    "CellSaved",
    "CellStack",
    "Failed",
    "Fork",
    "Forked",
    "FromCell",
    "FromZygote",
    "Interrupt",
    "Lease",
    "Ready",
    "ToCell",
    "frame",
    "from_cell",
    "from_zygote",
    "pack",
    "to_cell",
    "to_zygote",
]

MESSAGE_MAX_BYTES: Final = 64 * 1024  # to and from the zygote
CELL_MESSAGE_MAX_BYTES: Final = 64 * 1024 * 1024  # a larger result could not be reported anyway
_LENGTH_BYTES: Final = 4


class _Message(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Tagged with the class name, or its former name: an upgrade may come between the two processes."""


class Fork(_Message, frozen=True):
    """To the zygote: make a cell. With it: the cell's end of its channel, and its stack file."""

    number: int


class Ready(_Message, frozen=True):
    """From the zygote: the app is loaded; cells can be made."""


class Failed(_Message, frozen=True):
    """From the zygote: there will be no cells."""

    reason: str


class Forked(_Message, frozen=True):
    """From the zygote: the cell is there. With it: its pidfd."""

    number: int
    pid: int


class CellRefused(_Message, frozen=True, tag="Refused"):
    """From the zygote: the cell could not be made."""

    number: int
    reason: str


class CellEnded(_Message, frozen=True, tag="Ended"):
    """From the zygote: the cell and all its processes have ended; *status* as of waitpid."""

    number: int
    status: int
    cpu_s: float
    peak_rss_bytes: int


class CellJob(_Message, frozen=True, tag="Work"):
    """To a cell, first: the job, the identity of the worker, and the schema that has the job."""

    job: Assignment
    worker: str | None = None
    schema: str = DEFAULT


class Interrupt(_Message, frozen=True):
    """To a cell: end the handler."""

    reason: StopReason


class Lease(_Message, frozen=True):
    """To a cell: whether the lease is lost."""

    lost: bool


class CellSaved(_Message, frozen=True):
    """To a cell: what became of the checkpoint of that number."""

    number: int
    kept: Kept


class Begun(_Message, frozen=True):
    """From a cell: the handler is called next."""


class CellProgress(_Message, frozen=True, tag="Progress"):
    """From a cell: progress, as JSON text."""

    text: str


class CellCheckpoint(_Message, frozen=True, tag="Saved"):
    """From a cell: state for the next attempt, as JSON text. With a *number* the cell waits until the server has it."""

    text: str
    number: int | None = None


class CellFence(_Message, frozen=True):
    """From a cell: how far a fenced transaction of its handler has come."""

    phase: FencePhase


class CellStack(_Message, frozen=True, tag="Where"):
    """From a cell that was interrupted: where its handler waited."""

    text: str


class CellResult(_Message, frozen=True, tag="Result"):
    """From a cell, last: the outcome, as in a report."""

    outcome: OutcomeName
    detail: str | float | tuple[float | str, str | int | tuple[str, int] | None] | None = None


FromZygote: TypeAlias = Ready | Failed | Forked | CellRefused | CellEnded
ToCell: TypeAlias = CellJob | Interrupt | Lease | CellSaved
FromCell: TypeAlias = Begun | CellProgress | CellCheckpoint | CellFence | CellStack | CellResult

MessageT = TypeVar("MessageT")

to_zygote: Final[msgspec.msgpack.Decoder[Fork]] = msgspec.msgpack.Decoder(Fork)
from_zygote: Final[msgspec.msgpack.Decoder[FromZygote]] = msgspec.msgpack.Decoder(FromZygote)
to_cell: Final[msgspec.msgpack.Decoder[ToCell]] = msgspec.msgpack.Decoder(ToCell)
from_cell: Final[msgspec.msgpack.Decoder[FromCell]] = msgspec.msgpack.Decoder(FromCell)
_encode: Final = msgspec.msgpack.Encoder().encode


class BadCellError(ValueError):
    """A cell sent a malformed message: its handler wrote into a descriptor that is not its own."""


def pack(message: _Message) -> bytes:
    """A message to or from the zygote."""
    return _encode(message)


def frame(message: _Message) -> bytes:
    """A message to or from a cell."""
    payload = _encode(message)
    return len(payload).to_bytes(_LENGTH_BYTES, "big") + payload


class CellReader(Generic[MessageT]):
    """
    Cuts the stream between handler process and cell into messages.

    Args:
        decoder: Of the expected messages.
    """

    def __init__(self, decoder: msgspec.msgpack.Decoder[MessageT]) -> None:
        self._decode = decoder.decode
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[MessageT]:
        """
        The messages that *data* completes.

        Raises:
            BadCellError: It is not a message.
        """
        buffer = self._buffer
        buffer += data
        messages: list[MessageT] = []
        at = 0
        while len(buffer) - at >= _LENGTH_BYTES:
            end = at + _LENGTH_BYTES + int.from_bytes(buffer[at : at + _LENGTH_BYTES], "big")
            if end - at > CELL_MESSAGE_MAX_BYTES:
                raise BadCellError("a message that is too long")
            if len(buffer) < end:
                break
            try:
                messages.append(self._decode(bytes(buffer[at + _LENGTH_BYTES : end])))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise BadCellError(str(error)) from None
            at = end
        del buffer[:at]
        return messages
