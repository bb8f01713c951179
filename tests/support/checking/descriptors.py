"""Want of file descriptors in the test's own process."""

from __future__ import annotations

import os
import resource
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def free_descriptors(count: int) -> Generator[None]:
    """This process can open only *count* more files."""
    lowest_free = os.dup(0)
    os.close(lowest_free)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
