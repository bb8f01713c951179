"""Whether a database has gone back, and the notes beside it."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FuturesTimeoutError
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import msgspec
import pytest

from pulse.common.dsn import hosts_of
from pulse.ops.doctor.epochs import epochs, memory, refused, timeline
from pulse.ops.doctor.finding import State
from pulse.store.recovery.epochs import DatabaseState
from pulse.store.recovery.timelines import ServerTimeline, Timelines, newest_of
from pulse.store.rows import Claim
from pulse_actors.dispatcher.epochs.witness import RecentJobs
from pulse_actors.shared.epoch_memory import Memory, MemoryFile
from pulse_actors.shared.epochs import CLOCKS_S, Verdict, bound_of, given_back, judge, next_epoch, submitted_since

LINEAGE: Final = UUID(int=1)
NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)
KNOWN: Final = Memory(LINEAGE, UUID(int=7), 5, NOW, 2, 2000, "here", "1", 1)
SEEN: Final = DatabaseState(LINEAGE, "1", 1, NOW, 1, "here", 2, 1000, 5, 2, NOW, 0, 0, 2000)


def seen(**changed: Any) -> DatabaseState:
    return DatabaseState(**{**{name: getattr(SEEN, name) for name in SEEN.__slots__}, **changed})


@pytest.mark.parametrize(("changed", "verdict"), [
    ({}, Verdict.STAY), ({"counter": 6}, Verdict.STAY), ({"counter": 4}, Verdict.BACK),
    ({"counter": None, "epoch_seen": None}, Verdict.BACK), ({"epoch": 1}, Verdict.BACK),
    ({"lineage": UUID(int=2)}, Verdict.BACK), ({"epoch": 3, "floor": 2000}, Verdict.ACCEPT),
    ({"epoch": 3, "floor": 2000, "counter": 1}, Verdict.ACCEPT), ({"epoch": 3, "floor": 1000}, Verdict.BACK),
    ({"place": "there"}, Verdict.MOVED), ({"place": "there", "counter": 4}, Verdict.BACK),
    ({"timeline": None, "counter": 4}, Verdict.STANDBY),
])  # fmt: skip
def test_what_proves_that_it_has_gone_back(changed: dict[str, Any], verdict: Verdict) -> None:
    """Less than was confirmed, an older epoch, another database; not a new place, and not an epoch that covers all."""
    assert judge(KNOWN, seen(**changed)) is verdict


def test_who_remembers_nothing_has_come() -> None:
    new = Memory(LINEAGE, UUID(int=9))
    assert judge(new, seen(counter=None)) is Verdict.COME
    assert judge(new, seen(epoch=9)) is Verdict.COME
    assert judge(new, seen(timeline=None)) is Verdict.STANDBY


def test_a_new_epoch_is_above_all_that_are_known() -> None:
    assert next_epoch(KNOWN, seen(epoch=1)) == 3
    assert next_epoch(KNOWN, seen(epoch=7)) == 8


@pytest.mark.parametrize(
    ("attempt", "uncharged", "times"),
    [(1, 0, 0), (5, 2, 2), (99, 90, 10), (1001, 998, 0), (1004, 1001, 3), (2001, 1999, 0)],
)
def test_how_often_a_job_was_given_back(attempt: int, uncharged: int, times: int) -> None:
    """A jump to the floor of an epoch does not count: it would be waited for like a thousand times."""
    assert given_back(Claim(b"", attempt, "n", "t", "{}", None, 0, 0.0, 0, uncharged)) == times


@pytest.mark.parametrize(("attempt", "bound"), [(1, 1000), (1000, 1000), (1001, 2000), (2001, 3000)])
def test_bounds(attempt: int, bound: int) -> None:
    assert bound_of(attempt) == bound


def test_a_notebook_keeps_what_it_is_given(tmp_path: Path) -> None:
    """The next process finds it again; of another database there is nothing."""
    book = MemoryFile(tmp_path / "state")
    first = book.open(LINEAGE)
    assert (first.lineage, first.counter, first.highest) == (LINEAGE, 0, 1000)
    book.keep(KNOWN)
    book.close()
    again = MemoryFile(tmp_path / "state")
    assert again.open(LINEAGE) == KNOWN
    assert again.open(UUID(int=2)).counter == 0
    assert again.problem is None
    assert MemoryFile(tmp_path / "state").open(LINEAGE) == KNOWN
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "state").iterdir()} == {0o600}


def test_without_a_directory_nothing_is_kept() -> None:
    book = MemoryFile(None)
    first = book.open(LINEAGE)
    book.keep(KNOWN)
    assert first.counter == 0
    assert book.open(LINEAGE).instance != first.instance


def test_two_processes_have_a_notebook_each(tmp_path: Path) -> None:
    one, two = MemoryFile(tmp_path), MemoryFile(tmp_path)
    one.open(LINEAGE)
    one.keep(KNOWN)
    assert two.open(LINEAGE).instance != KNOWN.instance
    two.keep(msgspec.structs.replace(KNOWN, counter=1))
    one.close()
    assert MemoryFile(tmp_path).open(LINEAGE) == KNOWN


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"lineage": 1}'])
def test_a_notebook_that_cannot_be_read(tmp_path: Path, text: bytes) -> None:
    book = MemoryFile(tmp_path)
    book.open(LINEAGE)
    book.close()
    (tmp_path / f"database-{LINEAGE}.json").write_bytes(text)
    assert book.open(LINEAGE).counter == 0
    assert book.problem is not None
    book.keep(KNOWN)
    assert book.problem is None


def test_a_notebook_whose_disk_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def hang(_descriptor: int) -> None:
        begun.set()
        goes_on.wait(1.0)

    book = MemoryFile(tmp_path)
    book.open(LINEAGE)
    newer = msgspec.structs.replace(KNOWN, counter=6)
    monkeypatch.setattr(os, "fsync", hang)
    with ThreadPoolExecutor(2) as threads:
        late = threads.submit(book.keep, KNOWN)
        assert begun.wait(5.0)
        book.keep(newer)
        assert "does not answer" in str(book.problem)
        goes_on.set()
        late.result()
        assert book.problem is None
        assert book.open(LINEAGE) == newer
        begun.clear()
        goes_on.clear()
        late = threads.submit(book.keep, KNOWN)
        assert begun.wait(5.0)
        again = threads.submit(book.open, LINEAGE)
        with suppress(FuturesTimeoutError):
            again.result(0.05)
        assert not again.done()
        assert MemoryFile(tmp_path).open(LINEAGE).instance != KNOWN.instance
        goes_on.set()
        late.result()
        assert again.result() == KNOWN


def test_a_notebook_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    book = MemoryFile(tmp_path / "file")
    assert book.open(LINEAGE).counter == 0
    assert book.problem is not None
    book.keep(KNOWN)
    other = MemoryFile(tmp_path)
    other.open(LINEAGE)
    target = tmp_path / "target"
    (tmp_path / f"database-{LINEAGE}.new").symlink_to(target)
    other.keep(KNOWN)
    assert other.problem is not None
    assert not target.exists()
    assert MemoryFile(None).problem == "there is no state directory"


def test_the_newest_completions_are_kept() -> None:
    ids = [os.urandom(16) for _ in range(10)]
    ring = RecentJobs(4)
    assert ring.ids() == []
    for added, kept in ((ids[:3], ids[:3]), (ids[3:6], ids[2:6]), ([], ids[2:6]), (ids[6:7], ids[3:7]), (ids, ids[6:])):
        ring.add(added)
        assert set(ring.ids()) == {*kept}
    ring.add(ids[:1])
    assert set(ring.ids()) == {*ids[7:], ids[0]}


def test_timelines() -> None:
    timelines = Timelines()
    timelines.learn(ServerTimeline("a", 3))
    timelines.learn(ServerTimeline("a", 2))
    timelines.learn(ServerTimeline("a", None))
    answers = [timelines.is_old(ServerTimeline(*one)) for one in (("a", 2), ("a", 3), ("a", 4), ("a", None), ("b", 1))]
    assert answers == [True, False, False, False, False]


def test_timelines_of_other_processes(tmp_path: Path) -> None:
    known = [(4, "a:1/d"), (3, "a:1/d"), (9, "b:1/d"), (8, "")]
    books = [MemoryFile(tmp_path) for _ in known]
    for book, (newest, database) in zip(books, known, strict=True):
        book.open(LINEAGE)
        book.keep(msgspec.structs.replace(KNOWN, timeline=newest, database=database))
    (tmp_path / "database-x.json").write_text("[]")
    (tmp_path / "database-y.json").write_text('{"system_id": "1", "timeline": 7}')
    assert newest_of(tmp_path, "a:1/d") == {"1": 4}
    assert newest_of(tmp_path, "") == newest_of(None, "a:1/d") == newest_of(tmp_path / "nowhere", "a:1/d") == {}


@pytest.mark.parametrize(("dsn", "hosts"), [
    ("postgresql://u:p@a:1/d?x=y", ["postgresql://u:p@a:1/d?x=y"]),
    ("postgresql://u:p@a:1,b/d?x=y", ["postgresql://u:p@a:1/d?x=y", "postgresql://u:p@b/d?x=y"]),
    ("postgresql://a,[::1]:5", ["postgresql://a", "postgresql://[::1]:5"]),
    ("postgresql://u@a,b/d@e", ["postgresql://u@a/d@e", "postgresql://u@b/d@e"]),
    ("postgresql:///d?host=a,b&user=u", ["postgresql:///d?host=a&user=u", "postgresql:///d?host=b&user=u"]),
    ("postgresql:///?host=/a,/b&port=1,2", ["postgresql:///?host=%2Fa&port=1", "postgresql:///?host=%2Fb&port=2"]),
    ("host=a,b port=1 dbname=d", ["postgresql:///?host=a&port=1&dbname=d", "postgresql:///?host=b&port=1&dbname=d"]),
    ("postgresql:///d?user=u", ["postgresql:///d?user=u"]),
])  # fmt: skip
def test_each_host_by_itself(dsn: str, hosts: list[str]) -> None:
    assert hosts_of(dsn) == hosts


def test_what_was_submitted_in_the_missing_time() -> None:
    """By timed ids, with some room for clocks; of other ids, and where the time is not known, nothing is said."""
    at = datetime(2030, 1, 1, tzinfo=UTC)
    earlier, before, after = (_timed(at, seconds) for seconds in (-CLOCKS_S - 1, -CLOCKS_S + 1, 1.0))
    random = after[:6] + bytes([0x4F]) + after[7:]
    assert submitted_since([earlier, before, random, after], at) == [before, after]
    assert submitted_since([after], None) == []


def _timed(at: datetime, seconds: float) -> bytes:
    return int((at.timestamp() + seconds) * 1000).to_bytes(6, "big") + bytes([0x7F]) + bytes(9)


EPOCH: Final = {
    "epoch": 2, "age_s": 60.0, "back_to": "then", "lost_s": 7.0, "host": "h", "reopened": 3, "jobs": ["a"],
    "running": 0, "finished": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "state"), [({}, State.WARNING), ({"age_s": 90_000.0}, State.OK), ({"lost_s": None}, State.WARNING)]
)
def test_the_doctor_on_epochs(changed: dict[str, Any], state: State) -> None:
    found = epochs([{**EPOCH, **changed}], 60.0)
    assert found.state is state
    assert "the database went back to then" in found.text
    assert epochs([], 60.0).state is State.OK
    assert "3 jobs that were finished are open again" in epochs([EPOCH], 60.0).text


@pytest.mark.parametrize(("running", "finished", "words"), [
    (0, 0, ""), (2, 0, "; it does not have 2 that its workers were running"),
    (2, 1000, "; it does not have 2 that its workers were running and 1,000 that they had finished"),
])  # fmt: skip
def test_the_doctor_on_jobs_that_are_gone(running: int, finished: int, words: str) -> None:
    found = epochs([{**EPOCH, "running": running, "finished": finished}], 60.0)
    assert found.text.partition(" are open again")[2] == words
    assert any("What is gone" in line for line in found.advice) == bool(words)


def test_the_doctor_on_timelines() -> None:
    for now, state in ((1, State.WRONG), (2, State.OK), (3, State.OK), (None, State.OK)):
        assert timeline([{"system_id": "a", "timeline": now}], 60.0, newest={"a": 2}).state is state
    assert timeline([{"system_id": "b", "timeline": 1}], 60.0, newest={"a": 2}).state is State.OK
    assert refused("so").state is State.WRONG
    assert memory("so").state is State.WARNING
