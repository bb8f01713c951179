"""
`python -m pulse_actors NAME --bus-fd N --parent-pid PID [--listen-fd M [--tcp-fd K]]`: what supervisors start.

NAME is an actor, or ``template``, which forks them, and has a control socket for a bus.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Final

import pulse.logs  # noqa: F401 # pyright: ignore[reportUnusedImport] - before all that imports structlog
from pulse.worker.options import import_loop
from pulse_actors.runtime import template
from pulse_actors.runtime.actor import ActorMain, run

TEMPLATE: Final = "template"


def _dispatcher(options: argparse.Namespace) -> ActorMain:
    from pulse_actors.dispatcher.main import dispatcher

    return dispatcher(options.listen_fd, options.tcp_fd)


def _watchdog(_options: argparse.Namespace) -> ActorMain:
    from pulse_actors.watchdog.actor import watchdog

    return watchdog


def _scheduler(_options: argparse.Namespace) -> ActorMain:
    from pulse_actors.scheduler.actor import scheduler

    return scheduler


def _pause(_options: argparse.Namespace) -> ActorMain:
    from pulse_actors.pause import pause

    return pause


ACTORS: dict[str, Callable[[argparse.Namespace], ActorMain]] = {
    "watchdog": _watchdog,
    "pause": _pause,
    "scheduler": _scheduler,
    "dispatcher": _dispatcher,
}


def main(argv: list[str] | None = None) -> int:
    """Parse the supervisor's arguments and run the actor."""
    parser = argparse.ArgumentParser(prog="pulse_actors", description="One actor of pulse; the supervisor starts it.")
    parser.add_argument("name", choices=[*sorted(ACTORS), TEMPLATE])
    parser.add_argument("--bus-fd", type=int, required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--listen-fd", type=int)
    parser.add_argument("--tcp-fd", type=int)
    options = parser.parse_args(argv)
    if options.name == TEMPLATE:
        for load in ACTORS.values():
            load(options)
        import_loop("asyncio")
        sys.argv[1:] = template.serve(options.bus_fd, options.parent_pid)
        options = parser.parse_args()
    if options.name == "dispatcher" and options.listen_fd is None:
        parser.error("the dispatcher needs --listen-fd")
    return run(options.name, bus_fd=options.bus_fd, parent_pid=options.parent_pid, main=ACTORS[options.name](options))


if __name__ == "__main__":
    sys.exit(main())
