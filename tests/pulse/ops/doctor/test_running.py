"""What is said of workers that do nothing."""

from __future__ import annotations

import pytest

from pulse.ops.doctor.finding import State
from pulse.ops.doctor.running import workers
from pulse.protocol.answers import Worker


@pytest.mark.parametrize(("worker", "said"), [
    (Worker(name="w", pid=7, condition="stopped", quiet_s=5.0), "and has said nothing for 5"),
    (Worker(name="w", pid=7, condition="blocked"), "hangs: a handler blocks its event loop"),
    (Worker(name="w", pid=7, silent=True), "has let a lease pass without a word"),
])  # fmt: skip
def test_a_worker_in_trouble(worker: Worker, said: str) -> None:
    found = workers([worker], 60.0)
    assert (found.state, said in found.text) == (State.WRONG, True)


def test_a_worker_that_works() -> None:
    assert workers([Worker(name="w", pid=7)], 60.0).state is State.OK
