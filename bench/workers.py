"""The scene `workers`: what idle workers cost the dispatcher."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Final

from bench.recovery_scene import BenchError
from bench.results import Sample
from bench.sizes import Size
from bench.stage import Stage, System
from bench.usage import cpu_s, rss_bytes

NUMBERS: Final = (1, 100, 1000)
SETTLE_S: Final = 1.0
OWN_FILES: Final = 500  # that the dispatcher keeps for itself, and some
MB: Final = 1e6


def at_most(size: Size, numbers: Sequence[int]) -> list[int]:
    """*numbers* of idle workers, as far as files may be open: each is two of the dispatcher, connection and process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = min(size.most_idle, max(soft - OWN_FILES, 0) // 2)
    return sorted({min(number, most) for number in numbers})


@contextmanager
def idle(system: System, number: int) -> Generator[None]:
    """So many idle workers beside the pool's own; they are ended afterwards."""
    command = [sys.executable, "-m", "bench.idle", str(system.socket), str(number)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            if not process.stdout.readline():
                raise BenchError(f"{number} idle workers did not connect")
            yield
        finally:
            process.kill()


def workers(stage: Stage) -> list[Sample]:
    """Nothing but heartbeats."""
    samples: list[Sample] = []
    for number in at_most(stage.size, NUMBERS):
        with stage.fresh() as dsn, stage.system(dsn) as system:
            pid = system.pids["dispatcher"]
            with idle(system, number):
                time.sleep(SETTLE_S)
                from_s, used_s = time.monotonic(), cpu_s(pid)
                time.sleep(stage.size.idle_s)
                percent = 100 * (cpu_s(pid) - used_s) / (time.monotonic() - from_s)
                memory = rss_bytes(pid) / MB
        samples.append(Sample(f"{number:,} idle workers, CPU of the dispatcher", percent, "% of a core"))
        samples.append(Sample(f"{number:,} idle workers, dispatcher RSS", memory, "MB"))
    return samples
