"""Epochs: when the database has gone back, who may claim, what is remembered, and which server is refused."""

from __future__ import annotations

from typing import Final

from tests.mutants.code import Guarded

_UNIT: Final = "unit/test_epochs.py::"
_WITNESS: Final = "store/test_witness.py::"
_POOL: Final = "store/test_timelines.py::"
_PROOF: Final = _UNIT + "test_what_proves_that_it_has_gone_back"
_BACK: Final = _WITNESS + "test_what_was_kept_is_put_back"
_NOBODY: Final = _WITNESS + "test_what_may_run_yet_is_handed_out_to_nobody"
_BESIDE: Final = _WITNESS + "test_it_remembers_beside_the_database"
_PLACE: Final = _WITNESS + "test_hosts_that_have_not_come_to_a_new_place"
_ACCEPTED: Final = _WITNESS + "test_hosts_that_have_not_accepted"
_BOOK: Final = "unit/test_remembering.py::"
_WRONG: Final = _WITNESS + "test_what_is_wrong_beside_the_database"

JUDGED: Final = Guarded(
    "pulse_actors.shared.epochs",
    {
        _PROOF: [
            ("judge", "seen.timeline is None", "False"),
            ("judge", "memory.lineage != seen.lineage or ", ""),
            ("judge", " or seen.epoch < memory.epoch", ""),
            ("judge", "seen.epoch > memory.epoch", "False"),
            ("judge", "Verdict.BACK if memory.highest > seen.floor else ", ""),
            ("judge", "memory.highest > seen.floor", "memory.highest >= seen.floor"),
            ("judge", "seen.counter is None or ", ""),
            ("judge", "seen.counter < memory.counter", "False"),
            ("judge", "seen.counter < memory.counter", "seen.counter <= memory.counter"),
            ("judge", "Verdict.MOVED if memory.place != seen.place else ", ""),
        ],
        _UNIT + "test_who_remembers_nothing_has_come": [("judge", "not memory.counter", "False")],
        _UNIT + "test_a_new_epoch_is_above_all_that_are_known": [
            ("next_epoch", "max(memory.epoch, seen.epoch)", "seen.epoch"),
            ("next_epoch", "max(memory.epoch, seen.epoch)", "memory.epoch"),
        ],
        _UNIT + "test_how_often_a_job_was_given_back": [
            ("given_back", "claim.uncharged, ", ""),
            ("given_back", "(claim.attempt - 1) % STEP, ", ""),
            ("given_back", ", _MOST", ""),
        ],
        _UNIT + "test_bounds": [("bound_of", "-(-attempt // STEP)", "(attempt // STEP)")],
    },
)

WITNESS: Final = Guarded(
    "pulse_actors.dispatcher.epochs.witness",
    {
        "unit/test_epochs.py::test_the_newest_completions_are_kept": [
            ("FinishedJobs.add", "len(new) > free_bytes", "False"),
        ],
        _WITNESS + "test_it_claims_when_it_has_come": [
            ("Witness.__init__", "self.witnessed: Witnessed = CLOSED", "self.witnessed: Witnessed = Witnessed(None)"),
        ],
        _WITNESS + "test_a_new_number_is_remembered_before_it_is_handed_out": [
            ("Witness.claimed", "highest > memory.highest", "False"),
            ("Witness.claimed", "bound_of(highest)", "memory.highest"),
        ],
        _WITNESS + "test_a_new_place_that_does_not": [
            ("Witness.step", "verdict is Verdict.MOVED and await self._knows_less()", "False"),
            ("Witness._knows_less", "self._before | self._handed_out", "self._before"),
            (
                "Witness.claimed",
                "self._handed_out.update(zip(map(_ID, claims), map(_ATTEMPT, claims), strict=True))",
                "pass",
            ),
        ],
        _WITNESS + "test_what_was_completed_and_is_not_there": [
            ("Witness.forgets", "self._forgotten.update(map(_FIRST, pairs))", "pass"),
            ("Witness._tick", "self._forgotten &= self._handed_out.keys()", "pass"),
        ],
        _WITNESS + "test_since_when_it_went_back": [("Witness.step", "self._back_to = None", "pass")],
        _WITNESS + "test_a_report_that_a_new_place_does_not_know": [
            ("Witness._come", "self._in_doubt.doubt(worker.identity)", "pass"),
        ],
        _WITNESS + "test_a_tick_that_failed_has_confirmed_nothing": [
            ("Witness._knows_less", "self._before | self._handed_out", "self._handed_out"),
            ("Witness._tick", "self.witnessed = CLOSED", "pass"),
        ],
        _WITNESS + "test_what_a_tick_has_confirmed_is_not_asked_for": [
            ("Witness._tick", "        self._before = {}\n", ""),
        ],
        _BACK: [
            ("Witness._begin", "self.witnessed = CLOSED", "pass"),
            (
                "Witness._begin",
                'worker.link.send("stop", None, {"jobs": [(*pair, "lost") for pair in worker.held]})',
                "pass",
            ),
            ("Witness.completed", "self._finished.add(map(_FIRST, pairs))", "pass"),
            ("Witness._tell", "await self._epochs.note_reopened(epoch.epoch, reopened)", "pass"),
        ],
        _WITNESS + "test_another_host_has_raised_it": [
            ("Witness._begin", "if is_new else None", "if True else None"),
        ],
        _NOBODY: [
            ("Witness._begin", "self._registry.lost = {fence[:2] for fence in fences}", "pass"),
            (
                "Witness._begin",
                "held = Held([worker.identity for worker in everybody], fences, PUT_OFF_S)",
                "held = Held([worker.identity for worker in everybody], [], PUT_OFF_S)",
            ),
            ("Witness.step", "await self._put_off()", "pass"),
            ("Witness._begin", "self._signal.wake_recent(PUT_OFF_S)", "pass"),
            ("Witness._put_off", "self._signal.wake_recent(PUT_OFF_S)", "pass"),
            ("Witness._put_off", "self._registry.lost = left", "pass"),
        ],
        _BESIDE: [
            ("Witness._begin", "if not self._was_open:", "if False:"),
            ("Witness._put_off", "time.monotonic() < self._rejoin_until_s", "False"),
            ("Witness._may_open", "now_s < self._rejoin_until_s or ", ""),
        ],
        _PLACE: [
            ("Witness._may_open", "not seen.elsewhere or ", ""),
            ("Witness._may_open", " or now_s >= self._others_until_s", ""),
            ("Witness._come", "self.witnessed = CLOSED", "pass"),
            (
                "Witness._come",
                "self._back_to = time.monotonic() + OTHERS_S, seen.back_to",
                "self._back_to = time.monotonic() + OTHERS_S, None",
            ),
        ],
        _ACCEPTED: [("Witness._may_open", " or (seen.behind and now_s < self._behind_s + self._lease_s)", "")],
        _WITNESS + "test_hosts_that_never_come_back": [
            ("Witness._may_open", " and now_s < self._behind_s + self._lease_s", ""),
            ("Witness._may_open", "min(self._behind_s, now_s) if seen.behind", "now_s if seen.behind"),
        ],
        _WITNESS + "test_another_database_under_the_same_name": [
            ("Witness._counted", "memory.lineage != seen.lineage", "False"),
        ],
        _BOOK + "test_a_tick_and_a_claim_at_once": [
            ("Witness._remember", "async with self._writing:", "if True:"),
            ("Witness._remember", "self._file.keep, self._memory,", "self._file.keep, memory,"),
        ],
        _BOOK + "test_a_state_directory_that_hangs": [
            ("Witness._remember", ", abandon_on_cancel=True", ""),
            ("Witness._remember", "anyio.move_on_after(KEEP_S)", "anyio.CancelScope()"),
            ("Witness._remember", "self._file.hangs()", "pass"),
        ],
        _BOOK + "test_a_state_directory_that_hangs_at_first": [
            ("Witness._opened", ", abandon_on_cancel=True", ""),
            ("Witness._opened", "anyio.move_on_after(OPEN_S)", "anyio.CancelScope()"),
            ("Witness._opened", "self._file.problem, MemoryFile(None)", "self._file.problem, self._file"),
            ("Witness._opened", "self._file.problem = problem", "self._file.problem = None"),
        ],
        _BOOK + "test_which_database_it_was": [
            ("Witness._opened", 'if opened.database in {"", timelines.database}:', "if True:"),
            ("Witness._opened", "timelines.learn(ServerTimeline(opened.system_id, opened.timeline))", "pass"),
            ("Witness._opened", "msgspec.structs.replace(opened, database=timelines.database)", "opened"),
        ],
        _WRONG: [
            ("Witness.findings", "if time.monotonic() - at_s < REFUSED_S else []", ""),
            ("Witness.findings", "[] if self._file.problem is None else ", ""),
        ],
    },
    is_part=True,
)

MEMORY: Final = Guarded(
    "pulse_actors.shared.epoch_memory",
    {
        _UNIT + "test_a_notebook_keeps_what_it_is_given": [
            ("MemoryFile._replace", "0o600", "0o644"),
            ("MemoryFile.open", "self.close()", "pass"),
        ],
        _UNIT + "test_two_processes_have_a_notebook_each": [
            ("MemoryFile._own", "fcntl.LOCK_EX | fcntl.LOCK_NB", "fcntl.LOCK_SH | fcntl.LOCK_NB"),
            ("MemoryFile.close", "os.close(self._lock)", "pass"),
        ],
        _UNIT + "test_a_notebook_whose_disk_hangs": [
            ("MemoryFile.keep", "blocking=False", "blocking=True"),
            ("MemoryFile.keep", "self.hangs()", "pass"),
            ("MemoryFile.keep", "while self._newest:", "for _ in range(1):"),
            ("MemoryFile.open", "with self._busy:", "if True:"),
        ],
        _UNIT + "test_a_notebook_that_cannot_be_written": [
            ("MemoryFile._replace", "os.O_NOFOLLOW | ", ""),
        ],
        _UNIT + "test_a_notebook_that_cannot_be_read": [
            ("MemoryFile.open", "(OSError, msgspec.MsgspecError)", "OSError"),
            ("MemoryFile._replace", "self.problem = None", "pass"),
        ],
    },
    is_part=True,
)

TIMELINES: Final = Guarded(
    "pulse.store.recovery.timelines",
    {
        _UNIT + "test_timelines": [
            ("Timelines.learn", "max(standing.timeline, self._newest.get(standing.system_id, 0))", "standing.timeline"),
            ("Timelines.learn", "standing.timeline is not None", "True"),
            ("Timelines.is_old", "standing.timeline is not None and ", ""),
        ],
        _UNIT + "test_timelines_of_other_processes": [
            ("newest_of", "max(timeline or 0, newest.get(system_id, 0))", "timeline or 0"),
            ("remembered", 'if may_be_same(database, str(kept["database"])):', "if True:"),
            ("remembered", "(OSError, ValueError, TypeError, KeyError)", "OSError"),
        ],
        _POOL + "test_a_server_on_an_older_timeline": [
            ("Timelines.admit", "if self.is_old(standing):", "if False:"),
            ("Timelines.admit", "self.refused = message, time.monotonic()", "pass"),
        ],
        _POOL + "test_what_another_process_has_seen": [
            ("Timelines.admit", "            self.learn(one)\n", "            pass\n"),
            ("Timelines.admit", "remembered(self.directory, self.database)", 'remembered(self.directory, "")'),
        ],
    },
    is_part=True,
)

POOL: Final = Guarded(
    "pulse.store.connections.pool",
    {
        _POOL + "test_idle_connections_to_an_older_timeline": [
            ("Pool._take", " and not self._is_old(connection)", ""),
            ("Pool._is_old", " or self._timelines.is_old(standing)", ""),
        ],
        _POOL + "test_other_hosts_are_tried": [
            ("Pool._connect_to_newest", "if self._timelines.refused is None or len(targets) <= 1:", "if True:"),
        ],
    },
    is_part=True,
)
