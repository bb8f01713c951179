"""Log lines: what keeps them from costing memory, a frame, or somebody's time; what the doctor must not overlook."""

from __future__ import annotations

from typing import Final

from tests.mutants.code import Guarded

_RING: Final = "unit/test_log_ring.py::"
_DOCTOR: Final = "unit/test_doctor.py::"

RING: Final = Guarded(
    "pulse_supervisor.control.log_ring",
    {
        _RING + "test_the_oldest_go": [
            ("LogRing.add", "while self._bytes > self._max_bytes:", "while False:"),
            ("LogRing._lost", "after is None or after < self._first", "after is None"),
        ],
        _RING + "test_what_is_no_line": [
            ("LogRing.add", "(msgspec.MsgspecError, UnicodeDecodeError)", "UnicodeDecodeError"),
        ],
        _RING + "test_what_is_chosen": [
            ("LogRing._chosen", "one.level >= least and ", ""),
            ("LogRing._chosen", " and request.actor in {None, one.actor}", ""),
        ],
        _RING + "test_pages": [
            ("_fit", "if left < 0 and count:", "if False:"),
            ("LogRing.answer", "fitting[-1].number if more else self._next - 1", "self._next - 1"),
            ("LogRing._chosen", "one.number > after and ", ""),
        ],
        _RING + "test_waiting": [
            ("LogRing.add", "self._grown.set()", "pass"),
        ],
    },
    is_part=True,
)

TAP: Final = Guarded(
    "pulse.system.log_forward",
    {
        _RING + "test_a_long_line": [("Tap._send", "if len(line) > MAX_LINE_BYTES:", "if False:")],
        _RING + "test_nobody_reads": [
            ("Tap._send", "self._lost += 1", "pass"),
            ("Tap._send", "self._lost = 0", "pass"),
        ],
        _RING + "test_the_tap": [
            ("Tap._send", 'if copy.get("exc_info"):', "if False:"),
            ("Tap._send", "dict(event)", "event"),
        ],
    },
    is_part=True,
)

DOCTOR: Final = Guarded(
    "pulse.ops.doctor.queue",
    {
        _DOCTOR + "test_topics": [
            ("topics", ' and not row["is_paused"]', ""),
            ("topics", 'row["hosts"] <= 1', "True"),
        ],
        _DOCTOR + "test_leases": [
            ("leases", 'row["host_s"] is None or ', "row['host_s'] is not None and "),
        ],
    },
    is_part=True,
)

_SINK: Final = "unit/test_logsink.py::"
_PROGRAMS: Final = "unit/test_logsink_programs.py::"
_LIVE: Final = "process/test_logging.py::"
SINK: Final = Guarded(
    "pulse.system.log_sink",
    {
        _SINK + "test_nobody_reads": [
            ("Sink._put", "except BlockingIOError:", "except ChildProcessError:"),
            ("Sink._own", "os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY", "os.O_WRONLY"),
            ("Sink._send", "socket.MSG_DONTWAIT", "0"),
            ("Sink._own", "contextlib.suppress(OSError)", "contextlib.suppress(ChildProcessError)"),
            ("Sink._keep", "self._waiting_bytes + len(data) > MAX_WAITING_BYTES", "False"),
            ("Sink._keep", "self._drop(data.count(_LINE_END))", "pass"),
            ("Sink._is_soon_idle", "self._patient and ", ""),
            ("Sink._tell", "count, self._dropped = self._dropped, 0", "count = self._dropped"),
            ("Sink._put", "self._dropped and not self._waiting", "self._dropped"),
        ],
        _SINK + "test_a_slow_reader_loses_nothing": [
            ("Sink._keep", "not self._is_idle() and ", ""),
            ("Sink._wait_for_room", "self._poll()", "return False"),
            ("Sink._write_waiting", "self._waiting.appendleft(rest)", "pass"),
            ("Sink.write", "(not self._waiting or self._write_waiting())", "True"),
        ],
        _SINK + "test_who_writes_fast_waits_for_who_reads_fast": [
            ("Sink._keep", "if not self._is_soon_idle():", "if True:"),
        ],
        _SINK + "test_nobody_ever_reads_again": [
            ("Sink._put", "except OSError:", "except ChildProcessError:"),
        ],
        _SINK + "test_a_disk_has_room_again": [
            ("Sink._put", "if self._torn:", "if False:"),
        ],
        _SINK + "test_the_count_is_not_lost_with_its_line": [
            ("Sink._put", "stands_for or ", ""),
            ("Sink._tell", "self._told(count), count", "self._told(count)"),
        ],
        _SINK + "test_a_disk_hangs": [
            ("Sink.write", "if self._is_file:", "if False:"),
            ("Sink._own", "return own, self._socket is not None", "return own, True"),
            ("Sink._wait_for_lines", "self._patient = self._patient or not self._waiting", "pass"),
            ("Sink._wake", "not self._writes and ", ""),
        ],
        _SINK + "test_who_runs_handlers_writes_files_itself": [
            ("Sink.__init__", "(self._is_file and files_at_once)", "False"),
        ],
        _SINK + "test_no_thread_stays_where_nothing_waits": [
            ("Sink.begin_anew", "self._runs = False", "pass"),
            ("Sink.pause", " or self._is_stuck()", ""),
            ("Sink._is_stuck", "self._is_idle() or ", ""),
            ("Sink._is_stuck", "(self._is_idle() or self._poll(0))", "True"),
        ],
        _SINK + "test_a_thread_that_has_room_ends_for_a_fork": [
            ("Sink._is_stuck", "(self._write_waiting() and self._poll(0))", "False"),
            ("Sink._is_stuck", "self._write_waiting() and ", ""),
        ],
        _SINK + "test_a_thread_that_waits_for_lines_ends_for_a_fork": [
            ("Sink.pause", "self._leaving = True", "pass"),
        ],
        _SINK + "test_no_room_for_a_thread": [
            ("Sink._start", "except RuntimeError:", "except ChildProcessError:"),
            ("Sink._do_without", "self._drop(sum(one.count(_LINE_END) for one in self._waiting))", "pass"),
        ],
        _SINK + "test_a_file_needs_no_thread": [
            ("Sink._do_without", "if self._is_file:", "if False:"),
        ],
        _SINK + "test_the_line_with_the_count": [
            ("Sink._tell", "contextlib.suppress(Exception)", "contextlib.suppress(ChildProcessError)"),
        ],
        _SINK + "test_a_terminal": [
            ("Sink.isatty", "os.isatty(self._fd)", "False"),
        ],
        _PROGRAMS + "test_last_words": [
            ("Sink", '"""Nothing: the other stream may write here, too, and must not fail."""', "super().close()"),
            ("last_words", "stream.flush()", "pass"),
        ],
        _PROGRAMS + "test_the_last_phase": [
            ("Sink._wake", "sys.is_finalizing()", "False"),
        ],
        _PROGRAMS + "test_who_ends_has_a_second_for_what_waits": [
            ("last_words", "sink.drain(until_s - time.monotonic())", "pass"),
            ("install", "errors if is_same else ", ""),
        ],
        _PROGRAMS + "test_a_fork_while_lines_wait": [
            ("Sink.forked", "self.begin_anew()", "pass"),
        ],
        _PROGRAMS + "test_a_fork_while_the_thread_is_at_it": [
            (
                "Sink.begin_anew",
                "self._lock = threading.RLock()",
                'self._lock = getattr(self, "_lock", None) or threading.RLock()',
            ),
        ],
        _PROGRAMS + "test_a_daemon_closes_everything": [
            ("Sink.forked", "self._is_fork = True", "pass"),
            ("Sink._has_own", "return (found.st_dev, found.st_ino) == self._inode", "return True"),
            ("Sink._has_own", "return False", "raise"),
            ("Sink._own", "self._socket.detach()", "pass"),
        ],
        _PROGRAMS + "test_what_standard_output_loses_is_told_on_standard_error": [
            ("install", 'sys.stderr.write(told("stdout", count).decode())', "pass"),
        ],
        _PROGRAMS + "test_closed_streams": [
            ("_stream", "if stream is None:", "if False:"),
        ],
    },
    is_part=True,
)
LOGS: Final = Guarded(
    "pulse.logs",
    {
        _SINK + "test_the_line_with_the_count": [
            ("_dropped", "LOGGED.set(None)", "LOGGED.set(LOGGED.get())"),
        ],
        _LIVE + "test_a_pool_alone_goes_on": [
            ("configure_logging", "log_sink.install(_dropped, files_at_once=runs_handlers)", "pass"),
        ],
    },
    is_part=True,
)
CELL: Final = Guarded(
    "pulse.worker.isolation.child",
    {
        "process/test_worker_cells.py::test_last_words": [
            ("_leave", "log_sink.last_words(_LAST_WORDS_S)", "pass"),
        ],
    },
    is_part=True,
)
