"""Frames: bytes to envelopes and their bodies, and back."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, TypeVar

import msgpack
import msgspec
from msgspec import Meta, Raw, Struct

from pulse.common.invalid_field import invalid_field
from pulse.common.json_text import learn
from pulse.errors import ProtocolError
from pulse.protocol.fields import PATTERNS, RequestNumber

MAX_FRAME_BYTES: Final = 8 * 1024 * 1024  # a submit of 40 000 small jobs; one result of 8 MiB is a file, not a result
CLAIM_MAX_BYTES: Final = (
    MAX_FRAME_BYTES - 16 * 1024
)  # of a job, when it is assigned: the rest of the frame fits into 16 KiB
HELLO_MAX_FRAME_BYTES: Final = 1024 * 1024  # before hello the peer is unknown; 40 000 running jobs fit
_LENGTH_BYTES: Final = 4
_SHOWN_BYTES: Final = 8 * 1024  # in a longer body the wrong value is not looked up: that takes time
_FIXMAP: Final = 0x80  # first bytes of a map in MessagePack: 0x80 to 0x8f, map 16, map 32
_FIXMAP_END: Final = 0x90
_LONG_MAPS: Final = frozenset({0xDE, 0xDF})

BodyT = TypeVar("BodyT", bound=Struct)


class Frame(Struct, frozen=True, array_like=True):
    """The envelope of a frame; ``body`` is still MessagePack."""

    kind: Annotated[str, Meta(max_length=64)]
    request: RequestNumber | None
    body: Raw


_encode: Final = msgspec.msgpack.Encoder().encode
_frame_decoder = msgspec.msgpack.Decoder(Frame)
_decoders: dict[type[Struct], msgspec.msgpack.Decoder[Struct]] = {}


def encode(kind: str, request: int | None, body: Mapping[str, object]) -> bytes:
    """
    One frame, length included.

    Args:
        kind: What the frame is.
        request: Number of the request that it is or answers; None for an unsolicited frame.
        body: str keys; values of None, bool, int, float, str, bytes, list, tuple, dict.
    """
    envelope = [kind, request, body]
    try:
        payload = _encode(envelope)
    except (TypeError, OverflowError):  # a subclass of str, int, float or bytes; or what cannot be sent at all
        payload = msgpack.packb(envelope)
    return len(payload).to_bytes(_LENGTH_BYTES, "big") + payload


def encode_error(request: int | None, code: str, message: str) -> bytes:
    """An ``error`` frame."""
    return encode("error", request, {"code": code, "message": message})


def decode_body(kind: type[BodyT], frame: Frame) -> BodyT:
    """
    The body of *frame* as *kind*.

    Raises:
        ProtocolError: The body does not fit; carries the request's number. The connection can go on.
    """
    decoder = _decoders.get(kind)
    if decoder is None:
        learn(kind)
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    try:
        body = decoder.decode(frame.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        is_shown = frame.kind != "hello"  # a hello has passwords
        what = invalid_field(kind, _plain(frame), error, shown=is_shown, patterns=PATTERNS)
        raise ProtocolError(f"{frame.kind}: {what}", request=frame.request) from None
    assert isinstance(body, kind)  # noqa: S101 - narrows the type; the decoder was made for it
    return body


def _plain(frame: Frame) -> object:
    """The body as plain values; None if it is long or cannot be read at all."""
    if memoryview(frame.body).nbytes <= _SHOWN_BYTES:
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError):
            return msgspec.msgpack.decode(frame.body)
    return None


def decode_any(frame: Frame) -> dict[str, object]:
    """The body of *frame* as plain values, for answers that the caller shows unchanged."""
    try:
        return msgspec.msgpack.decode(frame.body, type=dict[str, object])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"{frame.kind}: {error!s:.400}", request=frame.request) from None


class FrameReader:
    """
    Cuts a byte stream into frames.

    Args:
        max_frame_bytes: Longest payload accepted; checked on the length, before a byte of it is kept.
    """

    __slots__ = ("_broken", "_buffer", "_held", "max_frame_bytes")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()
        self._broken = False
        self._held: BrokenStreamError | None = None

    @property
    def buffered_bytes(self) -> int:
        """Bytes of an incomplete frame."""
        return len(self._buffer)

    @property
    def begun_bytes(self) -> int:
        """Length of the incomplete frame, with its head; 0: none has begun, or unknown."""
        if len(self._buffer) < _LENGTH_BYTES:
            return 0
        return _LENGTH_BYTES + int.from_bytes(self._buffer[:_LENGTH_BYTES], "big")

    def feed(self, data: bytes) -> list[Frame]:
        """
        The frames that *data* completes, in order; often none.

        Raises:
            ProtocolError: A length or an envelope is not the protocol's. Frames before it are on ``error.frames``;
                nothing can be read after it.
        """
        if self._broken:
            message = "the stream is broken already"
            raise BrokenStreamError(message, [])
        buffer = self._buffer
        buffer += data
        frames: list[Frame] = []
        at = 0
        try:
            while len(buffer) - at >= _LENGTH_BYTES:
                size = int.from_bytes(buffer[at : at + _LENGTH_BYTES], "big")
                self._check_size(size)
                end = at + _LENGTH_BYTES + size
                if len(buffer) < end:
                    break
                frames.append(_decode_envelope(bytes(buffer[at + _LENGTH_BYTES : end])))
                at = end
        except ProtocolError as error:
            self._broken = True
            buffer.clear()
            raise BrokenStreamError(error.message, frames, error.code) from None
        if at:
            del buffer[:at]
        return frames

    def take(self, data: bytes) -> list[Frame]:
        """As ``feed``, but where the stream breaks it returns the frames before; then ``check`` raises the error."""
        try:
            return self.feed(data)
        except BrokenStreamError as error:
            self._held = error
            return list(error.frames)

    def check(self) -> None:
        """
        Call it before waiting for more.

        Raises:
            ProtocolError: ``take`` found a break, after the frames that it returned.
        """
        if self._held is not None:
            raise self._held

    def _check_size(self, size: int) -> None:
        if size == 0:
            message = "a frame of length 0; the smallest has 1 byte"
            raise ProtocolError(message)
        if size > self.max_frame_bytes:
            message = f"a frame of {size} bytes; at most {self.max_frame_bytes} are allowed"
            raise ProtocolError(message, "too_large")


class BrokenStreamError(ProtocolError):
    """
    The stream cannot be read any further.

    Attributes:
        frames: Whole frames that came before the broken one.
    """

    def __init__(self, message: str, frames: Sequence[Frame], code: str = "bad_request") -> None:
        super().__init__(message, code)
        self.frames = frames


def _decode_envelope(payload: bytes) -> Frame:
    try:
        frame = _frame_decoder.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        message = f"not a frame: {error}"
        raise ProtocolError(message) from None
    # Only its first byte is checked: decoding a dict of a million keys would take a second for nothing. What is in the
    # map is the business of the body's own type, which skips the keys that it does not know.
    first = memoryview(frame.body)[0]
    if not (_FIXMAP <= first < _FIXMAP_END or first in _LONG_MAPS):
        message = "not a frame: the body is not a map"
        raise ProtocolError(message)
    return frame
