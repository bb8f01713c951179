"""Streams that never block and never fail: on pipes without a reader, full disks, sockets, terminals, across forks."""

from __future__ import annotations

import _thread
import contextlib
import errno
import fcntl
import io
import json
import os
import pty
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeAlias

import pytest
import structlog

from pulse import logs
from pulse.protocol import Assignment
from pulse.system import log_sink, processes
from pulse.system.log_sink import MAX_WAITING_BYTES, Sink
from tests.support.servers.streams import DEADLINE_S, PIPE_BYTES, Reader

pytestmark = [pytest.mark.timeout(30), pytest.mark.timed]  # what blocks for ever has failed

AT_ONCE_S: Final = 1.0  # far more than the one pause that is allowed, far less than for ever
LINE: Final = b"x" * 99 + b"\n"
Make: TypeAlias = Callable[[int], Sink]
JOB: Final = Assignment(id=bytes(16), attempt=1, topic="t", name="n", args="{}", timeout_s=None, lease_s=1.0)
FAR: Final = 1 << 30  # beyond every other file of this process: so much a file may have, and no more


def told(count: int) -> bytes:
    return b"dropped %d\n" % count


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes sinks that are closed at the end, when they are empty or have no reader left; no thread of theirs stays."""
    made: list[Sink] = []

    def new(fd: int) -> Sink:
        made.append(Sink(fd, told))
        return made[-1]

    yield new
    monkeypatch.setattr(log_sink, "_FORK_S", DEADLINE_S)
    for sink in made:
        assert sink.drain(DEADLINE_S)
        sink.pause()
        assert not has_thread(sink)  # it would write to whatever has the number of its descriptor next
        if sink._socket is not None:
            sink._socket.close()
        else:
            os.close(sink._fd)


@pytest.fixture(params=["pipe", "socket", "pipe of another user"])
def ends(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, Reader]]:
    if request.param == "socket":
        near, far = socket.socketpair()
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PIPE_BYTES)
        write, read = near.detach(), far.detach()
    else:
        read, write = os.pipe()
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    if request.param == "pipe of another user":
        monkeypatch.setattr(os, "open", refuse)  # what the kernel answers then
    yield write, Reader(read)
    os.close(read)  # a thread that still writes ends by it
    os.close(write)


def refuse(*_: object) -> int:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def refuse_thread(*_: object) -> int:
    raise RuntimeError("can't start new thread")


def has_thread(sink: Sink) -> bool:
    return sink._runs


def fill(fd: int) -> None:
    os.set_blocking(fd, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(fd, b"."):
            pass
    os.set_blocking(fd, True)


def dropped_of(text: bytes) -> int:
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith(b"dropped"))


@pytest.mark.rest
def test_nobody_reads(make: Make, ends: tuple[int, Reader]) -> None:
    """A writer does not wait; what fits is kept, the rest counted, and the count is written for the next reader."""
    fd, reader = ends
    sink, count = make(fd), 10_000
    start_s = time.monotonic()
    for _ in range(count):
        assert sink.write(LINE) == len(LINE)
    assert time.monotonic() - start_s < AT_ONCE_S
    assert os.get_blocking(fd)  # it is others' too
    assert not sink.drain(0)
    text = reader.read(lambda text: b"dropped" in text)
    lines = text.splitlines(keepends=True)
    assert text.endswith(b"\n")
    assert set(lines[:-1]) == {LINE}
    assert len(lines) - 1 + dropped_of(text) == count
    assert MAX_WAITING_BYTES - len(LINE) <= len(text) < MAX_WAITING_BYTES + 64 * PIPE_BYTES
    sink.write(b"after\n")
    assert reader.read(lambda text: b"after" in text).count(b"dropped") == 1


@pytest.mark.rest
def test_a_slow_reader_loses_nothing(make: Make, ends: tuple[int, Reader]) -> None:
    fd, reader = ends
    sink = make(fd)
    lines = [b"%d\n" % number for number in range(2000)]
    for number, line in enumerate(lines):
        sink.write(line)
        if number % 10 == 9:
            reader.look(20)
    assert reader.read(lambda text: text.count(b"\n") == len(lines)) == b"".join(lines)
    long = b"y" * 3 * MAX_WAITING_BYTES + b"\n"
    assert sink.drain(DEADLINE_S)
    sink.write(long)
    assert reader.read(lambda text: text.count(b"\n") > len(lines)).endswith(long)


def test_who_writes_fast_waits_for_who_reads_fast(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_sink, "_PATIENCE_S", DEADLINE_S)  # it shares a busy machine, and the interpreter
    read, write = os.pipe()
    reader, sink = Reader(read), make(write)
    text = LINE * (MAX_WAITING_BYTES // len(LINE))
    writer = threading.Thread(target=lambda: [sink.write(text) for _ in range(20)])
    writer.start()
    assert reader.read(lambda got: len(got) >= 20 * len(text)) == 20 * text
    writer.join()
    os.close(write)
    os.close(read)


def test_lines_of_threads_are_whole(make: Make, ends: tuple[int, Reader]) -> None:
    fd, reader = ends
    sink = make(fd)
    mine = [b"%d" % number * 50 + b"\n" for number in range(4)]
    threads = [threading.Thread(target=lambda line=line: [sink.write(line) for _ in range(300)]) for line in mine]
    for thread in threads:
        thread.start()
    text = reader.read(lambda text: text.count(b"\n") == 1200)
    for thread in threads:
        thread.join()
    assert sorted(text.splitlines(keepends=True)) == sorted(mine * 300)


def test_nobody_ever_reads_again(make: Make) -> None:
    read, write = os.pipe()
    sink = make(write)
    os.close(read)
    sink.write(LINE)
    late = make(write)  # such a pipe cannot be opened any more
    late.write(LINE)
    assert late.drain(DEADLINE_S)
    os.close(write)
    with Path("/dev/full").open("wb", buffering=0) as full:
        last = make(full.fileno())
        for _ in range(3):
            last.write(LINE)
        last.write(LINE * 2)
    assert [one._dropped for one in (sink, late, last)] == [1, 1, 5]


@pytest.fixture
def file(tmp_path: Path) -> Iterator[tuple[int, Path, Callable[[int], None]]]:
    """A file that may grow by so many bytes: more fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    path = tmp_path / "log"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.lseek(fd, FAR, os.SEEK_SET)
    yield fd, path, lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (FAR + size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, ignored)
    os.close(fd)


def test_a_disk_has_room_again(make: Make, file: tuple[int, Path, Callable[[int], None]]) -> None:
    """A line that was cut short by a full disk does not spoil the next one; the count comes behind it."""
    fd, _, limit = file
    sink = make(fd)
    limit(150)
    for _ in range(3):
        sink.write(LINE)
        assert sink.drain(DEADLINE_S)
    limit(1000)
    sink.write(b"again\n")
    assert sink.drain(DEADLINE_S)
    assert os.pread(fd, 1000, FAR) == LINE + b"x" * 50 + b"\nagain\ndropped 2\n"


def test_the_count_is_not_lost_with_its_line(make: Make, file: tuple[int, Path, Callable[[int], None]]) -> None:
    fd, _, limit = file
    sink = make(fd)
    limit(10)
    sink.write(LINE)
    sink.write(b"\n" * 20)
    assert sink.drain(DEADLINE_S)
    limit(20)
    sink.write(b"a\n")
    assert sink.drain(DEADLINE_S)
    limit(1000)
    sink.write(b"b\n")
    assert sink.drain(DEADLINE_S)
    assert os.pread(fd, 1000, FAR).endswith(b"\nb\ndropped 21\n")


def test_a_disk_hangs(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer waits a moment, once; when the disk goes on, everything is there, and at once again."""
    goes_on, real = threading.Event(), os.write

    def write(fd: int, data: bytes) -> int:
        goes_on.wait(DEADLINE_S)
        return real(fd, data)

    log = tmp_path / "log"
    with log.open("wb") as file:
        sink = make(file.fileno())
        sink.write(LINE)
        assert log.read_bytes() == LINE
        monkeypatch.setattr(os, "write", write)
        start_s = time.monotonic()
        for _ in range(1000):
            sink.write(LINE)
        with monkeypatch.context() as last:
            last.setattr(sys, "is_finalizing", lambda: True)
            sink.write(LINE)  # nor then does anybody write beside the thread
        assert time.monotonic() - start_s < AT_ONCE_S
        goes_on.set()
        assert sink.drain(DEADLINE_S)
        assert log.read_bytes() == LINE * 1002
        monkeypatch.setattr(log_sink, "_PATIENCE_S", DEADLINE_S)
        for _ in range(50):
            sink.write(b"again\n")
            assert sink.drain(0)


def test_who_runs_handlers_writes_files_itself(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        sink = Sink(file.fileno(), told, files_at_once=True)
        sink.write(LINE)
        assert not has_thread(sink)
        os.close(sink._fd)
    assert log.read_bytes() == LINE


def test_the_line_with_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(io.BytesIO()))
    before, job = structlog.get_config(), logs.LOGGED.set(JOB)
    logs.configure_logging("info", "json")
    line = json.loads(logs._dropped("stdout", 3))
    logs.LOGGED.reset(job)
    structlog.configure(**before)
    assert line.pop("timestamp")
    assert line == {"event": "log_lines_dropped", "level": "warning", "stream": "stdout", "count": 3}

    def fail(_: int) -> bytes:
        raise ValueError

    read, write = os.pipe()
    sink = Sink(write, fail)
    sink._drop(1)
    sink.write(LINE)
    assert os.read(read, 1000) == LINE
    for fd in (read, write, sink._fd):
        os.close(fd)


def test_a_terminal(make: Make) -> None:
    main, terminal = pty.openpty()
    sink = make(terminal)
    stream = io.TextIOWrapper(sink, line_buffering=True)
    assert stream.isatty()
    assert stream.fileno() == terminal
    for _ in range(1000):
        stream.write("x" * 99 + "\n")  # nobody reads the other side
    assert not sink.drain(0)
    Reader(main).read(lambda text: text.count(b"x" * 99 + b"\r\n") == 1000)
    os.close(main)
    os.close(terminal)


def test_no_thread_stays_where_nothing_waits(
    make: Make, ends: tuple[int, Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may fork: before that the thread ends, where it can."""
    monkeypatch.setattr(log_sink, "_FORK_S", DEADLINE_S)
    fd, reader = ends
    before = len(processes.threads(os.getpid()))
    sink = make(fd)
    sink.write(LINE * 100)
    fill(fd)
    start_s = time.monotonic()
    sink.pause()  # in vain
    assert time.monotonic() - start_s < AT_ONCE_S
    assert has_thread(sink)
    reader.read(lambda text: text.count(b"\n") == 100)  # what fills the pipe may stand within a line
    assert sink.drain(DEADLINE_S)
    if not sink._at_once:  # its thread waits for more lines, not for a reader
        fill(fd)
    sink.pause()
    assert not has_thread(sink)
    reader.read(lambda _: len(processes.threads(os.getpid())) <= before)


def test_a_thread_that_has_room_ends_for_a_fork(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork waits for it where all waiting lines have room, and not for a slow reader."""
    monkeypatch.setattr(log_sink, "_FORK_S", DEADLINE_S)
    read, write = os.pipe()
    reader, sink = Reader(read), make(write)
    fill(write)
    sink.write(LINE * 100)
    with sink._lock:  # it cannot be done before
        reader.look(PIPE_BYTES)
        start_s = time.monotonic()
        sink.pause()
        assert time.monotonic() - start_s < AT_ONCE_S
        assert has_thread(sink)
        reader.look(1 << 20)
        sink.pause()
        assert not has_thread(sink)
    assert reader.read(lambda text: text.endswith(LINE)).count(LINE) == 100
    os.close(read)
    os.close(write)


def test_a_thread_that_waits_for_lines_ends_for_a_fork(make: Make, tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        sink = make(file.fileno())
        sink.write(LINE)
        assert sink.drain(DEADLINE_S)
        assert has_thread(sink)
        sink.pause()
        assert not has_thread(sink)
        sink.write(LINE)
        assert sink.drain(DEADLINE_S)
        assert (tmp_path / "log").read_bytes() == LINE * 2


def test_no_room_for_a_thread(make: Make, ends: tuple[int, Reader], monkeypatch: pytest.MonkeyPatch) -> None:
    fd, reader = ends
    monkeypatch.setattr(_thread, "start_new_thread", refuse_thread)
    sink = make(fd)
    for _ in range(200):
        sink.write(LINE)
    monkeypatch.undo()
    reader.read(lambda _: sink.write(b"again\n") and sink._dropped == 0)
    text = reader.read(lambda text: b"dropped" in text)
    assert text.count(LINE) + dropped_of(text) >= 200


def test_a_file_needs_no_thread(
    make: Make, file: tuple[int, Path, Callable[[int], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no thread can start the writer writes itself; only lines without room on the disk are dropped."""
    fd, _, limit = file
    sink = make(fd)
    monkeypatch.setattr(_thread, "start_new_thread", refuse_thread)
    limit(1000)
    for _ in range(12):
        sink.write(LINE)
        assert sink.drain(0)
    limit(2000)
    sink.write(b"again\n")
    assert os.pread(fd, 2000, FAR) == LINE * 10 + b"again\ndropped 2\n"
    assert not has_thread(sink)
