"""How what a dead worker held ends, and what is said of its end."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final

import anyio
import pytest

from pulse.store.rows import Ending, EndingKind
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


def test_started_attempts_crash_and_the_others_are_given_back(worker: RegisteredWorker) -> None:
    """The exit status is the reason, of what was started alone."""
    assert obituary(worker, "why", -9, worker.held) == [
        Ending(*HUNG, WORKER, EndingKind.CRASHED, "why", exit_code=-9),
        Ending(*STARTED, WORKER, EndingKind.CRASHED, "why", exit_code=-9),
        Ending(*QUEUED, WORKER, EndingKind.RELEASED),
    ]


def test_who_was_leaving_charges_nobody(worker: RegisteredWorker) -> None:
    """Its end was its own, or ours."""
    worker.leaving = True
    assert {one.kind for one in obituary(worker, "why", -9, worker.held)} == {EndingKind.RELEASED}


def test_a_sentence_is_carried_out(worker: RegisteredWorker) -> None:
    worker.jobs.forced_endings[HUNG] = SENTENCE
    worker.leaving = True
    assert obituary(worker, "why", -9, worker.held) == [
        Ending(*HUNG, WORKER, EndingKind.TIMEOUT, "too late", exit_code=-9, stack="where it was"),
        Ending(*STARTED, WORKER, EndingKind.RELEASED, "why"),
        Ending(*QUEUED, WORKER, EndingKind.RELEASED),
    ]


def test_who_had_a_process_of_its_own_did_not_kill_it(worker: RegisteredWorker) -> None:
    """It died with its worker, and goes elsewhere uncharged, with the reason; what ran in that process is charged."""
    worker.held[STARTED].apart = True
    assert obituary(worker, "why", -9, worker.held) == [
        Ending(*HUNG, WORKER, EndingKind.CRASHED, "why", exit_code=-9),
        Ending(*STARTED, WORKER, EndingKind.RELEASED, "why"),
        Ending(*QUEUED, WORKER, EndingKind.RELEASED),
    ]


def test_where_nobody_else_ran_it_may_have_been_those_apart(worker: RegisteredWorker) -> None:
    """Else a job that kills its worker from there would do so for ever; what had not started is innocent."""
    worker.held[STARTED].apart = worker.held[HUNG].apart = True
    assert [one.kind for one in obituary(worker, "why", -9, worker.held)] == [
        EndingKind.CRASHED,
        EndingKind.CRASHED,
        EndingKind.RELEASED,
    ]


def test_what_had_ended_did_not_kill_it(worker: RegisteredWorker) -> None:
    """Its result was refused for want of room, and is lost; it goes elsewhere uncharged."""
    worker.held[STARTED].ended = True
    assert obituary(worker, "why", -9, worker.held) == [
        Ending(*HUNG, WORKER, EndingKind.CRASHED, "why", exit_code=-9),
        Ending(*STARTED, WORKER, EndingKind.RELEASED, "why"),
        Ending(*QUEUED, WORKER, EndingKind.RELEASED),
    ]
    worker.held[HUNG].ended = True
    worker.jobs.forced_endings[HUNG] = SENTENCE  # before it was told
    assert {one.kind for one in obituary(worker, "why", -9, worker.held)} == {EndingKind.RELEASED}


KILLED: Final = int(signal.SIGKILL)  # as waitpid tells it
EXIT_7: Final = 7 << 8


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("status", "oom", "leaving", "said"),
    [
        (KILLED, "oom_kill 4\n", False, "out of memory (SIGKILL)"),
        (KILLED, "oom_kill 3\n", False, "SIGKILL"),
        (KILLED, None, False, "SIGKILL"),
        (KILLED, "oom_kill 4\n", True, "SIGKILL"),  # that was us
        (int(signal.SIGTERM), "oom_kill 4\n", False, "SIGTERM"),
        (EXIT_7, "oom_kill 4\n", False, "exit code 7"),
        (None, "oom_kill 4\n", False, "how is not known"),
    ],
)
async def test_want_of_memory_is_named(
    worker: RegisteredWorker, tmp_path: Path, status: int | None, oom: str | None, leaving: bool, said: str
) -> None:
    """Where the kernel has killed for want of memory since, and nobody else is known to have killed it."""
    worker.leaving = leaving
    watch = WatchedProcess(worker, -1, anyio.lowlevel.checkpoint)
    if oom is not None:
        (tmp_path / "memory.events").write_text(oom, "ascii")
        watch.oom_kills = OomKills(tmp_path / "memory.events", 3)
    assert status is None or os.waitstatus_to_exitcode(status)
    assert _describe(watch, status) == said
