"""The newest log lines in the supervisor: bounded, filtered, in pages; and the tap that never waits."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import trio
import trio.testing

from pulse.cli.system.logs import log_lines
from pulse.protocol import LogsRequest
from pulse.system.log_forward import MAX_LINE_BYTES, Tap
from pulse_supervisor.control.log_ring import MAX_ANSWER_BYTES, LogRing


def line(event: str, **fields: object) -> bytes:
    return json.dumps({"event": event, "level": "info", "actor": "dispatcher", **fields}).encode()


def asked(ring: LogRing, **request: object) -> Mapping[str, object]:
    return trio.run(ring.answer, LogsRequest(**request))  # type: ignore[arg-type]


def events(answer: Mapping[str, object]) -> list[str]:
    lines = answer["lines"]
    assert isinstance(lines, list)
    return [json.loads(text)["event"] for text in lines]


def test_the_oldest_go() -> None:
    """No more bytes are kept than allowed; a reader that comes back learns how many lines it has missed."""
    ring = LogRing(max_bytes=10 * len(line("e00")), first=100)
    for number in range(30):
        ring.add(line(f"e{number:02}"))
    assert events(asked(ring)) == [f"e{number}" for number in range(20, 30)]
    assert asked(ring, after=109) == {**asked(ring), "lost": 10}
    assert asked(ring, after=7)["lost"] == 0  # a number of an earlier supervisor


def test_what_is_chosen() -> None:
    """By the worst level, by actor, and the newest of them."""
    ring = LogRing(first=1)
    for number, (level, actor) in enumerate([("debug", "a"), ("warning", "b"), ("error", "a"), ("odd", "a")]):
        ring.add(line(str(number), level=level, actor=actor))
    assert events(asked(ring, level="warning")) == ["1", "2"]
    assert events(asked(ring, actor="a")) == ["0", "2", "3"]
    assert events(asked(ring, actor="a", level="error")) == ["2"]
    assert events(asked(ring, lines=1)) == ["3"]
    assert events(asked(ring, lines=0)) == []
    assert asked(ring)["next"] == 4


@pytest.mark.parametrize("junk", [b"", b"[1]", b"{", b'{"level": 3}', b"\xff\xfe", b'"x"'])
def test_what_is_no_line(junk: bytes) -> None:
    """From any writer to the socket, only objects of JSON are kept."""
    ring = LogRing()
    ring.add(junk)
    assert events(asked(ring)) == []


def test_pages() -> None:
    """An answer fits into a frame; by its number the next one goes on, without a line twice or none."""
    ring = LogRing(first=1)
    names = [f"e{number}" for number in range(40)]
    for name in names:
        ring.add(line(name, text="x" * 4000))
    answer = asked(ring, lines=40)
    found = events(answer)
    assert answer["more"]
    while answer["more"]:
        assert sum(map(len, answer["lines"])) <= MAX_ANSWER_BYTES  # type: ignore[call-overload]
        answer = asked(ring, after=answer["next"])
        found += events(answer)
    assert found == names
    assert answer["next"] == 40


def test_waiting() -> None:
    ring = LogRing(first=1)

    async def both() -> dict[str, object]:
        answers: list[dict[str, object]] = []

        async def ask() -> None:
            answers.append(await ring.answer(LogsRequest(after=0, level="error", wait_s=30)))

        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                await trio.testing.wait_all_tasks_blocked()
                ring.add(line("unwanted"))
                await trio.testing.wait_all_tasks_blocked()
                ring.add(line("wanted", level="error"))
        return answers[0]

    assert events(trio.run(both)) == ["wanted"]
    assert events(asked(ring, after=2, wait_s=0.01)) == []


@pytest.fixture
def tapped(tmp_path: Path) -> Iterator[tuple[Tap, socket.socket]]:
    tap, path = Tap(), str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock, contextlib.closing(tap):
        sock.bind(path)
        sock.setblocking(False)
        tap.open(path, "pool")
        yield tap, sock


def received(sock: socket.socket) -> dict[str, object]:
    told: dict[str, object] = json.loads(sock.recv(MAX_LINE_BYTES + 1))
    return told


def test_the_tap(tapped: tuple[Tap, socket.socket]) -> None:
    """A copy goes out, with a name and a traceback; the line itself goes on as it was."""
    tap, sock = tapped
    event = {"event": "e", "job": Path("x"), "exc_info": ValueError("odd")}
    assert tap(None, "error", event) is event
    assert set(event) == {"event", "job", "exc_info"}
    told = received(sock)
    assert (told["actor"], told["level"], told["event"]) == ("pool", "error", "e")
    assert "ValueError: odd" in str(told["exception"])


def test_a_long_line(tapped: tuple[Tap, socket.socket]) -> None:
    """It is cut, and still JSON."""
    tap, sock = tapped
    tap(None, "info", {"event": "e", "text": "\x00é" * 20_000})
    told = received(sock)
    assert (told["event"], told["cut"]) == ("e", True)


def test_nobody_reads(tapped: tuple[Tap, socket.socket]) -> None:
    """A full socket costs lines and no time, and so does a closed one; the next line says how many."""
    tap, sock = tapped
    for number in range(5000):
        tap(None, "info", {"event": str(number)})
    kept = 0
    with contextlib.suppress(BlockingIOError):
        while received(sock):
            kept += 1
    tap(None, "info", {"event": "last"})
    assert 0 < kept < 5000
    assert received(sock)["lines_lost"] == 5000 - kept
    tap(None, "info", {"event": "all is well"})
    assert "lines_lost" not in received(sock)
    sock.close()
    tap(None, "info", {"event": "into the void"})


def test_a_line_for_people() -> None:
    """Time, level, actor, event, the rest by name; a traceback below it; nothing that acts on a terminal."""
    text = json.dumps(
        {"event": "odd\x1b[31m", "level": "error", "timestamp": "2030-01-31T12:00:00.123456Z", "actor": "pause",
         "a": 1, "b": "x y", "exception": "Trace\n  \x1b]0;x"}
    )  # fmt: skip
    shown = ["".join(cell.text for cell in cells) for cells in log_lines(text)]
    assert shown == ['01-31 12:00:00.123 error    pause      odd\\x1b[31m a=1 b="x y"', "    Trace", "      \\x1b]0;x"]
    assert ["".join(cell.text for cell in cells) for cells in log_lines("no \x07 JSON")] == ["no \\x07 JSON"]
