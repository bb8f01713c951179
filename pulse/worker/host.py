"""A handler process; started by the pool parent as ``python -m pulse.worker.host OPTIONS``."""

from __future__ import annotations

import importlib
import signal
import sys
from typing import Any

import anyio
import msgspec
import structlog

from pulse import procs
from pulse.worker.loading import AppError, load_app
from pulse.worker.notes import Kind, NoteWriter
from pulse.worker.options import Backend, HostOptions
from pulse.worker.service import REFUSED, Service

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Serve the app; returns the exit code."""
    options = msgspec.json.decode(arguments[0], type=HostOptions)
    procs.die_with_parent(options.parent_pid, signal.SIGKILL)
    notes = NoteWriter(options.notes_fd)
    _configure_logging(options)
    try:
        app = load_app(options.pool.app)
    except AppError as error:
        notes.write(Kind.REFUSED, f"{error.trace}pulse: {error.message}".encode("utf-8", "replace"))
        return REFUSED
    log = structlog.get_logger("pulse.worker").bind(worker=options.name)

    async def serve() -> int:
        return await Service(options, app, notes, log).run()

    return anyio.run(serve, backend=options.pool.backend, backend_options=_backend_options(options.pool.backend))


def _backend_options(backend: Backend) -> dict[str, Any]:
    return {"use_uvloop": _has_uvloop()} if backend == "asyncio" else {}


def _has_uvloop() -> bool:
    try:
        importlib.import_module("uvloop")
    except ImportError:
        return False
    return True


def _configure_logging(options: HostOptions) -> None:
    from pulse.logs import configure_logging

    configure_logging(options.pool.log_level, options.pool.log_format)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
