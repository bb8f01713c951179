"""What a step costs, where a test has a bar for it."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def cpu_time(*, at_most_s: float) -> Iterator[None]:
    """
    Fail if the block takes more processor time of this thread.

    Other threads of the suite do not count, and nor does the garbage collector: it would look at all that a suite of
    thousands of tests has in memory, which takes a second where others use the processors.
    """
    gc.disable()
    began_s = time.thread_time()
    try:
        yield
        took_s = time.thread_time() - began_s
    finally:
        gc.enable()
    assert took_s < at_most_s, f"{took_s:.2f} s of processor time"
