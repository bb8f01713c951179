"""`pulse demo`: the crash story, on a system of its own."""

from __future__ import annotations

import click

from pulse.common.extras import SERVER, require


@click.command(short_help="Watch a worker being killed, and its job recovered.")
def demo() -> None:
    """
    Watch a worker being killed in the middle of a job, and the job recovered.

    Starts a complete pulse of its own in a temporary directory (PostgreSQL, supervisor, two worker processes), submits
    real work, kills a worker with SIGKILL, shows what happens to its job, and removes everything again.
    """
    from pulse.ops.demo.story import run

    require("pulse demo", SERVER)
    run()
