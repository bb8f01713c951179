"""The small pure parts of the worker: deadlines, restarts, the parent's watch, notes, back-off, loading."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse.app.handler import make_handler
from pulse.protocol import Assignment
from pulse.system.restart_policy import Intensity, RestartLog
from pulse.worker.app_name import AppError, check_app_name
from pulse.worker.execution.attempt import Attempt, Phase
from pulse.worker.execution.deadlines import Deadlines
from pulse.worker.load_app import load_app
from pulse.worker.options import worker_name
from pulse.worker.pool.proxy_heartbeat import ProxyHeartbeats
from pulse.worker.pool.restart import Next, decide, next_delay_s
from pulse.worker.session.reconnect import FIRST_PAUSE_S, LAST_PAUSE_S, ReconnectBackoff
from pulse.worker.status_pipe import TEXT_MAX_BYTES, Kind, Note, NoteReader, NoteWriter


def attempt(timeout_s: float | None = None, stall_s: float | None = None) -> Attempt:
    handler = make_handler("n", lambda: None, stall_s=stall_s)
    one = Attempt(Assignment(b"x" * 16, 1, "n", "t", "{}", timeout_s, 30.0), handler, 0.0)
    one.phase = Phase.STARTED
    return one


def test_deadlines_come_in_order() -> None:
    deadlines = Deadlines()
    late, early, same = attempt(9.0), attempt(5.0), attempt(5.0)
    assert not deadlines.watch(attempt(), 0.0)
    assert deadlines.next_s() is None
    assert [deadlines.watch(one, 0.0) for one in (late, early, same, attempt())] == [True, True, False, False]
    assert deadlines.next_s() == 5.0
    assert deadlines.due(5.0) == [(early, "timeout"), (same, "timeout")]
    assert deadlines.due(5.0) == []
    assert deadlines.watch(silent := attempt(stall_s=1.0), 0.0)
    assert deadlines.due(99.0) == [(silent, "stalled"), (late, "timeout")]


def test_deadlines_forget_what_has_ended() -> None:
    deadlines, running = Deadlines(), attempt(1.0)
    deadlines.watch(running, 0.0)
    ended = [attempt(1e6) for _ in range(5000)]
    for one in ended:
        deadlines.watch(one, 0.0)
        one.phase = Phase.ENDED
    assert len(deadlines._heap) < 2048
    assert deadlines.due(2e6) == [(running, "timeout")]
    deadlines.watch(ended[0], 0.0)
    assert deadlines.next_s() is None


def test_a_stall_counts_from_the_last_word() -> None:
    """After progress it is checked again when its new silence may have lasted long enough."""
    deadlines = Deadlines()
    silent, lively = attempt(stall_s=2.0), attempt(stall_s=2.0)
    deadlines.watch(silent, 10.0)
    deadlines.watch(lively, 10.0)
    lively.told_s = 11.5
    assert len(deadlines._heap) == 2, "words must not cost entries"
    assert deadlines.next_s() == 12.0
    assert deadlines.due(12.0) == [(silent, "stalled")]
    assert deadlines.next_s() == 13.5
    lively.told_s = 13.4
    assert deadlines.due(13.5) == []
    assert deadlines.due(15.4) == [(lively, "stalled")]
    assert deadlines.next_s() is None


def test_both_limits_of_one_attempt() -> None:
    deadlines = Deadlines()
    one = attempt(timeout_s=5.0, stall_s=2.0)
    assert deadlines.watch(one, 0.0)
    one.told_s = 4.0
    assert deadlines.due(5.5) == [(one, "timeout")]
    assert deadlines.due(6.0) == [(one, "stalled")]


@pytest.mark.parametrize(("told", "after"), [
    ("", Next.RESTART), ("drained", Next.DONE), ("stopping", Next.DONE), ("stopping drained", Next.DONE),
    ("replaced", Next.REPLACE), ("replaced drained", Next.DONE), ("replaced stopping", Next.DONE),
    ("refused", Next.REFUSED), ("stopping refused", Next.REFUSED), ("drained refused", Next.REFUSED),
    ("replaced refused", Next.REFUSED),
])  # fmt: skip
def test_what_follows_an_ending(told: str, after: Next) -> None:
    assert decide(**{word: word in told.split() for word in ("stopping", "drained", "replaced", "refused")}) is after


def test_the_parent_beats_for_the_silent_and_living() -> None:
    """Due 1.2 heartbeats after the child's last answer, then every heartbeat, and only while the child is at work."""
    states = {7: "S", 8: "S"}
    minder = ProxyHeartbeats(lambda pid: states[pid])
    minder.heartbeat_s = 1.0
    silent, lively = minder.add(0, 7), minder.add(1, 8)
    assert minder.next_due_s() == float("inf")
    silent.connected(b"silent", 0.0)
    lively.connected(b"lively", 0.0)
    lively.answered(1.0)
    assert minder.take_due(1.0) == []
    assert minder.next_due_s() == pytest.approx(1.2)
    assert minder.take_due(1.3) == [b"silent"]
    assert minder.take_due(1.4) == []
    assert minder.take_due(2.3) == [b"silent", b"lively"]
    silent.answered(2.4)
    assert minder.take_due(3.4) == [b"lively"]
    for state in ("T", "t", "Z", "X", ""):
        states[7] = state
        assert b"silent" not in minder.take_due(100.0 + ord(state or " "))
    states[7] = "D"
    assert b"silent" in minder.take_due(500.0)
    minder.remove(0)
    assert minder.take_due(1000.0) == [b"lively"]


def test_the_parent_gives_notice_of_all_who_have_a_session() -> None:
    minder = ProxyHeartbeats(lambda _: "S")
    first, late = minder.add(0, 7), minder.add(1, 8)
    first.connected(b"first", 0.0)
    assert minder.leavers() == []
    minder.leave()
    assert minder.leavers() == [b"first"]
    late.connected(b"late", 1.0)
    assert minder.leavers() == [b"first", b"late"]
    minder.remove(0)
    assert minder.leavers() == [b"late"]


@pytest.mark.parametrize(("heartbeat_s", "lease_s"), [(10.0, 30.0), (1.0, 3.0), (0.1, 0.3)])
def test_the_parent_is_in_time(heartbeat_s: float, lease_s: float) -> None:
    """From the last answer of a child that falls silent, no gap is as long as a lease, one lost beat included."""
    minder = ProxyHeartbeats(lambda _: "S")
    minder.heartbeat_s = heartbeat_s
    minder.add(0, 1).connected(b"s", 0.0)
    times_s = [0.0]
    while len(times_s) < 6:
        now_s = minder.next_due_s()
        assert minder.take_due(now_s) == [b"s"]
        times_s.append(now_s)
    assert all(later - earlier < lease_s for earlier, later in zip(times_s, times_s[2:], strict=False))


@given(st.lists(st.tuples(st.sampled_from(Kind), st.binary(max_size=50)), max_size=5), st.data())
def test_notes_arrive_however_they_are_cut(sent: list[tuple[Kind, bytes]], data: st.DataObject) -> None:
    stream = b"".join(kind.value + len(text).to_bytes(4, "big") + text for kind, text in sent)
    cut = data.draw(st.integers(0, len(stream)))
    reader = NoteReader()
    assert reader.feed(stream[:cut]) + reader.feed(stream[cut:]) == [Note(kind, text) for kind, text in sent]


@pytest.mark.parametrize("junk", [b"?\0\0\0\0", b"B" + (TEXT_MAX_BYTES + 1).to_bytes(4, "big")])
def test_what_is_no_note_is_the_last_that_is_read(junk: bytes) -> None:
    """A handler can write into the pipe: nothing behind it can be believed."""
    reader = NoteReader()
    good = b"B\0\0\0\1x"
    assert reader.feed(good + junk + good) == [Note(Kind.BEAT, b"x")]
    assert reader.is_lost()
    assert reader.feed(good + b"y" * TEXT_MAX_BYTES) == []


def test_notes_never_stop_the_writer() -> None:
    reader, writer = os.pipe()
    notes = NoteWriter(writer)
    assert not os.get_inheritable(writer)
    for _ in range(10_000):
        notes.write(Kind.BEAT, b"x" * 100)
    os.close(reader)
    notes.write(Kind.BEAT)
    os.close(writer)


def test_backoff_grows_and_spreads() -> None:
    longest, shortest = ReconnectBackoff(lambda: 0.0), ReconnectBackoff(lambda: 1.0)
    assert [longest.next_s() for _ in range(7)] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, LAST_PAUSE_S]
    assert [shortest.next_s() for _ in range(2)] == [0.025, 0.05]
    longest.reset()
    assert longest.next_s() == FIRST_PAUSE_S


def test_worker_names_fit_the_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "büro/" * 30)
    name = worker_name(3)
    assert len(name) <= 64
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    assert name.endswith(f"-{os.getpid()}-3")


def test_worker_names_in_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one pod have one host name, and each a pid 1: their namespaces distinguish them."""
    monkeypatch.setattr("socket.gethostname", lambda: "p" * 64)
    names = set[str]()
    for namespace in (0, 0xEFFFFFFC, 4026532201, 2**32 - 1):
        monkeypatch.setattr("pulse.system.processes.pid_namespace", lambda namespace=namespace: namespace)
        monkeypatch.setattr("os.getpid", lambda: 4194304)
        names.add(worker_name("pool"))
    assert len(names) == 3
    assert max(map(len, names)) == 64


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/nowhere"])
    return tmp_path


def test_an_app_in_the_current_directory(here: Path) -> None:
    """MODULE is found in the current directory, in packages too, and APP may be an attribute of something."""
    package = here / "package_of_test"
    package.mkdir()
    package.joinpath("jobs.py").write_text(
        "import pulse\nclass box:\n    app = pulse.App()\n@box.app.handler('x')\ndef x(): ...\n"
    )
    assert list(load_app("package_of_test.jobs:box.app").handlers) == ["x"]


@pytest.mark.parametrize(("name", "source", "text"), [
    ("loading_a", "", "write MODULE:APP"),
    (":app", "", "write MODULE:APP"),
    ("loading_b:", "", "write MODULE:APP"),
    ("no_such_module_here:app", "", "no module 'no_such_module_here' here"),
    ("no_such_package.jobs:app", "", "no module 'no_such_package' here"),
    ("loading_c:app", "x = 1", "loading_c has no 'app'"),
    ("loading_j:ap", "import pulse\napp = pulse.App()", "loading_j has no 'ap'; it has the app 'app'"),
    ("loading_d:app", "app = 1", "it is of type int, not a pulse.App"),
    ("loading_e:app", "import pulse\napp = pulse.App()", "the app has no handlers"),
    ("loading_f:app", "import no_such_dependency", "ModuleNotFoundError: No module named 'no_such_dependency'"),
    ("loading_g:app", "import sys; sys.exit(3)", "SystemExit: 3"),
    ("loading_h:app", "def", "SyntaxError"),
    ("loading_i:app", "import pulse\npulse.App().handler('x')(1)", "handler 'x': 1 is not callable"),
])  # fmt: skip
def test_an_app_that_cannot_be_loaded(here: Path, name: str, source: str, text: str) -> None:
    if source:
        here.joinpath(name.split(":", maxsplit=1)[0] + ".py").write_text(source + "\n")
    with pytest.raises(AppError) as caught:
        load_app(name)
    assert caught.value.message.startswith(f"cannot load {name!r}: ")
    assert text in caught.value.message
    assert ("Traceback" in caught.value.trace) == any(word in text for word in ("Error", "Exit", "callable"))


NEEDS_A_POOL: Final = """
import pulse
from collections.abc import AsyncIterator
app = pulse.App()
class Pool: ...
@app.handler("x")
async def x(pool: Pool = pulse.provided()) -> None: ...
"""
HAS_ONE: Final = """
@app.lifespan
async def pool() -> AsyncIterator[Pool]:
    yield Pool()
"""


def test_values_that_no_lifespan_yields(here: Path) -> None:
    here.joinpath("lonely.py").write_text(NEEDS_A_POOL)
    with pytest.raises(AppError) as caught:
        load_app("lonely:app")
    assert caught.value.message == (
        "cannot load 'lonely:app': handler 'x': no lifespan yields Pool, which parameter 'pool' asks for"
    )
    here.joinpath("supplied.py").write_text(NEEDS_A_POOL + HAS_ONE)
    assert list(load_app("supplied:app").handlers) == ["x"]


@pytest.mark.parametrize(("name", "said"), [
    ("jobs", "cannot load 'jobs': write MODULE:APP, as in shop.jobs:app"),
    ("no-module:app", "cannot load 'no-module:app': write MODULE:APP, as in shop.jobs:app"),
    ("no_such_package.jobs:app", "cannot load 'no_such_package.jobs:app': no module 'no_such_package' here (/"),
])  # fmt: skip
def test_an_app_that_is_refused_before_anything_starts(here: Path, name: str, said: str) -> None:
    """What is certain without importing anything of it: a module here, or on the path, may be right."""
    here.joinpath("checked_here.py").write_text("raise SystemExit\n")
    check_app_name("checked_here.jobs:app")
    check_app_name("json:app")
    with pytest.raises(AppError) as caught:
        check_app_name(name)
    assert caught.value.message.startswith(said)


def test_a_pool_gives_up_on_processes_that_never_worked_only() -> None:
    """The sixth death before the first hello ends the pool; a job that kills its worker each time never does."""
    limits, logs = Intensity(), [RestartLog()]
    for second in range(8):
        logs.append(logs[-1].record(float(second), limits))
    assert [next_delay_s(log, limits, worked=True) for log in logs[1:]] == [0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    assert [next_delay_s(log, limits, worked=False) for log in logs[1:7]] == [0.0, 0.25, 0.5, 1.0, 2.0, None]
