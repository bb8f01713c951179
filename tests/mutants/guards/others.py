"""An operator's retry, and what a dead worker left running: no attempt may run beside another one."""

from __future__ import annotations

from typing import Final

from tests.mutants.code import Guarded

_ASIDE: Final = "store/test_set_aside.py::"
_RETRIES: Final = "store/test_dispatcher_retries.py::"
_TURNS: Final = "unit/test_turns.py::"
_MANNERS: Final = "unit/test_manners.py::"
_TREES: Final = "unit/test_trees.py::"

REQUESTS: Final = Guarded(
    "pulse_actors.dispatcher.requests.jobs",
    {
        _RETRIES + "test_a_worker_that_is_not_connected": [
            ("_is_absent", "process is not None and ", ""),
            ("_is_absent", " and processes.lives(*process)", ""),
            ("_held_here", " | {job for job, worker in last_workers.items() if worker in absent}", ""),
            ("_held_here", "if worker in absent", "if True"),
        ],
        _RETRIES + "test_a_claim_that_has_passed_it": [
            ("_wake", "due_s=due_s", "due_s=None"),
        ],
        _RETRIES + "test_a_worker_that_came_back": [
            ("_is_absent", "on.services.registry.get(worker) is None and ", ""),
            ("_held_here", "on.services.registry.held_among(ids) | ", ""),
            ("retry_jobs", "[job for job in body.ids if job not in held]", "body.ids"),
        ],
        "process/test_dispatcher_requests.py::test_a_delete_waits_until_the_last_attempt_is_over": [
            ("delete_jobs", "[job for job in body.ids if job not in held]", "body.ids"),
            ("delete_jobs", "status != Status.RUNNING", "True"),
            ("delete_jobs", ", conflicts=left", ""),
        ],
        _ASIDE + "test_what_cannot_be_canceled_is_set_aside": [
            ("cancel_jobs", "if len(ids) > 1:", "if False:"),
            ("cancel_jobs", "if len(ids) > 1:", "if True:"),
            ("cancel_jobs", "aside.update(ids)", "pass"),
            ("_done_and_refused", "if job in aside:", "if False:"),
        ],
    },
    is_part=True,
)

CONNECTION: Final = Guarded(
    "pulse_actors.dispatcher.net.connection",
    {
        "unit/test_connection.py::test_a_backlog_that_was_read_is_told": [
            ("PeerConnection._flush", "was_full and ", ""),
            ("PeerConnection._flush", "self._relieved()", "pass"),
        ],
        "unit/test_connection.py::test_who_reads_nothing_is_not_listened_to": [
            ("PeerConnection._give_way", "if self._out_bytes > UNREAD_BYTES:", "if False:"),
            ("PeerConnection._wait_taken", "self._out_bytes > UNREAD_BYTES and ", "False and "),
            ("PeerConnection._flush", "self._go_on()", "pass"),
        ],
        "unit/test_connection.py::test_long_answers_wait_for_each_other": [
            ("PeerConnection.wait_page", "self._page in self._owed or ", ""),
            ("PeerConnection.wait_page", " or self._out_bytes > LITTLE_BYTES", ""),
            ("PeerConnection.wait_page", " and not self._closing", ""),
            ("PeerConnection.wait_page", "self._page = request", "pass"),
            ("PeerConnection.settle", "self._go_on()", "pass"),
        ],
        "unit/test_connection.py::test_who_waits_for_room_is_woken_by_the_end": [
            ("PeerConnection._wait_taken", " and not self._closing", ""),
            ("PeerConnection._end", "self._taken.set()", "pass"),
        ],
        "unit/test_connection.py::test_a_frame_that_has_begun_ends_in_time": [
            ("PeerConnection._receive", "with anyio.CancelScope(deadline=self._whole_s):", "if True:"),
            ("PeerConnection.frames", "if not self._reader.buffered_bytes:", "if False:"),
            ("PeerConnection.frames", 'elif frames or self._whole_s == float("inf"):', "else:"),
            (
                "PeerConnection.frames",
                'elif frames or self._whole_s == float("inf"):',
                'elif self._whole_s == float("inf"):',
            ),
        ],
        "unit/test_connection.py::test_who_waits_for_room_is_not_late": [
            ("PeerConnection._receive", "self._whole_s += anyio.current_time() - asked_s", "pass"),
        ],
        "unit/test_connection.py::test_frames_that_have_begun_have_room_together": [
            ("PeerConnection._reserve", "await self._begun.reserve(size_bytes)", "await anyio.sleep(0)"),
            ("PeerConnection.hear_no_more", "self._release()", "pass"),
            ("PeerConnection._release", "self._begun.release(self._begun_bytes)", "pass"),
        ],
        "unit/test_connection.py::test_a_clients_long_frame_has_room_until_it_is_handed_on": [
            ("PeerConnection.frames", "if frames and self._is_worker:", "if frames:"),
            (
                "PeerConnection.frames",
                "                await self._give_way()\n            if frames:\n                self._release()\n",
                "                await self._give_way()\n",
            ),
        ],
        "unit/test_connection.py::test_a_worker_has_a_room_of_its_own": [
            ("PeerConnection.frames", "if frames and self._is_worker:", "if False:"),
            ("PeerConnection.greeted", "begun or self._begun", "self._begun"),
            ("PeerConnection.greeted", "begun or self._begun", "begun"),
        ],
        "process/test_tcp.py::test_a_peer_that_is_cut_in_its_first_exchange": [
            ("PeerConnection.write", "except GONE:", "except OSError:"),
            ("PeerConnection.write", "self.is_cut = True", "pass"),
        ],
        "unit/test_connection.py::test_others_have_their_turn_between_the_frames_of_one": [
            ("PeerConnection._give_way", "await checkpoint()", "pass"),
        ],
        "unit/test_connection.py::test_only_nonsense_is_a_mistake": [
            ("PeerConnection.refuse", "if code in MISTAKEN:", "if True:"),
            ("PeerConnection.refuse", "if code in MISTAKEN:", "if False:"),
            ("PeerConnection.frames", "await self.while_alive(self.limits.wait)", "pass"),
        ],
        "unit/test_connection.py::test_those_in_the_lane_have_a_stretch_together": [
            ("PeerConnection.frames", "1 if self.limits.is_throttled else TOGETHER", "TOGETHER"),
        ],
        "unit/test_connection.py::test_all_that_a_dead_peer_wrote_is_heard_at_once": [
            ("PeerConnection.hear_out", "self._stream.extra(", "str("),
            ("PeerConnection.hear_out", "with suppress(OSError):", "if True:"),
        ],
        "unit/test_connection.py::test_what_a_peer_wrote_before_it_died_has_its_time": [
            ("PeerConnection.hear_out", "await self.heard_out.wait()", "pass"),
        ],
        "unit/test_connection.py::test_a_dead_peer_waits_for_no_room": [
            ("PeerConnection.hear_out", "self._waiting.cancel()", "pass"),
            ("PeerConnection.hear_out", "self._is_dead = True", "pass"),
            ("PeerConnection._receive", "self.while_alive(self._reserve)", "self._reserve()"),
        ],
        "unit/test_connection.py::test_a_dead_peer_has_stood_in_the_lane_for_long_enough": [
            ("PeerConnection.frames", "self.while_alive(self.limits.wait)", "self.limits.wait()"),
            ("PeerConnection.while_alive", "if not self._is_dead:", "if True:"),
        ],
        "unit/test_connection.py::test_a_dead_peer_is_heard_whatever_it_has_not_read": [
            ("PeerConnection._give_way", "self.while_alive(self._wait_taken)", "self._wait_taken()"),
        ],
    },
    is_part=True,
)

PAGES: Final = Guarded(
    "pulse_actors.dispatcher.admission.list_queue",
    {
        "unit/test_pages.py::test_behind_each_there_is_a_rest_where_somebody_waits": [
            ("ListQueue.turn", "if self._turns.waiting else", "if False else"),
        ],
        "unit/test_pages.py::test_whoever_is_alone_goes_on_at_once": [
            ("ListQueue.turn", " if self._turns.waiting else 0.0", ""),
        ],
        "unit/test_pages.py::test_whoever_waits_for_long_is_told": [
            ("ListQueue.turn", "with anyio.fail_after(WAIT_S):", "if True:"),
        ],
        "unit/test_pages.py::test_who_asks_for_many_does_not_go_before_who_asks_for_one": [
            ("ListQueue.__init__", "Turns(1)", "Turns(9)"),
        ],
    },
)

ROOM: Final = Guarded(
    "pulse_actors.dispatcher.admission.memory_budget",
    {
        "unit/test_connection.py::test_room": [
            ("MemoryBudget.try_reserve", "self._bytes + size_bytes > self._most_bytes", "False"),
            ("MemoryBudget.try_reserve", "self._bytes and ", ""),
            ("MemoryBudget.try_reserve", "size_bytes > self._most_bytes", "size_bytes >= self._most_bytes"),
        ],
        "store/test_visit_guards.py::test_a_process_brings_no_more_than_has_room": [
            ("MemoryBudget.reserve_frame", "KEPT_BYTES + ", ""),
            ("MemoryBudget.reserve_frame", " if self.try_reserve(kept_bytes) else None", ""),
        ],
    },
    is_part=True,
)
MANNERS: Final = Guarded(
    "pulse_actors.dispatcher.admission.request_limits",
    {
        _MANNERS + "test_some_at_once_and_then_so_many_a_second": [
            ("TokenBucket.take", "self.left(now_s) - 1.0", "self.left(now_s)"),
            ("TokenBucket.take", "max(-self._deepest, ", "max(float('-inf'), "),
            ("TokenBucket.left", "min(self._most, ", "max(self._most, "),
            ("TokenBucket.wait_s", "max(0.0, -self.left(now_s) / self._a_second)", "0.0"),
        ],
        _MANNERS + "test_the_lane_is_for_those_who_make_many_mistakes": [
            ("RequestLimits.mistake", "self._trust.left(now_s) < 0", "True"),
            ("RequestLimits.mistake", "self._trust.left(now_s) < 0", "False"),
            ("RequestLimits.wait", "self.is_throttled = self._trust.left(now_s) < 0", "pass"),
        ],
        _MANNERS + "test_all_in_the_lane_have_one_request_under_way": [
            ("RequestLimits.slot_for", "self.is_throttled and ", ""),
            ("RequestLimits.slot_for", " and kind not in UNHURRIED", ""),
            ("RequestLimits.slot_for", "_penalty_slot if ", "self.requests if "),
        ],
        _MANNERS + "test_behind_a_request_the_back_door_rests": [
            ("PenaltySlot.acquire", "await anyio.sleep(max(0.0, self._opens_s - time.monotonic()))", "pass"),
            ("PenaltySlot.acquire", "self._lock.release()", "pass"),
            ("PenaltySlot.acquire", "await self._lock.acquire()", "pass"),
        ],
        _MANNERS + "test_most_of_the_time_nobody_is_in_the_lane": [
            ("PenaltyLane.turn", "await anyio.sleep(REST_S)", "pass"),
            ("PenaltyLane.turn", "time.monotonic() - self._last_s <= REST_S", "False"),
            ("PenaltyLane.done", "self._last_s = time.monotonic()", "pass"),
        ],
        "unit/test_connection.py::test_only_nonsense_is_a_mistake": [
            ("RequestLimits.wait", "if pause_s:", "if False:"),
        ],
        "unit/test_connection.py::test_those_in_the_lane_have_a_stretch_together": [
            ("RequestLimits.wait", "await _penalty_lane.turn()", "pass"),
            ("PenaltyLane.turn", "async with self._lock:", "if True:"),
            (
                "PenaltyLane.turn",
                "        if self._is_over():\n            async",
                "        if False:\n            async",
            ),
        ],
    },
    is_part=True,
)

SHARED: Final = Guarded(
    "pulse_actors.dispatcher.admission.per_peer",
    {
        _MANNERS + "test_who_asks_is_known_on_all_its_connections": [
            ("PerPeer.of", "found is None", "True"),
        ],
    },
)

TURNS: Final = Guarded(
    "pulse.common.fair_queue",
    {
        _TURNS + "test_who_asks_for_little_does_not_wait_for_who_asks_for_much": [
            ("Turns.turn", "self._under_way[asker]\n", "0\n"),
            ("Turns.turn", "FIRST if asker is None else ", ""),
        ],
        _TURNS + "test_what_is_over_counts_no_more": [
            ("Turns.turn", "self._under_way[asker] -= 1", "pass"),
            ("Turns.turn", "del self._under_way[asker]", "pass"),
        ],
        _TURNS + "test_who_gives_up_takes_no_place_away": [
            ("Turns._give", "not future.done()", "True"),
        ],
        _TURNS + "test_who_gives_up_at_its_turn_gives_the_place_on": [
            ("Turns._take", "if future.cancelled():", "if True:"),
        ],
        _TURNS + "test_who_gives_up_is_not_kept": [
            ("Turns._take", "2 * self._left > len(self._line)", "False"),
            ("Turns._give", "self._left -= 1", "pass"),
        ],
    },
    is_part=True,
)

BATCHING: Final = Guarded(
    "pulse_actors.dispatcher.writes.batcher",
    {
        "unit/test_batching.py::test_who_puts_more_than_is_handled_has_to_wait": [
            ("Batcher.wait_accepting", "self._weight > MAX_WAITING_BATCHES * self._limit", "False"),
            ("Batcher.wait_accepting", "self._weight > MAX_WAITING_BATCHES", "self._weight >= MAX_WAITING_BATCHES"),
            ("Batcher._take", "self._weight -= taken", "pass"),
            ("Batcher._take", "self._taken.set()", "pass"),
        ],
    },
    is_part=True,
)

PROTOCOL: Final = Guarded(
    "pulse.protocol.frames",
    {
        "unit/test_protocol.py::test_no_password_is_shown": [
            ("_given", ' or frame.kind == "hello"', ""),
        ],
        "unit/test_protocol.py::test_what_does_not_fit_is_shown": [
            ("_given", " or memoryview(frame.body).nbytes > _SHOWN_BYTES", ""),
        ],
        "unit/test_stream.py::test_whole_frames_before_a_break_arrive": [
            ("FrameReader.take", "if not error.frames:", "if True:"),
            ("FrameReader.take", "self._held = error", "pass"),
        ],
    },
    is_part=True,
)

SERVICE: Final = Guarded(
    "pulse.worker.service",
    {
        "process/test_worker_jobs.py::test_what_comes_behind_a_long_job_is_given_back": [
            ("Service.assigned", "if self._ledger.is_full:", "if False:"),
        ],
        "unit/test_worker_service.py::test_the_server_knows_the_capacity": [
            ("Service._stay_connected", "self._tell_capacity()", "pass"),
            ("Service._tell_capacity", " and capacity != self._told", ""),
            ("Service._tell_capacity", "self._connection is not None and ", ""),
            ("Service._start_draining", "self._tell_capacity()", "pass"),
            ("Service._hello", "self._told = self._capacity()", "pass"),
        ],
    },
    is_part=True,
)

TREES: Final = Guarded(
    "pulse.system.process_tree",
    {
        _TREES + "test_a_daemon_is_found_by_its_mark": [
            ("mark_of", ".partition(_ENTRY)", ".partition(_ENTRY[1:2])"),
            ("_kill_once", " if name.isdigit()", ""),
            ("_kill_once", "if is_condemned(pid):", "if is_condemned(0):"),
            ("_kill_once", "everybody - processes", "everybody & processes"),
            ("_marked", " and condemned(mark)", " and False"),
        ],
        _TREES + "test_what_is_killed_is_dead": [
            ("_kill_once", "yield from dying", "pass"),
            ("_kill", "_wait_dead(pidfd, give_up_s)", "pass"),
            ("end_tree", "await anyio.wait_readable(pidfd)", "await checkpoint()"),
        ],
        _TREES + "test_one_that_does_not_die_is_not_waited_for_for_ever": [
            ("_wait_dead", "max(0.0, give_up_s - time.monotonic()) * 1000", "None"),
            ("end_tree", "deadline=give_up_s", ""),
        ],
        _TREES + "test_others_go_on_while_many_are_looked_at": [
            ("_kill_once", "number % _SLICE == 0", "False"),
            ("end_tree", "pidfd is None", "False"),
            ("_kill", "pidfd is not None", "True"),
        ],
        _TREES + "test_a_branch_is_a_part_of_its_tree": [
            ("_of_tree", ' or found.startswith(f"{mark}.")', ""),
            ("_of_tree", 'f"{mark}."', "mark"),
            ("_of_tree", "found == mark or ", ""),
        ],
        _TREES + "test_what_is_no_mark_of_ours_ends_nobody": [
            ("_of_tree", "_FORM.fullmatch(mark) is not None", "True"),
        ],
        _TREES + "test_a_session_is_more_than_a_group": [
            ("_of_tree", "_session_of(pid) == leader", "os.getpgid(pid) == leader"),
        ],
        _TREES + "test_what_forks_while_it_is_killed_dies_too": [
            ("_killing", "range(_MAX_PASSES)", "range(1)"),
            ("_killing", "if found <= killed:", "if True:"),
        ],
        _TREES + "test_a_pid_that_was_used_again_before_it_was_opened_is_spared": [
            ("_kill_once", "if is_condemned(pid):", "if True:"),  # only of what the first look has condemned
            ("_kill_once", "not is_condemned(pid)", "is_condemned(0)"),
        ],
        _TREES + "test_the_looks_are_bounded": [
            ("_killing", "range(_MAX_PASSES)", "range(99)"),
        ],
        _TREES + "test_a_process_that_is_being_exec_ed": [
            ("mark_of", "environment or not _is_being_execed(pid)", "True"),
            ("mark_of", "environment or not _is_being_execed(pid)", "environment"),
            ("mark_of", "environment or not _is_being_execed(pid)", "not _is_being_execed(pid)"),
        ],
        _TREES + "test_an_empty_environment_is_not_waited_for": [
            ("_is_being_execed", "processes.has_empty_environment(pid)", "False"),
        ],
        _TREES + "test_an_empty_mark_is_none": [
            ("mark_of", 'mark.decode("ascii", "replace") or None', 'str(mark, "ascii", "replace")'),
        ],
        # None of them may widen what is killed for real: there are other trees on this machine.
        _TREES + "test_whose_pool_parent_is_dead": [
            ("kill_orphans", " and _is_orphaned(mark)", ""),
            ("_is_orphaned", " and not processes.lives(parent[1], parent[2])", ""),
            ("_is_orphaned", "parent[0] == processes.pid_namespace() and ", ""),
        ],
        _TREES + "test_its_own_tree_is_spared": [
            ("kill_orphans", "mark != own and ", ""),
            ("_is_orphaned", "start_time, _, *_ =", "start_time, _ ="),
        ],
        _TREES + "test_who_has_no_mark_is_no_orphan": [
            ("_marked", "mark is not None and ", ""),
        ],
    },
)

PROCS: Final = Guarded(
    "pulse.system.processes",
    {
        "unit/test_identity.py::test_another_process_of_the_same_pid_is_nobody": [
            ("lives", "start_time(pid) == start_time_ticks and ", ""),
        ],
        "unit/test_identity.py::test_the_user_of_a_dead_process_is_nobody": [
            ("lives", ' and state(pid) not in {"Z", "X", ""}', ""),
            ("lives", '{"Z", "X", ""}', '{"X", ""}'),
        ],
        "unit/test_procs.py::test_threads_of_the_kernel": [
            ("kernel_threads", " or not int(fields[_STAT_FLAGS]) & _PF_KTHREAD", ""),
        ],
    },
    is_part=True,
)

_LANES: Final = "unit/test_worker_lanes.py::"

LANES: Final = Guarded(
    "pulse.worker.execution.runner",
    {
        _LANES + "test_who_cancels_itself_cancels_nobody_else": [
            ("_AsyncioRunner._run_some", "lane.cancelling() or ", ""),
        ],
        _LANES + "test_others_have_their_turn": [
            ("_AsyncioRunner._run_some", " or time.monotonic() > until_s", ""),
        ],
        _LANES + "test_who_never_waits_costs_no_task": [
            ("_AsyncioRunner._run_some", "lane.cancelling() or time.monotonic() > until_s", "True"),
            ("_AsyncioRunner.start", "if self._lane is None:", "if True:"),
        ],
        _LANES + "test_each_has_a_context_of_its_own": [
            ("_AsyncioRunner._run_some", "context.run(call.send, None)", "call.send(None)"),
            ("_BegunCall.__await__", "run(call.send, value)", "call.send(value)"),
        ],
        _LANES + "test_one_that_waits_is_interrupted_alone": [
            ("_AsyncioRunner._run_some", "attempt.task = _LaneCall(lane, call)", "pass"),
        ],
        _LANES + "test_one_that_only_gives_others_their_turn_is_interrupted": [
            ("_BegunCall.__await__", "run(call.throw, error)", "run(call.send, None)"),
        ],
        _LANES + "test_who_waits_holds_up_nobody": [
            ("_AsyncioRunner._run_some", "self._create_task(self._run_lane()) if queue else None", "None"),
        ],
    },
    is_part=True,
)
METRICS: Final = Guarded(
    "pulse.ops.metrics.server",
    {
        "unit/test_metrics.py::test_who_asks_byte_by_byte_keeps_nobody_out": [
            ("MetricsServer.process_request_thread", "ending.start()", "pass"),
            ("MetricsServer.process_request_thread", "self._room.release()", "pass"),
            ("_cut", "request.shutdown(socket.SHUT_RDWR)", "pass"),
        ],
    },
    is_part=True,
)
