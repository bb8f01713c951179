"""``python -m pulse.worker MODULE:APP``: the supervisor starts this; for people there is ``pulse worker``."""

from __future__ import annotations

import sys
from typing import Final

import click

from pulse.errors import PulseError
from pulse.worker.command import worker
from pulse.worker.pool.parent import REFUSED
from pulse.worker.service import REFUSED as HOPELESS

_STARTED_BY_SUPERVISOR: Final = "--parent-pid"


def main() -> int:
    """Run the pool; returns the exit code, which shows a supervisor whether another start could help."""
    try:
        code = worker.main(prog_name="pulse worker", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except PulseError as error:
        for line in error.message.splitlines():
            click.echo(f"pulse: {line}", err=True)
        code = REFUSED
    if code == REFUSED and _STARTED_BY_SUPERVISOR in sys.argv:
        return HOPELESS
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    sys.exit(main())
