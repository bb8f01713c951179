"""
Runs pytest again and again, each time in a fork of a process that has imported what all tests need.

    python -m tests.mutants.warm       takes orders as lines of JSON, and answers each with an exit code on a line

To start pytest costs ten times what a unit test does. Nothing of the product is imported before the fork, so that a
mutant comes in time.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import select
import signal
import sys
import traceback
from dataclasses import asdict, dataclass
from typing import Final

import pytest

from tests.mutants import hook

_LIBRARIES: Final = (
    *("anyio._backends._asyncio", "asyncpg", "croniter", "hypothesis.stateful", "msgpack", "msgspec", "psutil"),
    *("rich.console", "structlog", "trio"),
)
_ALWAYS: Final = ("-x", "-q", "--no-header", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--assert=plain")
_PR_SET_PDEATHSIG: Final = 1
TIMED_OUT: Final = 1000  # beside the exit codes of pytest


@dataclass(frozen=True, slots=True)
class Order:
    """
    One run.

    Attributes:
        tests: For pytest.
        environment: On top of this process's own.
        output: File for all that is printed.
        limit_s: For the whole.
    """

    tests: list[str]
    environment: dict[str, str]
    output: str
    limit_s: float

    def line(self) -> bytes:
        """As it is sent."""
        return json.dumps(asdict(self)).encode() + b"\n"


def run(order: Order) -> int:
    """Run pytest in a fork; its exit code."""
    child = os.fork()
    if child == 0:
        _test(order)
    pidfd = os.pidfd_open(child)
    in_time = bool(select.select([pidfd], [], [], order.limit_s)[0])
    os.close(pidfd)
    if not in_time:
        os.killpg(child, signal.SIGKILL)  # with the systems that it has started
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) if in_time else TIMED_OUT


def _test(order: Order) -> None:
    code: int = pytest.ExitCode.INTERNAL_ERROR
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # by hand: nothing of the product is imported yet
        with open(order.output, "wb") as output:  # noqa: PTH123 - pathlib opens no faster
            for stream in (1, 2):
                os.dup2(output.fileno(), stream)
        os.environ.update(order.environment)
        hook.install()
        code = pytest.main([*_ALWAYS, *order.tests])
    except BaseException:  # noqa: BLE001 - whatever it is, the fork must not go on as its parent
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Answer until there are no more orders."""
    for name in _LIBRARIES:
        importlib.import_module(name)
    for line in sys.stdin:
        sys.stdout.write(f"{run(Order(**json.loads(line)))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
