"""How the attempts of a dead worker end, and with which reason."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final

import anyio
import pytest

from pulse.store.rows import EndingKind
from pulse.system.processes import OomKills
from pulse_actors.dispatcher.liveness.process_watch import WatchedProcess, _describe, obituary, stranger
from pulse_actors.dispatcher.workers.records import ForcedEnding, HeldJob, RegisteredWorker
from pulse_actors.shared.identity import Host

HUNG: Final = (b"h" * 16, 3)
STARTED: Final = (b"s" * 16, 1)
QUEUED: Final = (b"q" * 16, 2)
SENTENCE: Final = ForcedEnding(EndingKind.TIMEOUT, "too late", "where it was")
WORKER: Final = "h/b/1/0.0/w"


@pytest.fixture
def worker() -> RegisteredWorker:
    made = stranger(Host("h", "b", 1), WORKER, 0)
    made.jobs.held = {pair: HeldJob("n", "t", started=pair != QUEUED) for pair in (HUNG, STARTED, QUEUED)}
    return made


def ends(worker: RegisteredWorker) -> list[tuple[EndingKind, str | None, int | None]]:
    found = obituary(worker, "why", -9, worker.held)
    assert [(one.id, one.attempt, one.worker) for one in found] == [(*pair, WORKER) for pair in worker.held]
    return [(one.kind, one.error, one.exit_code) for one in found]


CHARGED: Final = (EndingKind.CRASHED, "why", -9)
EXCUSED: Final = (EndingKind.RELEASED, "why", None)
GIVEN_BACK: Final = (EndingKind.RELEASED, None, None)


def test_started_attempts_crash_and_the_others_are_given_back(worker: RegisteredWorker) -> None:
    assert ends(worker) == [CHARGED, CHARGED, GIVEN_BACK]


def test_who_was_leaving_charges_nobody(worker: RegisteredWorker) -> None:
    worker.leaving = True
    assert {kind for kind, *_ in ends(worker)} == {EndingKind.RELEASED}


def test_a_sentence_is_carried_out(worker: RegisteredWorker) -> None:
    worker.jobs.forced_endings[HUNG] = SENTENCE
    worker.leaving = True
    assert ends(worker) == [(EndingKind.TIMEOUT, "too late", -9), EXCUSED, GIVEN_BACK]
    assert obituary(worker, "why", -9, worker.held)[0].stack == "where it was"


def test_who_had_a_process_of_its_own_did_not_kill_it(worker: RegisteredWorker) -> None:
    """Unless nobody else ran: else a job that kills its worker from there would do so for ever."""
    worker.held[STARTED].apart = True
    assert ends(worker) == [CHARGED, EXCUSED, GIVEN_BACK]
    worker.held[HUNG].apart = True
    assert ends(worker) == [CHARGED, CHARGED, GIVEN_BACK]


def test_what_had_ended_did_not_kill_it(worker: RegisteredWorker) -> None:
    """Its result was refused for want of room, and is lost; it goes elsewhere uncharged."""
    worker.held[STARTED].ended = True
    assert ends(worker) == [CHARGED, EXCUSED, GIVEN_BACK]
    worker.held[HUNG].ended = True
    worker.jobs.forced_endings[HUNG] = SENTENCE  # before its cancel was sent
    assert {kind for kind, *_ in ends(worker)} == {EndingKind.RELEASED}


KILLED: Final = int(signal.SIGKILL)  # as waitpid tells it
EXIT_7: Final = 7 << 8


@pytest.mark.anyio
@pytest.mark.parametrize(("status", "oom", "leaving", "said"), [
    (KILLED, "oom_kill 4\n", False, "out of memory (SIGKILL)"),
    (KILLED, "oom_kill 3\n", False, "SIGKILL"),
    (KILLED, None, False, "SIGKILL"),
    (KILLED, "oom_kill 4\n", True, "SIGKILL"),  # that was us
    (int(signal.SIGTERM), "oom_kill 4\n", False, "SIGTERM"),
    (EXIT_7, "oom_kill 4\n", False, "exit code 7"),
    (None, "oom_kill 4\n", False, "how is not known"),
])  # fmt: skip
async def test_want_of_memory_is_named(
    worker: RegisteredWorker, tmp_path: Path, status: int | None, oom: str | None, leaving: bool, said: str
) -> None:
    """Where the kernel's OOM killer was active since, and no other killer is known."""
    worker.leaving = leaving
    watch = WatchedProcess(worker, -1, anyio.lowlevel.checkpoint)
    if oom is not None:
        (tmp_path / "memory.events").write_text(oom, "ascii")
        watch.oom_kills = OomKills(tmp_path / "memory.events", 3)
    assert status is None or os.waitstatus_to_exitcode(status)
    assert _describe(watch, status) == said
