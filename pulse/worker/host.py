"""A handler process; started by the pool parent as ``python -m pulse.worker.host OPTIONS``."""

from __future__ import annotations

import signal
import sys

import anyio
import msgspec
import structlog

from pulse import procs
from pulse.worker import stacks
from pulse.worker.loading import AppError, load_app
from pulse.worker.notes import Kind, NoteWriter
from pulse.worker.options import HostOptions, loop_options
from pulse.worker.service import REFUSED, Service

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Serve the app; returns the exit code."""
    options = msgspec.json.decode(arguments[0], type=HostOptions)
    procs.die_with_parent(options.parent_pid, signal.SIGKILL)
    stacks.listen(options.stack_fd)
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

    return anyio.run(serve, backend=options.pool.backend, backend_options=loop_options(options.pool.backend))


def _configure_logging(options: HostOptions) -> None:
    from pulse.logs import configure_logging

    configure_logging(options.pool.log_level, options.pool.log_format)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
