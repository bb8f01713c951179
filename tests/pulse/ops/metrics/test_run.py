"""The life of the endpoint: an address that is taken, and a signal that comes meanwhile."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulse.errors import ConfigError, PathError
from pulse.ops.metrics import run
from pulse.ops.metrics.run import _listen, serve
from pulse.ops.metrics.server import MetricsAddress

STOP = signal.SIGUSR1


@pytest.fixture
def taken() -> Iterator[str]:
    """An address of somebody else."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield f"127.0.0.1:{other.getsockname()[1]}"


@pytest.fixture
def _stopped() -> Iterator[None]:
    """The signal has come before it is waited for."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {STOP})
    signal.pthread_kill(threading.get_ident(), STOP)
    yield
    signal.sigtimedwait({STOP}, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


class TakenOnce(MetricsAddress):
    """An address that is free at the second look."""

    looks = 0

    def listen(self) -> socket.socket:
        self.looks += 1
        if self.looks == 1:
            raise PathError("somebody listens there already")
        return super().listen()


def test_a_person_hears_at_once_that_it_is_taken(taken: str) -> None:
    with pytest.raises(ConfigError, match=f"^cannot listen on {taken}: "):
        serve(taken, None, 1, {STOP}, insists=False)
    with pytest.raises(ConfigError, match=r"^somebody listens there already$"):
        _listen(TakenOnce("0"), {STOP}, insists=False)


def test_who_insists_gets_it_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "AGAIN_S", 0.0)
    address = TakenOnce("0")
    made = _listen(address, {STOP}, insists=True)
    assert made is not None
    made.close()
    assert address.looks == 2


@pytest.mark.usefixtures("_stopped")
def test_a_signal_ends_the_wait() -> None:
    address = TakenOnce("0")
    assert _listen(address, {STOP}, insists=True) is None
    assert address.looks == 1


@pytest.mark.usefixtures("_stopped")
def test_nothing_is_served_after_a_signal(taken: str) -> None:
    serve(taken, None, 1, {STOP}, insists=True)


def test_a_path_is_a_socket_there(tmp_path: Path) -> None:
    with MetricsAddress(f"{tmp_path}/metrics").listen() as made:
        assert made.getsockname() == f"{tmp_path}/metrics"
