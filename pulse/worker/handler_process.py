"""
A handler process; started by the pool parent as ``python -m pulse.worker.handler_process FD``, where its options are.

It loads the app, and then waits for its name: it may be a spare.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import asdict
from typing import Final

import anyio
import msgspec

from pulse.app.hooks.lifespan import SHUTDOWN_S, StartupError, running
from pulse.logs import configure_logging
from pulse.system import log_sink, processes
from pulse.worker.app_name import AppError
from pulse.worker.execution import stacks
from pulse.worker.execution.failure_hooks import log_hook
from pulse.worker.load_app import load_app
from pulse.worker.options import PoolOptions, loop_options, received
from pulse.worker.pool import template
from pulse.worker.pool.fork_check import open_descriptors
from pulse.worker.service import REFUSED, Service
from pulse.worker.session.declarations import OtherQueues, declarations_of
from pulse.worker.status_pipe import Kind, NoteWriter

__all__ = ["main"]

LATE_S: Final = 0.5  # beyond the time for the end, after which what waits in the loop is cancelled
NOT_SERVING: Final = 69  # exit code: what the app wants around its handlers failed; the next process may fare better


def main(arguments: list[str]) -> int:
    """Serve the app; returns the exit code, 0 if the process was never needed."""
    options = received(int(arguments[0]))
    processes.die_with_parent(options.parent_pid, signal.SIGKILL)
    stacks.listen(options.stack_fd)
    os.set_inheritable(options.name_fd, False)
    notes = NoteWriter(options.notes_fd)
    configure_logging(options.pool.log_level, options.pool.log_format, runs_handlers=True)
    opened = frozenset[int]() if options.control_fd is None else open_descriptors()
    try:
        app = load_app(options.pool.app)
        left_out = declarations_of(app, options.pool).left_out  # refused here, before any process of the pool is needed
    except AppError as error:
        notes.write(Kind.REFUSED, f"{error.trace}pulse: {error.message}".encode("utf-8", "replace"))
        return REFUSED
    _log_left_out(options.pool, left_out)
    if options.control_fd is not None:
        template.serve(options, opened)  # returns in each process that it forks
    notes.write(Kind.LOADED)

    async def serve() -> int:
        name = await _wait_name(options.name_fd)  # in the loop, which and whose imports exist by then
        if not name:
            return 0
        import structlog  # not above: pulse.logs comes first

        structlog.contextvars.bind_contextvars(worker=name)  # for all that is logged from here on, by handlers too
        log = structlog.get_logger("pulse.worker")
        named = msgspec.structs.replace(options, name=name)
        code = NOT_SERVING
        try:
            async with running(app.hooks, log_hook) as values, anyio.create_task_group() as group:
                group.start_soon(_see_to_the_end)
                # Here, since hooks at the start may have added handlers and schedules to the app.
                code = await Service(named, app, notes, log=log, values=values).run()
                group.cancel_scope.cancel()
        except StartupError as error:
            log.warning("startup_failed", hook=str(error), exc_info=error.__cause__)
        except Exception as error:
            log.warning("handler_process_failed", exc_info=error)
        return code

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the service handles it: a spare ends without a traceback
    return anyio.run(serve, backend=options.pool.backend, backend_options=loop_options(options.pool.backend))


def _log_left_out(pool: PoolOptions, left_out: OtherQueues) -> None:
    """Once where handler processes are forked, since the template does it."""
    if left_out == OtherQueues():
        return
    import structlog  # not above: pulse.logs comes first

    log = structlog.get_logger("pulse.worker")
    tell = log.warning if left_out.without_route else log.info
    tell("topics_left_out", app=pool.app, queue=pool.topics.queue, **asdict(left_out))


async def _see_to_the_end() -> None:
    """
    Once it is cancelled, this process has to end, whatever hangs.

    A plain function for the end may hold the loop, where nothing can cancel it then; and if a lifespan has failed,
    there may be threads of handlers.
    """

    def end() -> None:
        time.sleep(SHUTDOWN_S + LATE_S)
        log_hook("shutdown", TimeoutError("a function that is no coroutine hangs"))
        log_sink.last_words()
        os._exit(NOT_SERVING)

    try:
        await anyio.sleep_forever()
    finally:
        threading.Thread(target=end, daemon=True).start()


async def _wait_name(fd: int) -> str:
    """The name from the parent, which writes it in one piece; '': there will be none."""
    await anyio.wait_readable(fd)
    with open(fd, encoding="ascii") as pipe:  # noqa: ASYNC230 - a descriptor that is readable
        return pipe.readline().rstrip("\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
