"""
One pytest that has imported and collected everything, and forks.

First for each file of tests, to see what they reach; then for each mutant, to see one of the tests fail that reach it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import mmap
import os
import pickle
import select
import signal
import struct
import sys
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

import asyncpg
import pytest

from pulse.errors import PulseError
from tests.mutants import judges, leftovers
from tests.mutants.force import changed_function, force, functions
from tests.mutants.source import SCHEMA, Mutant, path_of, statement_of, statements
from tests.plugins.databases import EMPTY
from tests.support.servers.postgres import GIVEN_DSN, GIVEN_TEMPLATE, Postgres

SURVIVED, KILLED, UNFIT, HUNG = 0, 1, 2, 3  # what becomes of a fork
_ALWAYS: Final = ("-q", "-s", "--no-header", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--assert=plain")
_MARKS: Final = "not long and not systemd and not chaos"
_OFTEN: Final = 60  # calls of a function in one test, of which the lines are noted
_PR_SET_PDEATHSIG: Final = 1
_FILE_LIMIT_S: Final = 300.0  # for all tests of a file
_FILE_LEAST_S: Final = 10.0
_LIMIT_S: Final = 6.0  # for one test, beside ten times what it takes
_START_LIMIT_S: Final = 30.0  # the same for one that starts processes: as the first it starts those of its session, too
FIRST_LIMIT_S: Final = 10.0  # for all tests that judge a mutant first
LATER_LIMIT_S: Final = 120.0  # for those that judge it if it survives these
_RARE: Final = 50.0  # what a test counts for that alone sends something that leads to a function of the schema
_SLOT: Final = struct.Struct("di")  # until when it must have got on; the test that failed


class Reached(NamedTuple):
    """What one test did without any mutant; *lines*: path -> bits, one for each line, and names of statements sent."""

    took_s: float
    passed: bool
    lines: dict[str, int]


@dataclass(frozen=True, slots=True)
class Fork:
    pid: int
    pidfd: int
    slot: int
    ended: Callable[[int, int, int], None]


@dataclass(slots=True, eq=False)
class Judges:
    """
    The tests, as a plugin of pytest, and what they judge.

    Args:
        work: Called when all is collected.
        directory: For files.
        side_by_side: How many processes work at once.
        server: Where databases are made; None: no test makes one.
    """

    work: Callable[[Judges], None]
    directory: Path
    side_by_side: int
    server: Postgres | None
    items: list[pytest.Item] = field(default_factory=list[pytest.Item])
    reached: dict[str, Reached] = field(default_factory=dict[str, Reached])
    kills: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    tried: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _senders: Counter[str] = field(default_factory=Counter[str])  # part of a query, or a path: how many tests reach it
    _forks: list[Fork] = field(default_factory=list[Fork])
    _board: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, 4096))
    _failed: bool = False

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of running the tests."""
        self.items = session.items
        functions()
        gc.collect()
        gc.freeze()  # a fork that collects garbage neither looks at all this nor copies it
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            self.work(self)
        finally:
            for one in self._forks:  # it was interrupted
                leftovers.end(one.pid)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed = self._failed or report.failed or report.skipped

    # What the tests reach.

    def record(self, chosen: Iterable[pytest.Item], paths: Sequence[str], until_s: float) -> list[str]:
        """
        Note what each of the *chosen* tests reaches of the files *paths*.

        Returns:
            The tests that fail by themselves, or for which there was no time.
        """
        files: defaultdict[str, list[pytest.Item]] = defaultdict(list)
        for item in chosen:
            files[item.nodeid.partition("::")[0]].append(item)
        said: list[str] = []

        def one(number: int, name: str, items: list[pytest.Item]) -> None:
            output = self.directory / f"reached-{number}"

            def ended(status: int, _: int, slot: int) -> None:
                if status == SURVIVED:
                    self.reached.update(pickle.loads(output.read_bytes()))  # noqa: S301 - of a fork of ours
                    output.unlink()
                else:
                    end = (self.directory / f"output-{slot}").read_text("utf-8", errors="replace")[-1000:]
                    said.append(f"{name} judges nothing: it did not come to its end:\n{end}")

            limit_s = max(_FILE_LEAST_S, min(_FILE_LIMIT_S, until_s - time.monotonic()))
            self._fork(lambda slot: self._note(slot, items, frozenset(paths), output, limit_s), ended)

        for number, (name, items) in enumerate(files.items()):
            if time.monotonic() > until_s:
                said.append(f"{name} judges nothing, for want of time")
            else:
                one(number, name, items)
        self._drain()
        print()  # noqa: T201
        names = [item.nodeid for items in files.values() for item in items]
        failed = [name for name in names if name in self.reached and not self.reached[name].passed]
        return said + [f"{name} judges nothing: it fails, or skips" for name in failed]

    def _note(self, slot: int, items: list[pytest.Item], paths: frozenset[str], output: Path, limit_s: float) -> int:
        found: dict[str, Reached] = {}
        sent = _watch_statements()
        self._get_on(slot, limit_s)
        for item, following in zip(items, [*items[1:], None], strict=True):
            lines: defaultdict[CodeType, set[int]] = defaultdict(set)
            sent.clear()
            trace = _tracer(paths, lines) if paths else None
            begun_s = time.perf_counter()
            threading.settrace(trace)
            sys.settrace(trace)
            passed = self._run(item, following)
            sys.settrace(None)
            threading.settrace(None)
            bits: defaultdict[str, int] = defaultdict(int, dict.fromkeys(sent, 1))
            for code, numbers in lines.items():
                for number in numbers:
                    bits[code.co_filename] |= 1 << number
            found[item.nodeid] = Reached(time.perf_counter() - begun_s, passed, dict(bits))
        output.write_bytes(pickle.dumps(found))
        return SURVIVED

    # Mutants.

    def expect(self, mutants: Iterable[Mutant]) -> None:
        """The files of tests that these name count as if they had found one of their function."""
        for mutant in mutants:
            self.kills[_place_of(mutant) + mutant.killer.partition("::")[0]] += 1

    def judge(
        self,
        mutants: Iterable[tuple[Mutant, list[str]]],
        tell: Callable[[Mutant, int, str], None],
        until_s: float,
        limit_s: float,
        oldest_dsn: str,
    ) -> None:
        """
        Run the tests of each mutant until one fails, those that it has not survived yet.

        Args:
            mutants: With the names of their tests.
            tell: Called with a mutant, its result, and the test that failed.
            until_s: When to begin no more of them (time.monotonic).
            limit_s: For those of a mutant that reach it, and for those that start processes: others are not run.
            oldest_dsn: Of the server for those that show only on the oldest PostgreSQL.
        """
        by_name = {item.nodeid: item for item in self.items}
        self._senders = Counter(part for one in self.reached.values() for part in one.lines)

        def one(mutant: Mutant, names: list[str]) -> None:
            path = str(path_of(mutant.where)) if mutant.is_code else ""
            left = [name for name in names if name not in self.tried[mutant.key]]
            near = [name for name in left if not path or path in self.reached[name].lines]
            far = [name for name in left if name not in near]
            chosen = self._in_order(mutant, near, limit_s) + self._in_order(mutant, far, limit_s)
            self.tried[mutant.key].update(chosen)

            def ended(code: int, failed: int, _: int) -> None:
                status = KILLED if code < 0 else code  # by a signal: that would end the suite, too
                killer = chosen[failed] if status in {KILLED, HUNG} and failed >= 0 else ""
                self.kills[killer] += 1
                self.kills[mutant.where + killer] += 1
                self.kills[_place_of(mutant) + killer] += 1
                self.kills[_place_of(mutant) + killer.partition("::")[0]] += 1
                tell(mutant, status, killer)

            self._fork(lambda slot: self._try(slot, mutant, [by_name[name] for name in chosen], oldest_dsn), ended)

        for mutant, names in mutants:
            if time.monotonic() > until_s:
                break
            one(mutant, names)
        self._drain()

    def _in_order(self, mutant: Mutant, names: list[str], left_s: float) -> list[str]:
        """
        Those that found most others of the same text in their time, then those that found most of all.

        Those that begin or are called as the module count as if they had found one. Of a statement's tests, those that
        send few others come first: they are about it.
        Those of a file are together: they share a database.
        """
        begin, word = (judges.begin_of(mutant.where), mutant.where.rpartition(".")[2]) if mutant.is_code else ("", " ")
        parts = judges.parts_for(mutant.scope) if mutant.where == SCHEMA else frozenset[str]()
        took_s = {name: max(self.reached[name].took_s, 1e-2) for name in names}
        here = _place_of(mutant)

        def place(name: str) -> tuple[float, float, float]:
            cost = took_s[name] * (1 if mutant.is_code else len(self.reached[name].lines))
            is_own = (bool(begin) and name.startswith(begin)) or word in name
            rare = sum(_RARE / self._senders[part] for part in parts if part in self.reached[name].lines)
            of_text = self.kills.get(mutant.where + name, 0) + is_own + rare
            of_text += 9 * self.kills.get(here + name, 0) + 3 * self.kills.get(here + name.partition("::")[0], 0)
            return -of_text / took_s[name], -self.kills.get(name, 0) / took_s[name], cost

        best = sorted(names, key=place)
        places: dict[str, int] = {}
        for name in best:
            places.setdefault(name.partition("::")[0], len(places))
        chosen: list[str] = []
        for name in best[:3] + sorted(best[3:], key=lambda name: places[name.partition("::")[0]]):
            left_s -= self.reached[name].took_s
            if left_s > 0 or not chosen:
                chosen.append(name)
        return chosen

    def _try(self, slot: int, mutant: Mutant, items: list[pytest.Item], oldest_dsn: str) -> int:
        if not items:
            return SURVIVED
        directory = self.directory / f"slot-{slot}"
        directory.mkdir(exist_ok=True)
        with contextlib.ExitStack() as stack:
            try:
                force(mutant, directory)
                if mutant.killer.endswith("@oldest"):
                    os.environ[GIVEN_DSN] = oldest_dsn
                    os.environ.pop(GIVEN_TEMPLATE)
                if not mutant.is_code:
                    _prepare(mutant, stack)
            except (LookupError, asyncpg.PostgresError, PulseError) as error:
                print(error)  # noqa: T201
                return UNFIT
            return self._run_all(slot, items)

    def _run_all(self, slot: int, items: list[pytest.Item]) -> int:
        slowest_s: defaultdict[str, float] = defaultdict(float)  # of a file: with what its tests share
        for name, one in self.reached.items():
            file = name.partition("::")[0]
            slowest_s[file] = max(slowest_s[file], one.took_s)
        for number, (item, following) in enumerate(zip(items, [*items[1:], None], strict=True)):
            limit_s = _START_LIMIT_S if judges.starts_processes(item.nodeid) else _LIMIT_S
            limit_s += 10 * self.reached[item.nodeid].took_s + 2 * slowest_s[item.nodeid.partition("::")[0]]
            self._get_on(slot, limit_s, number)
            if not self._run(item, following):
                return KILLED
        return SURVIVED

    def _run(self, item: pytest.Item, following: pytest.Item | None) -> bool:
        self._failed = False
        item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
        return not self._failed

    # Processes.

    def _get_on(self, slot: int, limit_s: float, number: int = -1) -> None:
        _SLOT.pack_into(self._board, slot * _SLOT.size, time.monotonic() + limit_s, number)

    def _fork(self, run: Callable[[int], int], ended: Callable[[int, int, int], None]) -> None:
        """Have a fork do something; *ended* gets its exit code, the number of the test that it was at, and its slot."""
        while len(self._forks) >= self.side_by_side:
            self._wait()
        slot = min(set(range(self.side_by_side)) - {one.slot for one in self._forks})
        self._get_on(slot, _LIMIT_S)
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            _child(lambda: run(slot), self.directory / f"output-{slot}")
        self._forks.append(Fork(pid, os.pidfd_open(pid), slot, ended))

    def _wait(self) -> None:
        ready, _, _ = select.select([one.pidfd for one in self._forks], [], [], 0.2)
        now_s = time.monotonic()
        for one in list(self._forks):
            until_s, number = _SLOT.unpack_from(self._board, one.slot * _SLOT.size)
            is_late = one.pidfd not in ready and until_s < now_s
            if not is_late and one.pidfd not in ready:
                continue
            leftovers.end(one.pid)  # what hangs, or what the tests of a mutant have left
            _, status = os.waitpid(one.pid, 0)
            os.close(one.pidfd)
            self._forks.remove(one)
            if self.server is not None:
                self.server.drop_of(one.pid)
            one.ended(HUNG if is_late else os.waitstatus_to_exitcode(status), number, one.slot)
            print(".", end="", flush=True)  # noqa: T201 - progress

    def _drain(self) -> None:
        while self._forks:
            self._wait()


def start(judges: Judges, files: Sequence[str]) -> int:
    """Collect the tests of *files*, and do the work; the exit code of pytest."""
    return int(pytest.main([*_ALWAYS, "-m", _MARKS, *files], plugins=[judges]))


def is_late(item: pytest.Item) -> bool:
    """Whether it takes so long that it judges only what survives the others."""
    return judges.starts_processes(item.nodeid) or item.get_closest_marker("rest") is not None


def _child(run: Callable[[], int], output: Path) -> None:
    code = UNFIT
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        leftovers.mark()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        with output.open("wb") as file:
            for stream in (1, 2):
                os.dup2(file.fileno(), stream)
        code = run()
    except BaseException:  # noqa: BLE001 - a mutant may raise whatever there is
        code = KILLED
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _place_of(mutant: Mutant) -> str:
    return f"{mutant.where}: {mutant.scope}: "


def _prepare(mutant: Mutant, stack: contextlib.ExitStack) -> None:
    """
    Make the databases of this process copies of one with a mutant's schema, which may be no SQL (PostgresError).

    What is open here is closed with *stack*: a test fails if it finds a connection that somebody left open.
    """
    server = stack.enter_context(contextlib.closing(Postgres(os.environ[GIVEN_DSN])))
    if mutant.where == SCHEMA:
        changed = changed_function(mutant)
        dsn = stack.enter_context(server.database()) if changed else ""
        if not dsn or not asyncio.run(_is_carried_out(dsn, changed)):
            os.environ.pop(GIVEN_TEMPLATE, None)
            dsn = server.template()
        os.environ[GIVEN_TEMPLATE] = dsn.partition("?")[0].rpartition("/")[2]
    else:
        with server.database() as dsn:
            asyncio.run(_look_at(dsn, mutant.mutated()))


async def _is_carried_out(dsn: str, sql: str) -> bool:
    """False: it is an error there; it may be right where the function is created."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(sql)
    except asyncpg.PostgresError:
        return False
    finally:
        await connection.close()
    return True


async def _look_at(dsn: str, sql: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.prepare(sql)
    finally:
        await connection.close()


def _watch_statements() -> set[str]:
    """Record the names of statements that are sent from now on, and what they call."""
    names = {statement_of(name).sql: name for name in statements() if name != SCHEMA}
    sent: set[str] = set()
    connection: Any = asyncpg.Connection

    def watched(method: Any) -> Any:
        def call(self: Any, query: str, *words: Any, **options: Any) -> Any:
            if query in names:
                sent.add(names[query])
            if query != EMPTY:
                sent.update(judges.parts_of(query))
            return method(self, query, *words, **options)

        return call

    for name in ("_get_statement", "execute"):
        setattr(connection, name, watched(getattr(connection, name)))
    return sent


def _tracer(paths: frozenset[str], lines: defaultdict[CodeType, set[int]]) -> Any:
    calls: defaultdict[CodeType, int] = defaultdict(int)

    def call(frame: FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        if event != "call" or code.co_filename not in paths:
            return None
        if frame.f_trace is not None:  # a coroutine goes on: that is no other call
            return frame.f_trace
        calls[code] += 1
        if calls[code] > _OFTEN:
            return None
        add = lines[code].add

        def line(inner: FrameType, event: str, _: object) -> Any:
            if event == "line":
                add(inner.f_lineno)
            return line

        return line

    return call
