"""
The pool parent: starts handler processes, replaces those that die, sends heartbeats for silent ones, and stops them.

It runs no user code, so no handler can stop it. Every child leads a session of its own, and all processes that its
handlers started end with it. A dead one is replaced by one that is forked from the template, or by a spare.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Final

import anyio
import structlog

from pulse.common.waiting import WakeupEvent
from pulse.system import pid1
from pulse.system.restart_policy import Intensity, RestartLog
from pulse.worker.execution.wakeup import SAME_SIGNAL_S, SIGNALED, Signals, Waker
from pulse.worker.options import PoolOptions, worker_name
from pulse.worker.pool.child import Child
from pulse.worker.pool.proxy_heartbeat import ProxyHeartbeats, Watch, mind
from pulse.worker.pool.restart import Next, decide, next_delay_s
from pulse.worker.pool.spares import Spares
from pulse.worker.status_pipe import Kind

__all__ = ["run_pool"]

GRACE_S: Final = 3.0  # beyond drain_s: a child gives cancelled handlers 2 s, then ends by itself
LEFTOVERS_S: Final = 0.05  # the dispatcher walks through /proc at once; two walks would share the cores with PostgreSQL
REFILL_S: Final = 0.1  # by then the jobs of a dead process run again; a start takes a core for 0.3 s
CRASH_LOOP: Final = 70  # exit code: handler processes die too often
REFUSED: Final = 1  # exit code: the app cannot be loaded, or the server refuses it
FAULTS: Final = frozenset({signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGILL})


def run_pool(options: PoolOptions) -> int:
    """
    Run a pool until it stops.

    Returns:
        The exit code: 0 stopped or drained as asked; 1 the app cannot be loaded or the server refuses it; 70 handler
        processes die again and again; 128 + n: ended at once by a second signal n.
    """

    async def run() -> int:
        return await WorkerPool(options).run()

    return anyio.run(run, backend="asyncio")


class WorkerPool:
    """One pool; made and run inside the event loop."""

    def __init__(self, options: PoolOptions, intensity: Intensity | None = None) -> None:
        self._options = options
        self._intensity = Intensity() if intensity is None else intensity
        self._log = structlog.get_logger("pulse.worker").bind(worker=worker_name("pool"))
        self._waker = Waker()
        self._signals = Signals(self._waker, same_within_s=SAME_SIGNAL_S)
        self._heartbeats = ProxyHeartbeats()
        self._sessions_changed = WakeupEvent()  # for the parent's connection: there may be sessions about to end
        self._served = WakeupEvent()  # a process of a slot is connected
        self._children: dict[int, Child] = {}
        self._kept = options.processes  # slots that have a process, or will have one again
        self._restarts: dict[int, RestartLog] = {}
        self._loaded = anyio.Event()  # the app, by some process: before that there is nothing to tell but why it is not
        self._stopping = anyio.Event()
        self._ended = anyio.Event()
        self._exit_code = 0
        self._said: set[str] = set()

    async def run(self) -> int:
        """Keep the slots filled until all are done; returns the exit code."""
        self._signals.install()
        async with anyio.create_task_group() as group:
            self._spares: Spares = Spares(self._options, group, self._log)
            group.start_soon(self._watch_signals)
            group.start_soon(self._stop_in_time)
            group.start_soon(self._mind)
            group.start_soon(self._keep_spares)
            if pid1.is_init() or self._options.preload:
                group.start_soon(self._bury_orphans)
            await self._keep_all()
            await self._spares.wait_dismissed()
            self._ended.set()
            group.cancel_scope.cancel()
        if self._loaded.is_set():
            self._log.info("pool_ended", exit_code=self._exit_code)
        return self._exit_code

    async def _keep_all(self) -> None:
        async with anyio.create_task_group() as group:
            for slot in range(self._options.processes):
                group.start_soon(self._keep, slot)

    async def _keep(self, slot: int) -> None:
        """Keep one slot filled: one process after the other."""
        while not self._stopping.is_set():
            try:
                child = await self._spares.take()
            except OSError as error:  # no memory or processes at this moment; the other slots go on
                delay_s = self._restart(slot, worked=False, cause=f"cannot be started: {error}")
            else:
                if child is None:
                    break
                child.begin(slot)
                delay_s = self._after(child, await self._see_through(child))
            if delay_s is None:
                break
            with anyio.move_on_after(delay_s):
                await self._stopping.wait()
        self._kept -= 1

    async def _see_through(self, child: Child) -> int:
        """Watch a process until its end; returns its exit code."""
        self._children[child.slot] = child
        watch = self._heartbeats.add(child.slot, child.pid, child.take_stack)
        async with anyio.create_task_group() as group:
            group.start_soon(self._listen, child, watch)
            await child.ended.wait()
            group.cancel_scope.cancel()
        self._take_notes(child, watch)
        with anyio.move_on_after(LEFTOVERS_S):
            await self._stopping.wait()
        child.kill_all()
        del self._children[child.slot]
        self._heartbeats.remove(child.slot)
        return child.reap()

    def _after(self, child: Child, code: int) -> float | None:
        """Handle the end of a process; returns the delay of the next one, None if there is none."""
        stopping = self._stopping.is_set()
        drained, replaced, refused = child.drained, child.replaced, child.refused is not None
        match decide(stopping=stopping, drained=drained, replaced=replaced, refused=refused):
            case Next.DONE:
                return None
            case Next.REFUSED:
                self._say_once(child.refused or "")
                self._end(REFUSED)
                return None
            case Next.REPLACE:
                self._log.info("handler_process_replaced", slot=child.slot, pid=child.pid)
                return 0.0
            case Next.RESTART:
                how: dict[str, object] = {"signal": signal.Signals(-code).name} if code < 0 else {"exit_code": code}
                if child.fault is not None and -code in FAULTS:
                    how["stack"] = child.fault
                if child.forked and not child.worked and -code in FAULTS:  # of a library that cannot bear it
                    self._spares.forks_are_unsafe(f"a forked process died at its start: {signal.Signals(-code).name}")
                return self._restart(child.slot, worked=child.worked, pid=child.pid, **how)

    def _restart(self, slot: int, *, worked: bool, **how: object) -> float | None:
        """The delay of the next process; None: the pool gives up."""
        limits = self._intensity
        log = self._restarts[slot] = self._restarts.get(slot, RestartLog()).record(time.monotonic(), limits)
        delay_s = next_delay_s(log, limits, worked=worked)
        self._log.warning("handler_process_died", slot=slot, restart_in_s=delay_s, **how)
        if delay_s is None:
            self._say_once(
                f"pulse: handler process {slot} died more than {limits.max_restarts} times within "
                f"{limits.window_s:g} s; the pool gives up"
            )
            self._end(CRASH_LOOP)
        return delay_s

    async def _listen(self, child: Child, watch: Watch) -> None:
        while True:
            await anyio.wait_readable(child.notes_fd)
            if not self._take_notes(child, watch):
                return  # the child closed its end, or a handler wrote into the pipe; its pidfd shows its end

    def _take_notes(self, child: Child, watch: Watch) -> bool:
        """Read notes; returns whether there may be more valid ones."""
        was_lost = child.notes_lost()
        notes, more = child.read_notes()
        for note in notes:
            match note.kind:
                case Kind.LOADED:
                    self._has_loaded()
                case Kind.SESSION:
                    watch.connected(note.text, time.monotonic())
                    self._sessions_changed.wake()
                    self._connected(child)
                case Kind.BEAT:
                    watch.answered(time.monotonic())
                case _:
                    child.hear(note)
        if child.notes_lost() and not was_lost:
            self._log.warning("notes_not_understood", slot=child.slot, pid=child.pid)
        return more

    def _has_loaded(self) -> None:
        if not self._loaded.is_set():
            self._loaded.set()
            pool = self._options
            self._log.info("pool_started", app=pool.app, processes=pool.processes, concurrency=pool.concurrency)

    def _connected(self, child: Child) -> None:
        if not child.worked:
            child.worked = True
            self._served.wake()

    async def _keep_spares(self) -> None:
        """Start spares once all slots are served: they must not slow down the start, or recovery after a death."""
        while True:
            await self._served.wait()
            await anyio.sleep(REFILL_S)
            if len(self._children) == self._kept and all(one.worked for one in self._children.values()):
                self._spares.refill()

    async def _mind(self) -> None:
        await self._loaded.wait()
        refused = await mind(
            self._heartbeats, self._sessions_changed, self._options.socket, worker_name("pool"), self._log
        )
        self._say_once(f"pulse: {refused.message}")
        self._end(REFUSED)

    async def _bury_orphans(self) -> None:
        """As pid 1 of a container, and as the parent that adopts forked processes: reap orphans of handlers."""
        deaths = Waker()
        signal.signal(signal.SIGCHLD, lambda _number, _frame: deaths.wake())
        while True:
            async with self._spares.forking:  # a process that is being adopted is no orphan
                pid1.bury_orphans(self._spares.pids())
            await deaths.wait()

    async def _watch_signals(self) -> None:
        while True:
            await self._waker.wait()
            if self._signals.count > 1:
                self._kill_all()
                os._exit(SIGNALED + self._signals.last)
            if self._signals.count:
                self._end(0)

    async def _stop_in_time(self) -> None:
        """When the pool stops: tell the server, ask every child to end, wait, kill those that are left."""
        await self._stopping.wait()
        if self._loaded.is_set():
            self._log.info("pool_stopping", processes=len(self._children), drain_s=self._options.drain_s)
        self._heartbeats.leave()
        self._sessions_changed.wake()
        for child in self._children.values():
            child.signal(signal.SIGTERM)
        self._spares.dismiss()
        with anyio.move_on_after(self._options.drain_s + GRACE_S):
            await self._ended.wait()
        if not self._ended.is_set():
            self._log.warning("pool_killed_rest", processes=len(self._children))
            self._kill_all()

    def _kill_all(self) -> None:
        self._spares.dismiss()
        for child in self._children.values():
            child.kill_all()

    def _end(self, exit_code: int) -> None:
        """Stop the pool; the first reason other than a request gives the exit code."""
        self._exit_code = self._exit_code or exit_code
        self._stopping.set()

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            sys.stderr.write(text + "\n")
            sys.stderr.flush()
