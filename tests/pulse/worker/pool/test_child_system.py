"""One handler process, killed by its pool parent."""

from __future__ import annotations

import signal

from pulse.worker.options import PoolOptions
from pulse.worker.pool.child import start
from tests.support.checking.descriptors import free_descriptors


def test_it_is_killed_without_a_free_descriptor() -> None:
    """Its leftovers cannot be looked for then: the pool and its other processes go on all the same."""
    child = start(PoolOptions(app="x:y"))
    with free_descriptors(0):
        child.kill_all()
    assert child.reap() == -signal.SIGKILL
