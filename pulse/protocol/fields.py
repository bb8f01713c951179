"""Types of fields with lengths and ranges, which msgspec checks."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

MAX_ATTEMPT: Final = 2**31 - 1  # attempts is a PostgreSQL integer
MAX_STACK_CHARS: Final = 64 * 1024
MAX_BATCH: Final = 1000  # jobs of a call: each of them is charged if its process dies
MAX_TOPICS: Final = 1000  # of one worker: each of its claims names them all
MAX_HANDLERS: Final = 10_000  # of one worker: an empty one takes 4 bytes in a frame, and 150 here
MAX_SECONDS: Final = 1e9  # 31 years; keeps every sum of times finite

_WORKER_NAME: Final = r"^[A-Za-z0-9._-]{1,64}\Z"
_TRACE_PARENT: Final = r"^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z"
_GROUP: Final = r"^(?!\*\Z)"  # * stands for each group of a limit
_BEHALF: Final = r"^[^\x00-\x1f\x7f]{1,64}\Z"
PATTERNS: Final = {  # in words, for those whose value does not match
    _WORKER_NAME: "1 to 64 of A-Z a-z 0-9 . _ -",
    _TRACE_PARENT: "a traceparent of W3C Trace Context, 00-TRACE-SPAN-FLAGS in lower-case hexadecimal digits",
    _GROUP: "text of 1 to 200 characters, but not * alone",
    _BEHALF: "1 to 64 printable characters",
}

Id = Annotated[bytes, Meta(min_length=16, max_length=16)]
Attempt = Annotated[int, Meta(ge=1, le=MAX_ATTEMPT)]
RequestNumber = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Seconds = Annotated[float, Meta(ge=0, le=MAX_SECONDS)]
UnixTime = Annotated[float, Meta(ge=-1e11, le=1e11)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
GroupKey = Annotated[str, Meta(min_length=1, max_length=200, pattern=_GROUP)]
UniqueKey = Annotated[str, Meta(min_length=1, max_length=500)]
WorkerName = Annotated[str, Meta(pattern=_WORKER_NAME)]
TraceParent = Annotated[str, Meta(pattern=_TRACE_PARENT)]
Behalf = Annotated[str, Meta(pattern=_BEHALF)]
Session = Annotated[bytes, Meta(min_length=16, max_length=16)]
Count = Annotated[int, Meta(ge=0, le=1_000_000)]
