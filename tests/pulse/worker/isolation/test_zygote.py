"""What a zygote does when the kernel does not do its part."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Final

import pytest

from pulse.app.app import App
from pulse.worker.isolation import zygote
from pulse.worker.isolation.messages import CellRefused, Fork, from_zygote, pack
from pulse.worker.isolation.zygote import CELL_FDS, Zygote
from pulse.worker.options import PoolOptions

NOBODY: Final = 2**22 + 1  # no pid is so large


@pytest.fixture
def ends() -> Iterator[tuple[Zygote, socket.socket]]:
    control, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with control, ours:
        yield Zygote(control, App(), PoolOptions(app="m:app")), ours


def test_a_cell_whose_descriptors_did_not_arrive(ends: tuple[Zygote, socket.socket]) -> None:
    """The zygote had no room for them."""
    served, ours = ends
    descriptor = os.open(os.devnull, os.O_RDONLY)
    socket.send_fds(ours, [pack(Fork(7))], [descriptor] * (CELL_FDS - 1))
    os.close(descriptor)
    assert served._take_order()
    assert from_zygote.decode(ours.recv(1000)) == CellRefused(7, "[Errno 24] Too many open files")


def test_an_orphan_that_does_not_die(ends: tuple[Zygote, socket.socket], monkeypatch: pytest.MonkeyPatch) -> None:
    """It hangs in the kernel: the next jobs do not wait for it."""
    served, _ = ends
    looked: list[int] = []

    def orphans() -> list[int]:
        looked.append(NOBODY)
        assert len(looked) < 100
        return [NOBODY]

    monkeypatch.setattr(zygote, "ORPHANS_S", -1.0)
    monkeypatch.setattr(served, "_orphans", orphans)
    served._end_orphans()
    assert len(looked) == 1
