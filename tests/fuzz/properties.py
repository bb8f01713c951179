"""
What must hold of any bytes, for all three decoders. A broken property is an exception: all that a fuzzer sees.

The server decodes what peers send, the peers what a server sends, and the supervisor what actors send on the bus. An
input is one byte that says which, and a stream.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from msgspec import Struct

from pulse.client import records, requests
from pulse.client.requests import Request
from pulse.errors import ProtocolError, PulseError
from pulse.protocol import (
    ALLOWED,
    ANSWERS,
    SUPERVISOR_KINDS,
    BrokenStreamError,
    Frame,
    FrameReader,
    Hello,
    Report,
    Role,
    check_result,
    decode_any,
    decode_body,
)
from pulse_supervisor.bus.hub import Hub
from pulse_supervisor.bus.link import BusLink
from pulse_supervisor.children.events import Event

LIMIT: Final = 256 * 1024
MOST_SAID: Final = 2000  # characters of an error's message
OF_PEERS: Final[Mapping[str, Sequence[type[Struct]]]] = {
    name: [kinds[name] for kinds in (ALLOWED[Role.WORKER], SUPERVISOR_KINDS, {"hello": Hello}) if name in kinds]
    for name in {*ALLOWED[Role.WORKER], *SUPERVISOR_KINDS, "hello"}
}
READERS: Final[Sequence[Callable[[Mapping[str, object]], object]]] = (
    partial(requests.submitted, [bytes(16)], list), records.job, records.job_page, records.schedule,
    records.schedule_page, records.one_id, records.times, records.changed, records.stack, records.topic, records.plain,
    records.stats, records.why,
)  # fmt: skip


def delivered(data: bytes, cuts: Sequence[int], limit: int = LIMIT) -> tuple[list[Frame], str | None]:
    """What a reader makes of *data* cut there: the frames, and the code of the error that ends it."""
    reader, frames = FrameReader(limit), list[Frame]()
    edges = [0, *sorted(cuts), len(data)]
    for begin, end in itertools.pairwise(edges):
        try:
            frames += reader.feed(data[begin:end])
        except BrokenStreamError as error:
            check_said(error)
            return frames + list(error.frames), error.code
        assert reader.buffered_bytes <= limit + 4
    return frames, None


def check_cuts(data: bytes, cuts: Sequence[int]) -> list[Frame]:
    """However a stream is cut, the same frames come, before the same error."""
    whole, code = delivered(data, ())
    again, same_code = delivered(data, cuts)
    assert (again, same_code) == (whole, code), f"cut at {cuts}: {again}, {same_code}, not {whole}, {code}"
    return whole


def check_said(error: PulseError, number: int | None = None) -> None:
    """An error is short, since it is sent back and may be logged, and names its request."""
    assert 0 < len(error.message) <= MOST_SAID, f"a message of {len(error.message)} characters"
    error.message.encode()
    told = getattr(error, "request", None)
    assert told == number, f"the number {told}, not {number}"


def check_body(kind: type[Struct], frame: Frame) -> str:
    """A body is its kind's own, or one error with the number of its request; returns what was found, in a word."""
    try:
        body = decode_body(kind, frame)
    except ProtocolError as error:
        check_said(error, frame.request)
        return error.message
    for result in body.results if isinstance(body, Report) else ():
        try:
            check_result(result)
        except ProtocolError as error:
            check_said(error)
            return error.message
    return "good"


def check_answer(read: Callable[[Mapping[str, object]], object], frame: Frame) -> str:
    try:
        Request("asked", {}, read).understood(requests.body_of(Frame("ok", frame.request, frame.body)))
    except PulseError as error:
        check_said(error)
        return error.message
    return "good"


def server(data: bytes) -> Iterator[str]:
    for frame in check_cuts(data, (len(data) // 3, len(data) // 2)):
        for kind in OF_PEERS.get(frame.kind, ()):
            yield f"{frame.kind} {check_body(kind, frame)}"


def peer(data: bytes) -> Iterator[str]:
    for frame in check_cuts(data, (len(data) // 2,)):
        kind = ANSWERS.get(frame.kind)
        if kind is not None:
            yield f"{frame.kind} {check_body(kind, frame)}"
        try:
            decode_any(frame)
        except ProtocolError as error:
            check_said(error, frame.request)
            yield f"ok {error.message.removeprefix(frame.kind)}"
            continue
        for number, read in enumerate(READERS):
            yield f"{number} {check_answer(read, frame)}"
        try:
            requests.welcome_of(frame)
        except PulseError as error:
            yield f"welcome {error.message}"


def bus(data: bytes) -> Iterator[str]:
    said: list[str] = []

    def report(name: str, event: Event) -> None:
        said.append(f"{name} {event!r}")

    def log(event: str, **fields: object) -> None:
        said.append(f"{event} {sorted(fields)}")

    hub = Hub(report, lambda: {"supervisor": {}}, log)
    ends = [socket.socketpair() for _ in range(2)]
    links = [BusLink(name, number, ours) for number, (name, (ours, _)) in enumerate(zip("ab", ends, strict=True))]
    for link in links:
        hub.attach(link)
        link.greeted = link.briefed = True
    links[0].greeted = not data.startswith(b"\0\0\0\x0fh")
    try:
        for begin in range(0, min(len(data), 64 * 1024), 16 * 1024):
            ends[0][1].sendall(data[begin : begin + 16 * 1024])
            # Both are what `serve` does, without its waiting.
            if not links[0].read_nowait(
                lambda frame: hub._handle(links[0], frame), lambda error: said.append(error.message)
            ):
                break
    finally:
        for link in links:
            link._sock.close()
        for _, theirs in ends:
            theirs.close()
    yield from said


PARTIES: Final[Sequence[Callable[[bytes], Iterator[str]]]] = (server, peer, bus)


def check(data: bytes) -> Iterator[str]:
    if data:
        yield from PARTIES[data[0] % len(PARTIES)](data[1:])
