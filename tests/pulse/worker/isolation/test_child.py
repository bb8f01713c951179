"""A cell without its zygote: how it handles the messages of its handler process."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import NoReturn

import pytest

from pulse.app.app import App
from pulse.app.handler import make_handler
from pulse.protocol import Assignment
from pulse.worker.execution.attempt import Attempt
from pulse.worker.isolation import child
from pulse.worker.isolation.child import CellProcess
from pulse.worker.isolation.messages import CellJob, Interrupt, Lease, frame
from pulse.worker.options import PoolOptions

JOB = Assignment(b"i" * 16, 1, "n", "t", "{}", 2.5, 30.0)


def leave(code: int) -> NoReturn:
    raise SystemExit(code)


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[CellProcess, socket.socket]]:
    """A cell, which may end, and its handler process's end of the channel."""
    monkeypatch.setattr(child, "_leave", leave)
    theirs, ours = socket.socketpair()
    with theirs, ours:
        yield CellProcess(App(), PoolOptions(app="m:app"), theirs, stack_fd=-1), ours


def test_it_waits_for_the_whole_of_its_job(ends: tuple[CellProcess, socket.socket]) -> None:
    cell, ours = ends
    message = frame(CellJob(JOB, "w", "pulse"))
    ours.send(message[:9])
    cell._reader.feed(cell._channel.recv(100))
    ours.send(message[9:] + frame(Lease(True)))
    ours.close()  # it does not wait for more
    assert cell._receive_first() == [CellJob(JOB, "w", "pulse"), Lease(True)]


def test_nothing_is_called_without_a_job(ends: tuple[CellProcess, socket.socket]) -> None:
    cell, ours = ends
    ours.send(frame(Lease(True)))
    with pytest.raises(TypeError, match="the first message is no work: Lease"):
        cell.run()


def test_the_first_reason_to_stop_stays(ends: tuple[CellProcess, socket.socket]) -> None:
    cell, _ = ends
    attempt = cell._attempt = Attempt(JOB, make_handler("n", lambda: None, isolate=True), 0.0)
    for reason in ("canceled", "lost"):
        cell._obey(Interrupt(reason))
    assert (attempt.stopped, attempt.lost) == ("canceled", False)


def test_one_thread_reads(ends: tuple[CellProcess, socket.socket]) -> None:
    """Another that looks meanwhile goes on at once; afterwards any of them may."""
    cell, ours = ends
    ours.send(frame(Lease(True)))
    cell._attempt = attempt = Attempt(JOB, make_handler("n", lambda: None, isolate=True), 0.0)
    with cell._reading:
        cell.look()
    assert not cell.lease_lost(attempt)
    cell.look()
    assert cell.lease_lost(attempt)
