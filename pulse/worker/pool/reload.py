"""
``pulse worker --reload``, for development: a pool that is started again when a file of the app changes.

The pool runs below this process, and is stopped as always: handlers that run may finish, for ``drain_s``. A pool that
ends by itself because of an error, as for an app that cannot be imported, waits for the next change.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import anyio
import structlog
from watchfiles import PythonFilter, awatch

from pulse.common.waiting import WakeupEvent
from pulse.worker.app_name import split_app_name
from pulse.worker.execution.wakeup import SIGNALED, Signals, Waker

__all__ = ["run_reloading"]

SHOWN: Final = 5  # changed files in a log line
_CONFIG: Final = (".toml",)  # pulse.toml; the pool reads it when it starts


def run_reloading(app: str, words: Sequence[str]) -> int:
    """
    Run pools until a signal, or until one ends without an error.

    Args:
        app: ``module:app``.
        words: The words behind ``pulse worker`` that start such a pool.

    Returns:
        The exit code of the last pool.
    """

    async def run() -> int:
        return await _Reloader(app, words).run()

    return anyio.run(run, backend="asyncio")


def watched(app: str) -> list[Path]:
    """What is watched: the current directory; and the app's module or package, where it is elsewhere."""
    here = Path.cwd()
    spec = importlib.util.find_spec(split_app_name(app)[0].partition(".")[0])  # found, not imported
    if spec is None or spec.origin is None:
        return [here]
    file = Path(spec.origin).resolve()
    place = file.parent if spec.submodule_search_locations else file
    return [here] if place.is_relative_to(here) else [here, place]


class _Reloader:
    """One pool after the other."""

    def __init__(self, app: str, words: Sequence[str]) -> None:
        self._app: Final = app
        self._words: Final = words
        self._log: Final = structlog.get_logger("pulse.worker")
        self._waker: Final = Waker()
        self._signals: Final = Signals(self._waker)
        self._changed: Final = WakeupEvent()
        self._ended: Final = anyio.Event()
        self._pool: subprocess.Popen[bytes] | None = None
        self._is_asked = False  # the pool was asked to end

    async def run(self) -> int:
        self._signals.install()
        code = 0
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch_files)
            group.start_soon(self._watch_signals)
            code = await self._run_pools()
            self._ended.set()  # the thread that watches notices this sooner than a cancellation
            group.cancel_scope.cancel()
        return code

    async def _run_pools(self) -> int:
        while True:
            code = await self._run_pool()
            if not self._is_asked and code != 0:
                self._log.warning("pool_waits_for_change", exit_code=code)
                await self._changed.wait()
            elif not self._is_asked:
                return code  # the server asked it to end
            if self._signals.count:
                return code

    async def _run_pool(self) -> int:
        """Run one pool to its end; returns its exit code."""
        self._is_asked = False
        with self._start() as self._pool:
            pidfd = os.pidfd_open(self._pool.pid)
            try:
                await anyio.wait_readable(pidfd)
            finally:
                os.close(pidfd)
                self._signal_pool(signal.SIGKILL)  # only if this task was cancelled
            code = self._pool.wait()
        return SIGNALED - code if code < 0 else code

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "pulse.worker", *self._words, "--parent-pid", str(os.getpid())]
        # In a group of its own Ctrl-C does not reach it: a second signal would end it at once.
        # Bytecode is taken for current if the source has the same second and size: a quick change would go unnoticed.
        env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, env=env, process_group=0)

    def _is_alive(self) -> bool:
        return self._pool is not None and self._pool.poll() is None

    def _signal_pool(self, number: int) -> None:
        if self._pool is not None:  # one that has ended gets no signal
            self._pool.send_signal(number)

    async def _watch_files(self) -> None:
        paths = watched(self._app)
        self._log.info("files_watched", paths=list(map(str, paths)))
        what = PythonFilter(extra_extensions=_CONFIG)
        async for changes in awatch(*paths, watch_filter=what, stop_event=self._ended):
            files = sorted({os.path.relpath(path) for _, path in changes})
            self._log.info("files_changed", files=files[:SHOWN], count=len(files))
            if self._is_alive():
                self._ask_to_end(signal.SIGTERM)
            else:
                self._changed.wake()

    async def _watch_signals(self) -> None:
        """Pass signals on; the first one not to a pool that ends already: it would end at once."""
        while True:
            await self._waker.wait()
            self._changed.wake()
            self._ask_to_end(self._signals.last, again=self._signals.count > 1)

    def _ask_to_end(self, number: int, *, again: bool = False) -> None:
        if again or not self._is_asked:
            self._is_asked = True
            self._signal_pool(number)
