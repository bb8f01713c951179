"""The pool parent knows where a child is, whatever that does, and keeps the last words of one that crashes."""

from __future__ import annotations

import itertools
import json
import os
import signal
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.servers.fake_server import FakeServer, Heard, Peer, job
from tests.support.systems.worker_kit import args, worker
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.timed]

_numbers = itertools.count(1)


def ask(parent: Peer, session: bytes) -> int:
    number = next(_numbers)
    parent.send("stack", number, {"session": session})
    return number


def answer(parent: Peer, number: int) -> Heard:
    return parent.take("stack", lambda heard: heard.request == number)


def where(parent: Peer, session: bytes) -> str:
    """The stack of a child, as soon as the parent knows its session."""
    return until(lambda: str(answer(parent, ask(parent, session)).body["stack"] or ""), "a stack")


@pytest.mark.parametrize(
    ("name", "backend"), [("hog", "asyncio"), ("hog", "trio"), ("block-loop", "asyncio"), ("deaf", "asyncio")]
)
def test_the_parent_tells_where_a_child_is(name: str, backend: str, tmp_path: Path) -> None:
    """All calls, while C code holds the interpreter, the loop is blocked or a thread is busy; anew each time."""
    started = tmp_path / "started"
    with FakeServer() as server, worker(server, "--backend", backend):
        parent, child = server.wait_parent(), server.wait_child()
        gate = {"gate": tmp_path / "gate"} if name == "block-loop" else {}
        child.assign([job(name, args(started=started, **gate))])
        until(started.exists, "the handler")
        for _ in range(3):
            stack = where(parent, child.session)
            assert f"in {name.replace('-', '_')}\n" in stack
            assert stack.count("Main thread ") == 1, "an older stack is still in it"
            assert stack.splitlines()[-1].endswith("in _run_module_as_main"), "it is not complete"


def test_who_cannot_be_seen(tmp_path: Path) -> None:
    """Nil for an unknown session and for a stopped process, at once, and without harm."""
    with FakeServer() as server, worker(server) as pool:
        parent, child = server.wait_parent(), server.wait_child()
        assert answer(parent, ask(parent, bytes(16))).body == {"stack": None}
        where(parent, child.session)  # it is known there
        (process,) = pool.children()
        os.kill(process.pid, signal.SIGSTOP)
        until(lambda: process.status() == "stopped", "a stopped child")
        assert answer(parent, ask(parent, child.session)).body == {"stack": None}
        os.kill(process.pid, signal.SIGCONT)
        until(lambda: process.status() != "stopped", "a running child")
        assert "in _run_module_as_main" in where(parent, child.session)
        process.kill()
        child.wait_closed()
        again = server.wait_child()
        assert again.session == child.session  # the fake server gives it by name
        assert "in _run_module_as_main" in where(parent, again.session)


def test_questions_do_not_delay_the_beats(tmp_path: Path) -> None:
    """A child that does not answer is given up after a second, more than a lease: its parent beats on."""
    started = tmp_path / "started"
    with FakeServer(heartbeat_s=0.2, lease_s=0.6) as server, worker(server):
        parent, child = server.wait_parent(), server.wait_child()
        child.assign([job("hog-mute", args(started=started))])
        until(started.exists, "the handler")
        parent.take("heartbeat")
        asked_s = parent.log[-1].at_s
        answered = answer(parent, ask(parent, child.session))
        assert answered.body == {"stack": None}
        assert answered.at_s - asked_s > 1.0
        assert answer(parent, ask(parent, child.session)).body == {"stack": None}, "it blocks the signal now"
        beats_s = [heard.at_s for heard in parent.log if heard.kind == "heartbeat" and heard.at_s >= asked_s]
        assert max(later - earlier for earlier, later in pairwise(beats_s)) < 0.6


def test_a_question_of_another_version_is_answered() -> None:
    with FakeServer() as server, worker(server):
        parent = server.wait_parent()
        server.wait_child()
        parent.send("stack", 77, {"child": "the first"})
        assert answer(parent, 77).body == {"stack": None}


def test_a_fault_leaves_its_stack_in_the_log() -> None:
    with FakeServer() as server, worker(server) as pool:
        child = server.wait_child()
        child.assign([job("fault")])
        child.wait_closed()
        server.wait_child()
        lines = [json.loads(line) for line in pool.stderr.splitlines()]
        (died,) = [line for line in lines if line["event"] == "handler_process_died"]
        assert died["signal"] == "SIGSEGV"
        assert died["stack"].startswith("Fatal Python error: Segmentation fault")
        assert "in fault\n" in died["stack"]
