"""JSON Lines cut into batches of checked args. Pure: bytes in, batches out, and the number of a line that is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pulse.errors import BadRequestError, PulseError
from pulse.ops.json_input import decoded_args

MOST_JOBS: Final = 1000  # one statement inserts them in about 20 ms: progress moves, and nothing waits behind it
MOST_BYTES: Final = 1024 * 1024  # an eighth of a frame; a job that is larger goes alone
MOST_LINE_BYTES: Final = 64 * 1024 * 1024  # far beyond any frame: input that has no lines at all


@dataclass(frozen=True, slots=True)
class LineBatch:
    """
    The args of some jobs.

    Attributes:
        first: Number of the line of the first, from 1.
        last: Number of the line of the last.
        args: A JSON text for each.
    """

    first: int
    last: int
    args: Sequence[str]


class BadLineError(PulseError):
    """A line is not the args of a job."""


def batches(
    chunks: Iterable[bytes], *, most_jobs: int = MOST_JOBS, most_bytes: int = MOST_BYTES
) -> Iterator[LineBatch]:
    """
    Cut *chunks*, bytes as they are read, into batches; empty lines are passed over.

    A batch ends with the chunk at the latest: what a slow producer has written does not wait for what it may write.

    Raises:
        BadLineError: A line is not a JSON object that can be stored. All lines before it have been returned.
    """
    number = 0
    for lines in _whole_lines(chunks):
        first, size = number + 1, 0
        batch: list[str] = []
        for line in lines:
            number += 1
            text = line.strip()
            if not text:
                continue
            if batch and (len(batch) >= most_jobs or size + len(text) > most_bytes):
                yield LineBatch(first, number - 1, batch)
                first, size, batch = number, 0, []
            try:
                batch.append(decoded_args(text))
            except BadRequestError as error:
                if batch:
                    yield LineBatch(first, number - 1, batch)
                raise BadLineError(f"line {number}: {error.message}") from None
            size += len(text)
        if batch:
            yield LineBatch(first, number, batch)


def _whole_lines(chunks: Iterable[bytes]) -> Iterator[list[bytes]]:
    """The lines that each chunk completes; at the end the last one, which may lack its line break."""
    parts: list[bytes] = []
    size = 0
    for chunk in chunks:
        parts.append(chunk)
        size += len(chunk)
        if b"\n" in chunk:
            *lines, rest = b"".join(parts).split(b"\n")
            parts, size = [rest], len(rest)
            yield lines
        elif size > MOST_LINE_BYTES:  # its first bytes tell what it is; the rest need not be read
            yield [b"".join(parts)]
            return
    yield [b"".join(parts)]
