"""
A pytest plugin that searches everything the suite prints for the passwords and keys of its tests.

It reads what pytest captures, what programs that tests start print or write into files, and what tests
pass to ``search`` themselves (a terminal, a page). It fails the test in which a secret turns up, and names secret and
place, never the secret. A test that shows one on purpose says why: ``@pytest.mark.shows_secrets("why")``.

Each byte is searched once. Of a file the plugin keeps a descriptor, so that it can be read to its end after a fixture
has removed it. What a test reads out of a pipe line by line is not seen.
"""

from __future__ import annotations

import os
import stat
import subprocess
import weakref
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.commandline.warm import Process
from tests.support.confidential import longest, masked, note_settings, note_words, search, take_found

MARK: Final = "shows_secrets"
_PIECE_BYTES: Final = 1 << 22
_SEEN: Final = pytest.StashKey[int]()  # sections of an item's output that were searched

_Popen: Any = subprocess.Popen
_Warm: Any = Process


@dataclass(slots=True)
class Written:
    path: str
    descriptor: int
    writers: list[weakref.ref[Any]]
    at: int = 0

    def read_on(self) -> None:
        """Search what is new, and a little of the old: a secret may be written in two parts."""
        size = os.fstat(self.descriptor).st_size
        if size == self.at:
            return
        if size < self.at:  # it was begun anew
            self.at = 0
        while self.at < size:
            known = min(self.at, longest())
            piece = os.pread(self.descriptor, _PIECE_BYTES, self.at - known)
            if len(piece) <= known:
                break
            search(piece, self.path, known)
            self.at += len(piece) - known

    def is_over(self) -> bool:
        """Whether no process writes it any more."""
        programs = [ref() for ref in self.writers]
        return os.fstat(self.descriptor).st_nlink == 0 or all(p is None or p.returncode is not None for p in programs)


class Leaks:
    """Taps programs of tests, and fails tests."""

    def __init__(self) -> None:
        self._files: dict[tuple[int, int], Written] = {}
        self._own = {"__init__": _Popen.__init__, "communicate": _Popen.communicate, "warm": _Warm.__init__}

    # What programs say.

    def tap(self) -> None:
        communicate = self._own["communicate"]

        @wraps(communicate)
        def communicate_seen(popen: Any, *words: Any, **options: Any) -> Any:
            said = communicate(popen, *words, **options)
            for data, name in zip(said, ("stdout", "stderr"), strict=True):
                if data:
                    search(data, f"{name} of {_title(popen.args)}")
            return said

        _Popen.__init__, _Popen.communicate = self._begin_seen(self._own["__init__"]), communicate_seen
        _Warm.__init__ = self._begin_seen(self._own["warm"])

    def untap(self) -> None:
        _Popen.__init__, _Popen.communicate = self._own["__init__"], self._own["communicate"]
        _Warm.__init__ = self._own["warm"]
        for written in self._files.values():
            os.close(written.descriptor)
        self._files.clear()

    def _begin_seen(self, begin: Any) -> Any:
        @wraps(begin)
        def begin_seen(popen: Any, *words: Any, **options: Any) -> None:
            note_settings(options.get("env") or os.environ)
            command = words[0] if words else options.get("args")
            note_words(command if isinstance(command, list | tuple) else [command])
            begin(popen, *words, **options)
            for sink in (options.get("stdout"), options.get("stderr")):
                self._watch(popen, sink)

        return begin_seen

    def _watch(self, popen: Any, sink: Any) -> None:
        number = sink if isinstance(sink, int) else sink.fileno() if hasattr(sink, "fileno") else -1
        if number < 0 or not stat.S_ISREG((found := os.fstat(number)).st_mode):
            return
        here = f"/proc/self/fd/{number}"
        key = found.st_dev, found.st_ino
        if key not in self._files:
            self._files[key] = Written(str(Path(here).readlink()), os.open(here, os.O_RDONLY | os.O_CLOEXEC), [])
        self._files[key].writers.append(weakref.ref(popen))

    # What becomes of it.

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None]:
        with self._judging(item):
            yield

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        with self._judging(item):
            yield

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None]:
        with self._judging(item):
            yield

    @contextmanager
    def _judging(self, item: pytest.Item) -> Iterator[None]:
        """A test that fails by itself keeps its own error; its leaks are named at the end."""
        try:
            yield
        finally:
            self._search(item)
        found = take_found()
        if found and item.get_closest_marker(MARK) is None:
            pytest.fail("\n".join([masked(item.nodeid), *found]), pytrace=False)

    def _search(self, item: pytest.Item) -> None:
        for key, written in list(self._files.items()):
            is_over = written.is_over()
            written.read_on()
            if is_over:
                os.close(self._files.pop(key).descriptor)
        sections = item._report_sections
        for number in range(item.stash.get(_SEEN, 0), len(sections)):
            when, name, text = sections[number]
            search(text, f"the captured {name} of its {when}")
            sections[number] = when, name, masked(text)  # it is shown with a failure
        item.stash[_SEEN] = len(sections)


def _title(words: Any) -> str:
    text = words if isinstance(words, str) else " ".join(str(os.fsdecode(word)) for word in words)
    return repr(" ".join(text.split())[:160])


def pytest_configure(config: pytest.Config) -> None:
    leaks = Leaks()
    leaks.tap()
    config.add_cleanup(leaks.untap)
    config.pluginmanager.register(leaks, "pulse-leaks")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        mark = item.get_closest_marker(MARK)
        if mark is not None and not (len(mark.args) == 1 and isinstance(mark.args[0], str) and mark.args[0]):
            raise pytest.UsageError(f"{item.nodeid}: {MARK} takes one reason, in words")
