"""
Standard error and standard output of pulse's processes: a write there never waits and never fails.

The caller writes what does not block, so that the last line before a sudden end is there. The rest waits in memory, at
most MAX_WAITING_BYTES (or one longer line), for a thread that runs while it is needed. Lines that do not fit or fail
are dropped and counted, and the next line that can be written is followed by the count.

O_NONBLOCK belongs to the open file, which other processes share, so it is not set on inherited descriptors: pipes and
terminals are opened once more, and sockets have a flag for each call. All others (files, since a hanging disk blocks
every writer; pipes of another user) are left to the thread. Writers to a file wait for that thread, 100 ms at most and
usually 40 µs: nothing for a server's log, but too much for what handlers print, so handler processes write files
themselves. So does every process that cannot start a thread.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import contextvars
import io
import os
import select
import socket
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

MAX_WAITING_BYTES: Final = 256 * 1024  # of each stream: a thousand lines, while a reader is slow
EXIT_S: Final = 1.0  # for a process that ends to get rid of what waits
_PATIENCE_S: Final = 0.1  # once: a disk or a reader that lives has taken MAX_WAITING_BYTES by then
_FORK_S: Final = 0.1  # for the thread to end before a fork
_LINGER_S: Final = 1.0  # of the thread: a start costs as much as five lines
_LINE_END: Final = b"\n"

_installed: list[Sink] = []


class Sink(io.RawIOBase):
    """
    The raw stream below a text stream.

    Args:
        fd: The descriptor; it is neither changed nor closed.
        told: Makes the line about dropped lines, if there is to be one.
        files_at_once: A thread that writes to a regular file does it itself, and waits for a disk that hangs.
    """

    def __init__(self, fd: int, told: Callable[[int], bytes], *, files_at_once: bool = False) -> None:
        self.name = self._number = fd
        self._told = told
        self._socket: socket.socket | None = None
        found = os.fstat(fd)
        self._inode = found.st_dev, found.st_ino
        self._is_file = stat.S_ISREG(found.st_mode)
        self._is_fork = False
        self._fd, self._at_once = self._own()
        self._at_once = self._at_once or (self._is_file and files_at_once)
        # A pipe takes so much in one piece: of more, lines of other processes come between.
        self._piece_bytes = MAX_WAITING_BYTES if self._is_file else select.PIPE_BUF
        self.begin_anew()

    def begin_anew(self) -> None:
        """With nothing that waits, and no thread."""
        self._lock = threading.RLock()  # a signal's handler may log while its thread does
        self._changed = threading.Condition(self._lock)
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._runs = False  # the thread
        self._writes = False  # the thread, what it has taken
        self._leaving = False
        self._dropped = 0
        self._patient = True  # a writer that finds no room waits for it
        self._midline = False  # what was written last is no whole line
        self._torn = False  # and the rest of it was dropped

    def _own(self) -> tuple[int, bool]:
        """A descriptor of our own for the same, and whether writing there never blocks."""
        kind = os.fstat(self._number).st_mode
        if not stat.S_ISREG(kind) and not stat.S_ISSOCK(kind):
            with contextlib.suppress(OSError):  # of another user, or nobody reads
                return os.open(f"/proc/self/fd/{self._number}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY), True
        own = os.dup(self._number)
        if self._socket is not None:
            self._socket.detach()  # its number is somebody else's by now
        if stat.S_ISSOCK(kind):
            self._socket = socket.socket(fileno=own)
        return own, self._socket is not None

    def _has_own(self) -> bool:
        try:
            found = os.fstat(self._fd)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._inode

    # What streams need.

    def writable(self) -> bool:
        """It is."""
        return True

    def close(self) -> None:
        """Nothing: the other stream may write here, too, and must not fail."""

    def fileno(self) -> int:
        """The descriptor that was given, for programs that are to inherit it."""
        return self._number

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return os.isatty(self._fd)

    def write(self, data: ReadableBuffer, /) -> int:
        """Write *data*, or keep it for the thread, or drop it."""
        rest = text = bytes(data)
        with self._lock:
            if self._at_once and (not self._waiting or self._write_waiting()):
                rest = self._put(text)
            if rest:
                self._keep(rest)
                if self._is_file:  # what is logged is there, unless the disk hangs
                    self._is_soon_idle()
        return len(text)

    # The rest.

    def drain(self, within_s: float) -> bool:
        """Wait until nothing waits any more; whether that is so."""
        with self._lock:
            return self._changed.wait_for(self._is_idle, within_s)

    def pause(self) -> None:
        """Before a fork: have no thread, where that can be; one that stays does the child no harm."""
        with self._lock:
            if not self._runs or self._is_stuck():
                return
            self._leaving = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._runs, _FORK_S)
            self._leaving = False

    def forked(self) -> None:
        """In the child of a fork: its parent writes what waits. Daemons close what they do not know, and open more."""
        self.begin_anew()
        self._is_fork = True

    def _is_stuck(self) -> bool:
        """Whether the thread is left with a pipe that nobody reads, and to wait for it is in vain; with the lock."""
        if self._at_once:
            return not (self._write_waiting() and self._poll(0))  # such a thread ends when both are so
        return not (self._is_idle() or self._poll(0))

    def _is_idle(self) -> bool:
        return not self._waiting and not self._writes

    def _put(self, data: bytes, stands_for: int = 0) -> bytes:
        """Write; returns what is left where that would block. For one caller at a time."""
        try:
            if self._is_fork and not self._has_own():
                self._fd, self._at_once = self._own()
            if self._torn:
                self._send(_LINE_END)
                self._torn = self._midline = False
            while data:
                sent = self._send(data)
                self._midline = not data.endswith(_LINE_END, 0, sent)
                data = data[sent:]
        except BlockingIOError:
            return data
        except OSError:  # a full disk, nobody who reads, a terminal that is gone
            self._torn = self._midline
            self._drop(stands_for or data.count(_LINE_END))
            return b""
        return self._tell() if self._dropped and not self._waiting else b""

    def _send(self, data: bytes) -> int:
        if self._socket is not None:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        return os.write(self._fd, data)

    def _tell(self) -> bytes:
        with self._lock:
            count, self._dropped = self._dropped, 0
        with contextlib.suppress(Exception):  # logging must not fail its caller
            return self._put(self._told(count), count)
        return b""

    def _keep(self, data: bytes) -> None:
        """Have the thread write it, where there is room; with the lock. Alone it has room, however long it is."""
        while not self._is_idle() and self._waiting_bytes + len(data) > MAX_WAITING_BYTES:
            if not self._is_soon_idle():
                self._drop(data.count(_LINE_END))
                return
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        self._wake()

    def _is_soon_idle(self) -> bool:
        """Wait a moment for that; once in vain, no more until all is written."""
        self._patient = self._patient and self._changed.wait_for(self._is_idle, _PATIENCE_S)
        return self._patient

    def _wake(self) -> None:
        # Threads end with the interpreter; one that was writing then may hang, and so would we.
        is_last = self._is_file and not self._writes and sys.is_finalizing()
        if is_last or not (self._runs or self._start()):
            self._do_without()
        else:
            self._changed.notify_all()

    def _start(self) -> bool:
        """Start the thread; whether that can be."""
        self._runs = True
        try:  # no threading.Thread: apps are asked about those, and to start one waits for it
            _thread.start_new_thread(contextvars.copy_context().run, (self._serve,))
        except RuntimeError:  # no room for a thread, or the interpreter ends
            self._runs = False
        return self._runs

    def _do_without(self) -> None:
        """No thread: a file is written at once, which is rarely slow; what waits for anything else is dropped."""
        if self._is_file:
            self._write_waiting()
        self._drop(sum(one.count(_LINE_END) for one in self._waiting))
        self._waiting.clear()
        self._waiting_bytes = 0

    def _drop(self, lines: int) -> None:
        with self._lock:
            self._dropped += lines

    def _take(self) -> bytes:
        """What comes next; with the lock."""
        taken = [self._waiting.popleft()]
        size = len(taken[0])
        while self._waiting and (size := size + len(self._waiting[0])) <= self._piece_bytes:
            taken.append(self._waiting.popleft())
        piece = b"".join(taken)
        self._waiting_bytes -= len(piece)
        return piece

    def _write_waiting(self) -> bool:
        """Write what waits; whether all of it went. With the lock, where writing never blocks, or to a file."""
        while self._waiting:
            if rest := self._put(self._take()):
                self._waiting.appendleft(rest)
                self._waiting_bytes += len(rest)
                return False
        self._patient = True
        return True

    # The thread.

    def _serve(self) -> None:
        serve = self._wait_for_room if self._at_once else self._wait_for_lines
        while serve():
            pass

    def _wait_for_room(self) -> bool:
        """Once more; False: all is written, and the thread has ended."""
        self._poll()
        with self._lock:
            self._runs = not self._write_waiting()
            self._changed.notify_all()
            return self._runs

    def _poll(self, within_ms: int | None = None) -> bool:
        """Wait until something can be written; whether that is so."""
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        return bool(poll.poll(within_ms))

    def _wait_for_lines(self) -> bool:
        """Once more; False: none have come for a while, and the thread has ended."""
        with self._lock:
            self._changed.wait_for(lambda: self._waiting or self._leaving, _LINGER_S)
            self._runs = self._writes = bool(self._waiting)
            piece = self._take() if self._waiting else b""
        while piece := self._put(piece):  # somebody else has made it a non-blocking one
            self._poll()
        with self._lock:
            self._writes = False
            self._patient = self._patient or not self._waiting
            self._changed.notify_all()
            return self._runs


def install(told: Callable[[str, int], bytes], *, files_at_once: bool) -> None:
    """
    Have sys.stderr and sys.stdout write to sinks, one where both are the same file; a second time does nothing.

    Args:
        told: Makes the line for standard error that says how many lines of which stream were dropped.
        files_at_once: See ``Sink``.
    """
    errors = _sink(sys.stderr, lambda count: told("stderr", count), files_at_once=files_at_once)
    sys.stderr = _stream(sys.stderr, errors)

    def told_there(count: int) -> bytes:
        sys.stderr.write(told("stdout", count).decode())
        return b""

    is_same = errors is not None and sys.stdout is not None and _is_same(errors, sys.stdout)
    sys.stdout = _stream(sys.stdout, errors if is_same else _sink(sys.stdout, told_there, files_at_once=files_at_once))


def _is_same(sink: Sink, stream: TextIO) -> bool:
    try:
        return os.path.sameopenfile(sink.fileno(), stream.fileno())
    except (OSError, ValueError):
        return False


def _sink(stream: TextIO | None, told: Callable[[int], bytes], *, files_at_once: bool) -> Sink | None:
    """For *stream*; None: it needs none."""
    if stream is None or isinstance(getattr(stream, "buffer", None), Sink):
        return None
    try:
        sink = Sink(stream.fileno(), told, files_at_once=files_at_once)
    except (OSError, ValueError):  # no descriptor behind it, or one that is closed
        return None
    if not _installed:
        os.register_at_fork(before=pause, after_in_child=_forked)
        atexit.register(last_words)
    _installed.append(sink)
    return sink


def _stream(stream: TextIO | None, sink: Sink | None) -> TextIO:
    if stream is None:  # closed before this process began; whatever is opened next must not be taken for it
        return Path(os.devnull).open("w", encoding="utf-8")
    if sink is None:
        return stream
    return io.TextIOWrapper(sink, encoding=stream.encoding, errors=stream.errors, line_buffering=True)


def pause() -> None:
    """Before a fork: have no threads, where that can be."""
    for sink in _installed:
        sink.pause()


def _forked() -> None:
    for sink in _installed:
        sink.forked()


def last_words(within_s: float = EXIT_S) -> None:
    """Before this process ends: write what waits, as far as possible."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # a handler may have put anything there
            stream.flush()
    until_s = time.monotonic() + within_s
    for sink in _installed:
        sink.drain(until_s - time.monotonic())
