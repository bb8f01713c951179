"""Which signals count."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import cast

import pytest

from pulse.worker.execution.wakeup import Signals, Waker


@pytest.mark.parametrize(("same_within_s", "at_once"), [(60.0, []), (0.0, [signal.SIGTERM])])
def test_the_same_signal_to_the_group_and_from_the_parent(same_within_s: float, at_once: list[int]) -> None:
    heard: list[int] = []
    waker = cast("Waker", SimpleNamespace(wake=lambda: None))
    signals = Signals(waker, same_within_s=same_within_s, at_once=heard.append)
    for _ in range(2):
        signals._receive(signal.SIGTERM, None)
    assert (signals.count, heard) == (1 + len(at_once), at_once)
