"""
``pulse ctl top``: topics, workers and jobs on a live screen.

A thread asks, the main one listens to the keyboard and paints: a server that is silent never keeps a key waiting, and
is said to be silent within two seconds.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Final

import click
import msgspec

from pulse.cli.lazy import examples
from pulse.cli.options import DURATION
from pulse.cli.output.render import Line, Screen, write_document
from pulse.cli.server import ServerHandle, current_server, nobody_of
from pulse.cli.system.top_page import TopSnapshot, TopView, page, pressed
from pulse.errors import PulseError
from pulse.ops.status import DISPATCHER_S, SUPERVISOR_S, TimedCall, merge
from pulse.protocol.answers import JobInfo, JobPageAnswer, StatusAnswer, WorkerList, read
from pulse.protocol.stats import Stats

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

Body = Mapping[str, object]

_INTERVAL_S: Final = 1.0
_ANSWER_S: Final = 0.8  # with the interval, a silence shows within two seconds
_STATS_S: Final = 1.3  # while the database is away, the dispatcher gives up on it after 1 s
_STATUS_EVERY_S: Final = 5.0  # it counts jobs, which is no work for every second
_KEY_S: Final = 0.1
_TOPICS: Final = 200
_WAITING: Final = ("PENDING", "RETRYING")
_JOBS: Final = 50
_ESCAPE_BYTES: Final = 3


class TopSource:
    """
    Asks supervisor and dispatcher, and remembers what it need not ask again.

    Args:
        server: The server to ask.
    """

    def __init__(self, server: ServerHandle) -> None:
        self._server = server
        self._status: dict[str, object] = {}
        self._status_s = float("-inf")
        self._silent: Mapping[str, str] = {}
        self._overall: Body = {}
        self.bodies: dict[str, object] = {}
        self.failures: list[PulseError] = []  # of the last look

    def look(self) -> TopSnapshot:
        """How it stands now; a silent dispatcher shows in less than a second."""
        was_silent = "dispatcher" in self._silent
        is_due = was_silent or time.monotonic() - self._status_s >= _STATUS_EVERY_S
        asked = TimedCall(self._ask_workers, _ANSWER_S)  # it knows these by itself; all else waits for the database
        counted, listed = TimedCall(self._ask_stats, _STATS_S), TimedCall(self._ask_jobs, _ANSWER_S)
        wanted = TimedCall(self._ask_supervisor, SUPERVISOR_S) if is_due else None
        overall = TimedCall(self._ask_overall, DISPATCHER_S) if is_due else None
        told = asked.answer()
        silent: dict[str, str] = {}
        self.failures = [told] if isinstance(told, PulseError) else []
        if isinstance(told, PulseError):
            silent["dispatcher"] = told.message
            if not was_silent and self._status:
                wanted = None  # that it is silent now is worth more than how the others are; they are asked next time
        if wanted is not None:
            supervisor = wanted.answer()
            if isinstance(supervisor, PulseError):
                silent["supervisor"] = supervisor.message
                self.failures.append(supervisor)
            self._status = {} if isinstance(supervisor, PulseError) else dict(supervisor)
            self._status_s = time.monotonic()
        if overall is not None and "dispatcher" not in silent:
            found = overall.answer()
            self._overall = {} if isinstance(found, PulseError) else found
        self._silent = silent
        answers = (told, counted.answer(), listed.answer()) if not isinstance(told, PulseError) else ()
        known = [one for one in answers if not isinstance(one, PulseError)]
        return self._snapshot({key: value for one in known for key, value in one.items()}, silent)

    def _snapshot(self, told: Body, silent: Mapping[str, str]) -> TopSnapshot:
        workers = told.get("workers")
        known = {**self._overall, "workers": workers} if workers is not None else None
        body = merge(self._status or None, known)
        self.bodies = {"status": body, "silent": dict(silent), **told}
        found = told.get("stats")
        return TopSnapshot(
            at=time.time(),
            status=read(StatusAnswer, body),
            silent=silent,
            stats=msgspec.convert(found, Stats) if found is not None else None,
            workers=read(WorkerList, {"workers": workers}).workers if workers is not None else None,
            running=_jobs(told.get("running")),
            waiting=_jobs(told.get("waiting")),
        )

    def _ask_supervisor(self) -> Body:
        return self._server.ask_supervisor("status", timeout_s=SUPERVISOR_S)

    def _ask_overall(self) -> Body:
        return self._server.ask("status", repeatable=True, timeout_s=DISPATCHER_S)

    def _ask_workers(self) -> Body:
        return {"workers": self._server.ask("workers.list", repeatable=True, timeout_s=_ANSWER_S)["workers"]}

    def _ask_stats(self) -> Body:
        body = {"topics": _TOPICS, "history_s": 0}
        return {"stats": self._server.ask("stats", body, repeatable=True, timeout_s=_STATS_S)}

    def _ask_jobs(self) -> Body:
        page = {"limit": _JOBS, "oldest": True, "brief": True}
        wanted: dict[str, Body] = {"running": {"status": ["RUNNING"]}, "waiting": {"status": _WAITING, "due": True}}
        with self._server.client(_ANSWER_S) as client:
            return {
                name: client.request("jobs.list", {**page, **filters}, repeatable=True)["jobs"]
                for name, filters in wanted.items()
            }


def _jobs(rows: object) -> tuple[JobInfo, ...]:
    return tuple(read(JobPageAnswer, {"jobs": rows}).jobs) if rows is not None else ()


@click.command(epilog=examples("pulse ctl top", "pulse ctl top --once", "pulse ctl top --json | jq .stats.rates"))
@click.option("--once", is_flag=True, help="Show it once, and end.")
@click.option(
    "--interval",
    "interval_s",
    type=DURATION,
    default=_INTERVAL_S,
    metavar="DURATION",
    help="Pause between two looks.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document of all that is known, and end.")
def top(*, once: bool, interval_s: float, as_json: bool) -> None:
    """
    Watch topics, workers, rates, what runs longest and what waits longest, on a live screen.

    Keys: q quits, p pauses; t, w and s change the order of topics, workers and jobs; the arrows scroll topics (up,
    down) and workers (left, right). Where output is no terminal, a page follows the other.
    """
    source = TopSource(current_server())
    first = source.look()
    if len(first.silent) > 1:
        raise nobody_of(*source.failures)
    if as_json:
        write_document({"at": first.at, **source.bodies})
        return
    screen = Screen()
    if once or not _is_live(screen):
        while True:
            screen.lines(page(first, TopView(), screen.width, None))
            sys.stdout.flush()
            if once:
                return
            time.sleep(interval_s)
            screen.lines([[]])
            first = source.look()
    _live(source, first, interval_s)


def _is_live(screen: Screen) -> bool:
    """Whether there is a terminal that can be painted on, and rich to do it."""
    if screen.width is None or os.environ.get("TERM", "dumb") == "dumb":
        return False
    return importlib.util.find_spec("rich") is not None


class _PollThread:
    """The thread that asks; a daemon, so that nothing waits for it in the end."""

    def __init__(self, source: TopSource, shot: TopSnapshot, interval_s: float) -> None:
        self.shot = shot
        self.is_paused = False
        self._source = source
        self._interval_s = interval_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Ask no more."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s):
            if not self.is_paused:
                with contextlib.suppress(PulseError, msgspec.ValidationError):  # an answer of another version
                    self.shot = self._source.look()


def _live(source: TopSource, shot: TopSnapshot, interval_s: float) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False, markup=False, emoji=False, no_color=bool(os.environ.get("NO_COLOR")) or None)
    poll = _PollThread(source, shot, interval_s)
    try:
        with _keyboard() as key, Live(console=console, screen=True, auto_refresh=False) as live:
            _paint_until_left(poll, console, live, key)
    finally:
        poll.end()


def _paint_until_left(poll: _PollThread, console: Console, live: Live, key: Callable[[], str]) -> None:
    """Paint whenever something is new: an answer, a key, the size of the window."""
    view, painted = TopView(), None
    while not view.left:
        now = (poll.shot, view, console.size)
        if now != painted:
            width, height = console.size
            live.update(_text(page(poll.shot, view, width, height - 1)), refresh=True)
            painted = now
        view = pressed(view, key())
        poll.is_paused = view.paused


def _text(lines: list[Line]) -> Text:
    from rich.text import Text

    text = Text(no_wrap=True, overflow="crop")
    for line in lines:
        for cell in line:
            text.append(cell.text, cell.style)
        text.append("\n")
    return text


@contextlib.contextmanager
def _keyboard() -> Generator[Callable[[], str]]:
    """What returns the next key, '' after a moment without one; the terminal is as before in the end."""
    import termios
    import tty

    if not sys.stdin.isatty():
        yield _no_key
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)

    def key() -> str:
        if not select.select([descriptor], [], [], _KEY_S)[0]:
            return ""
        read_bytes = os.read(descriptor, 1)
        if read_bytes == b"\x1b" and select.select([descriptor], [], [], 0)[0]:
            read_bytes += os.read(descriptor, _ESCAPE_BYTES - 1)
        return "q" if not read_bytes else read_bytes.decode("ascii", "replace")

    try:
        yield key
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _no_key() -> str:
    time.sleep(_KEY_S)
    return ""
