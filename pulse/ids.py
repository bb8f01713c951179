"""Job ids: UUID version 7 (RFC 9562), made by the submitter, so that a submit whose answer was lost can be repeated."""

from __future__ import annotations

import os
import time
import uuid

_MASK_RANDOM = (1 << 62) - 1


def uuid7() -> uuid.UUID:
    """
    A new UUID version 7: 48 bits of milliseconds, then 12 bits of sub-millisecond time, then 62 random bits.

    The time makes neighbours in time neighbours in the index (a fifth faster to insert than random ids); it is never
    used as an order, since clocks step back.
    """
    now_ns = time.time_ns()
    milliseconds, rest_ns = divmod(now_ns, 1_000_000)
    fraction = (rest_ns << 12) // 1_000_000
    value = (milliseconds & ((1 << 48) - 1)) << 80
    value |= 0x7 << 76 | fraction << 64
    value |= 0b10 << 62 | int.from_bytes(os.urandom(8), "big") & _MASK_RANDOM
    return uuid.UUID(int=value)
