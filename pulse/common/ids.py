"""Job ids: UUID version 7 (RFC 9562), made by the submitter, so that a submit whose answer was lost can be repeated."""

from __future__ import annotations

import os
import re
import struct
import time
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Final

ID_BYTES: Final = 16
_RANDOM: Final = (1 << 62) - 1
_VERSION: Final = 0x7 << 12
_VARIANT: Final = 0b10 << 62
_MS_BITS: Final = (1 << 48) - 1
_HEX: Final = re.compile("[0-9a-f]{1,32}")
MIN_PREFIX: Final = 8  # characters of an id that are enough to name a job or schedule, if no other begins so
_TIME_CHARACTERS: Final = 13
_ID_CHARACTERS: Final = 36
_BEHIND_A_DASH: Final = frozenset({14, 19, 24})  # lengths that would end with a dash
_halves: Final = struct.Struct(">QQ").pack


def time_of(identity: bytes) -> float | None:
    """When an id of version 7 was made, by its maker's clock, Unix seconds; None for one of another version."""
    if identity[6] >> 4 != _VERSION >> 12:
        return None
    return int.from_bytes(identity[:6]) / 1000


def first_at(time_s: float) -> bytes:
    """The id before all of version 7 that are made from *time_s* (Unix seconds) on."""
    return (int(time_s * 1000) & _MS_BITS).to_bytes(6) + bytes(10)


def hex_digits(text: str) -> str | None:
    """The hexadecimal digits with which an id begins, without dashes; None: *text* is no begin of an id."""
    digits = text.replace("-", "").lower()
    return digits if _HEX.fullmatch(digits) else None


def short_ids(ids: Sequence[bytes]) -> list[str]:
    """
    The first characters of each of *ids*, as many as tell them apart.

    At least those of its time, which no later id of version 7 has again; eight are the same for a minute.
    """
    texts = [str(uuid.UUID(bytes=one)) for one in ids]
    different = len(set(texts))
    lengths = (length for length in range(_TIME_CHARACTERS, _ID_CHARACTERS) if length not in _BEHIND_A_DASH)
    enough = (length for length in lengths if len({text[:length] for text in texts}) == different)
    length = next(enough, _ID_CHARACTERS)
    return [text[:length] for text in texts]


_set: Final = object.__setattr__
_UNKNOWN: Final = uuid.SafeUUID.unknown


class JobId(uuid.UUID):
    """
    The id that a submit answers with: a UUID like any other, that also says whether the job is new.

    Attributes:
        is_new: Whether it is the job that was submitted; False: the job that has its unique key.
    """

    __slots__ = ("is_new",)
    is_new: bool

    def __init__(self, identity: bytes, *, is_new: bool = True) -> None:
        # A UUID refuses to be changed; its own __init__ has to find out what it is made from, for three times as long.
        _set(self, "int", int.from_bytes(identity))
        _set(self, "is_safe", _UNKNOWN)
        _set(self, "is_new", is_new)

    def __reduce__(self) -> tuple[object, ...]:
        return partial(JobId, is_new=self.is_new), (self.bytes,)


def submitted_ids(sent: Sequence[bytes], answered: Sequence[bytes]) -> list[uuid.UUID]:
    """
    The ids *answered*, each a ``JobId``; it is new if it was *sent*. Typed as what callers have always got.

    Raises:
        ValueError: There are not as many.

    """
    return [JobId(one, is_new=one == own) for own, one in zip(sent, answered, strict=True)]


def uuid7() -> uuid.UUID:
    """A new UUID version 7."""
    return uuid.UUID(bytes=uuid7s(1)[0])


def uuid7s(count: int) -> list[bytes]:
    """
    New UUIDs version 7, 16 bytes each: 48 bits of milliseconds, 12 bits of sub-millisecond time, 62 random bits.

    The time makes neighbours in time neighbours in the index (a fifth faster to insert than random ids); it is never
    used as an order, since clocks step back. The random bits of all ids come from one system call, which takes as long
    as everything else for one id.
    """
    now_ns, made = time.time_ns, list[bytes]()
    for random in struct.unpack(f">{count}Q", os.urandom(8 * count)):
        milliseconds, rest_ns = divmod(now_ns(), 1_000_000)
        time_bits = (milliseconds & _MS_BITS) << 16 | _VERSION | (rest_ns << 12) // 1_000_000
        made.append(_halves(time_bits, _VARIANT | random & _RANDOM))
    return made
