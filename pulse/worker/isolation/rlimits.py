"""Limits on the process of an isolated job; in force while its handler runs, so that the outcome can still be sent."""

from __future__ import annotations

import dataclasses
import faulthandler
import math
import resource
import signal
from pathlib import Path
from typing import Any, Final

from pulse.app.handler import Handler

__all__ = ["cpu_limit_s", "limited"]

BALLAST_BYTES: Final = 4 * 2**20  # Python allocates 1 MiB at once; untouched, this costs address space only
LAST_SECONDS: Final = 1  # after the limit, for a process that handles SIGXCPU; then the kernel kills it


def limited(handler: Handler, stack_fd: int) -> Handler:
    """
    *handler* with its limits in force while it runs.

    Beyond ``max_memory_bytes`` there is MemoryError. Beyond ``max_cpu_s`` SIGXCPU kills the process; before, the thread
    that was running writes its stack to *stack_fd*, unless it is one of C code.
    """
    if handler.max_memory_bytes is None and handler.max_cpu_s is None:
        return handler
    function = handler.function

    async def call_async(**arguments: Any) -> object:
        limits = _InForce(handler, stack_fd)
        try:
            return await function(**arguments)
        finally:
            limits.lift()

    def call_plain(**arguments: Any) -> object:
        limits = _InForce(handler, stack_fd)
        try:
            return function(**arguments)
        finally:
            limits.lift()

    return dataclasses.replace(handler, function=call_async if handler.is_async else call_plain)


def cpu_limit_s(max_cpu_s: float) -> int:
    """The limit for the kernel, which counts whole seconds."""
    return max(1, math.ceil(max_cpu_s))


class _InForce:
    """
    The limits of a handler, from now on.

    Raises:
        MemoryError: More than is allowed is in use already.
    """

    def __init__(self, handler: Handler, stack_fd: int) -> None:
        self._before: list[tuple[int, tuple[int, int]]] = []
        self._ballast: bytes | None = None
        if handler.max_cpu_s is not None:
            self._limit_cpu(cpu_limit_s(handler.max_cpu_s), stack_fd)
        if handler.max_memory_bytes is not None:
            self._limit_memory(handler.max_memory_bytes)

    def lift(self) -> None:
        """Lift them. A handler may have used up all memory, even for this: so some ballast is freed first."""
        self._ballast = None
        for what, before in self._before:
            resource.setrlimit(what, before)

    def _limit_memory(self, max_bytes: int) -> None:
        in_use = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
        if in_use >= max_bytes:
            raise MemoryError(
                f"max_memory_bytes is {max_bytes}: before the handler runs, {in_use} bytes of address space are in use"
            )
        self._ballast = bytes(BALLAST_BYTES)
        self._set(resource.RLIMIT_AS, max_bytes + BALLAST_BYTES)

    def _limit_cpu(self, limit_s: int, stack_fd: int) -> None:
        self._set(resource.RLIMIT_CORE, 0)  # a limit that was reached needs no core dump
        # The kernel signals the thread that was running; reading the stacks of others is not safe (stacks.py).
        faulthandler.register(signal.SIGXCPU, file=stack_fd, all_threads=False, chain=True)
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        if hard == resource.RLIM_INFINITY or hard > limit_s + LAST_SECONDS:
            resource.setrlimit(resource.RLIMIT_CPU, (limit_s + LAST_SECONDS, limit_s + LAST_SECONDS))
        self._set(resource.RLIMIT_CPU, limit_s)

    def _set(self, what: int, soft: int) -> None:
        before, hard = resource.getrlimit(what)
        resource.setrlimit(what, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))
        self._before.append((what, (before, hard)))
