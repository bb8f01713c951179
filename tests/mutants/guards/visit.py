"""Whom the dispatcher believes at the door, and what: those guards of it that recovery depends on."""

from __future__ import annotations

from typing import Final

from tests.mutants.code import Guarded

_GREET: Final = "PeerSession._greet_worker"
_VISIT: Final = "store/test_visit_guards.py::"

VISIT: Final = Guarded(
    "pulse_actors.dispatcher.net.session",
    {
        _VISIT + "test_a_hello_is_held_against_the_database": [
            (
                "PeerSession._greet_worker",
                "listed | self._registry.reporting",
                "listed",
            ),
            (
                "PeerSession._greet_worker",
                "listed | self._registry.reporting",
                "self._registry.reporting",
            ),
            (
                "PeerSession._join",
                "None if holds is None else sorted(listed - holds.keys())",
                "[]",
            ),
        ],
        _VISIT + "test_nobody_looks_for_who_is_gone": [
            (
                "PeerSession._reply",
                "self._connection.is_over and ",
                "",
            ),
            (
                "PeerSession._reply",
                " and ACCESS_OF[frame.kind] is Access.VIEWER",
                "",
            ),
            (
                "PeerSession._reply",
                "self._connection.settle(frame.request)",
                "pass",
            ),
        ],
        _VISIT + "test_of_all_peers_one_long_page_is_worked_out_at_once": [
            (
                "PeerSession._reply",
                "self._services.list_queue.turn() if frame.kind in LONG else ",
                "",
            ),
            (
                "PeerSession._reply",
                " if frame.kind in LONG else contextlib.nullcontext()",
                "",
            ),
        ],
        _VISIT + "test_what_had_started_has_started_when_its_worker_comes_back": [
            (
                "PeerSession._join",
                "older or registry.away.get(self._identity)",
                "older",
            ),
        ],
        _VISIT + "test_a_worker_that_has_read_its_backlog_gets_more": [
            (
                "PeerSession._greet",
                ", self._signal.look_again)",
                ")",
            ),
        ],
        _VISIT + "test_who_submits_more_than_is_stored_has_to_wait": [
            (
                "PeerSession._ask",
                "await self._connection.while_alive(batcher.wait_accepting)",
                "pass",
            ),
        ],
        _VISIT + "test_what_a_dead_worker_asked_holds_up_nothing": [
            (
                "PeerSession._ask",
                "self._connection.while_alive(batcher.wait_accepting)",
                "batcher.wait_accepting()",
            ),
            (
                "PeerSession._ask",
                "not await self._connection.while_alive(begin := partial(self._begin, frame, body, tasks))",
                "await self._begin(frame, body, tasks)",
            ),
            (
                "PeerSession._ask",
                "tasks.start_soon(begin)",
                "pass",
            ),
        ],
        _VISIT + "test_a_newer_hello_takes_the_place_of_an_older_one": [
            (
                "PeerSession._join",
                "if older is not None:",
                "if False:",
            ),
        ],
        _VISIT + "test_a_hello_that_came_too_late_is_refused": [
            (
                "PeerSession._greet_worker",
                "                self._refuse_outdated(request)\n                holds",
                "                holds",
            ),
            (
                "PeerSession._refuse_outdated",
                "if not self._registry.is_newest(self._identity, self._number):",
                "if False:",
            ),
        ],
        _VISIT + "test_a_hello_while_the_database_is_away": [
            (
                "PeerSession._join",
                "None if holds is None else sorted",
                "sorted",
            ),
        ],
        _VISIT + "test_a_hello_that_takes_too_long": [
            (
                "PeerSession._greet_worker",
                "with anyio.move_on_after(RECONCILE_S):",
                "if True:",
            ),
            (
                "PeerSession._greet_worker",
                "        if self._worker is None:\n            self._refuse_outdated(request)\n",
                "",
            ),
            (
                "PeerSession._greet_worker",
                "self._in_doubt.doubt(self._identity)",
                "pass",
            ),
        ],
        _VISIT + "test_who_connects_from_here_is_watched": [
            (
                "PeerSession._join",
                "process_watch is not None and self._pidfd is not None",
                "False",
            ),
            (
                "PeerSession._join",
                " and self._pidfd is not None",
                "",
            ),
        ],
        _VISIT + "test_whose_capacity_may_be_told": [
            (
                "PeerSession._resize",
                "if body.session is not None:",
                "if False:",
            ),
            (
                "PeerSession._resize",
                "other is None or ",
                "",
            ),
            (
                "PeerSession._resize",
                " or not may_speak_for(self._peer.uid, other.identity, other.facts.uid)",
                "",
            ),
            (
                "PeerSession._resize",
                "worker.expect_end(ends=body.capacity == 0)",
                "pass",
            ),
            (
                "PeerSession._resize",
                "        worker.resize(body.capacity)\n",
                "        worker.resize(body.capacity)\n        worker.leaving = not body.capacity\n",
            ),
        ],
        _VISIT + "test_what_a_heartbeat_does_not_list": [
            (
                "PeerSession._hear_beat",
                "if body.session is None:",
                "if True:",
            ),
        ],
        _VISIT + "test_a_checkpoint_is_no_heartbeat": [
            (
                "PeerSession._hear_worker",
                "note_progress(worker, body.jobs, time.monotonic())",
                "note_beat(worker, body.jobs, time.monotonic())",
            ),
        ],
        _VISIT + "test_the_first_heartbeats_are_doubted": [
            (
                "PeerSession._hear_beat",
                "body.jobs is not None and ",
                "",
            ),
        ],
        _VISIT + "test_a_process_brings_no_more_than_has_room": [
            (
                "PeerSession._hear_worker",
                "note_ended(worker, pairs)",
                "pass",
            ),
            (
                "PeerSession._hear_worker",
                "                if settled is None:\n                    note_ended",
                "                if False:\n                    note_ended",
            ),
            (
                "PeerSession._hear_worker",
                "                if settled is None:\n                    raise",
                "                if False:\n                    raise",
            ),
            (
                "PeerSession._hear_beat",
                "if settled is None:",
                "if False:",
            ),
            (
                "PeerSession._hear_beat",
                "body.session in self._brief or ",
                "",
            ),
            (
                "PeerSession._hear_beat",
                "self._brief.add(body.session)",
                "self._brief.add(None)",
            ),
            (
                "PeerSession._hear_beat",
                "partial(self._brief.discard, body.session)",
                "(lambda: None)",
            ),
            (
                "PeerSession._hear_beat",
                ", None, body.jobs is None",
                ", jobs, body.jobs is None",
            ),
            (
                "PeerSession._hear_beat",
                ", None, body.jobs is None",
                ", None, True",
            ),
            (
                "PeerSession._hear_beat",
                ", None, body.jobs is None",
                ", None, False",
            ),
        ],
        _VISIT + "test_no_more_brief_heartbeats_wait_than_a_pool_has_children": [
            (
                "PeerSession._hear_beat",
                " or len(self._brief) >= MOST_BRIEF",
                "",
            ),
        ],
        _VISIT + "test_all_connections_of_a_process_have_one_room": [
            (
                "PeerSession._greet",
                "self._unwritten = unwritten_budget_of(spoken_for)",
                "pass",
            ),
            (
                "PeerSession._greet",
                "(hello.role, self._asker)",
                "self._asker",
            ),
            (
                "PeerSession._greet",
                "self._connection.greeted(longest)",
                "self._connection.greeted(longest, incoming_budget_of(spoken_for))",
            ),
            (
                "PeerSession._greet",
                "(longest, incoming_budget_of(spoken_for), ",
                "(longest, None, ",
            ),
        ],
    },
    is_part=True,
)


HANDSHAKE: Final = Guarded(
    "pulse_actors.dispatcher.net.handshake",
    {
        _VISIT + "test_a_hello_is_held_against_the_database": [
            (
                "held_jobs",
                "holds.get(pair, over.get(pair[0]))",
                "holds.get(pair)",
            ),
            (
                "ended_attempts",
                "named(over) if over else {}",
                "named(over) if False else {}",
            ),
        ],
        _VISIT + "test_what_had_started_has_started_when_its_worker_comes_back": [
            (
                "held_jobs",
                "before is not None and pair in before.held",
                "False",
            ),
            (
                "held_jobs",
                "before is not None and ",
                "",
            ),
            (
                "held_jobs",
                " and pair in before.held",
                "",
            ),
        ],
        _VISIT + "test_a_worker_that_holds_nothing_has_just_beaten": [
            (
                "new_worker",
                'float("-inf") if hello.running else',
                'float("-inf") if True else',
            ),
            (
                "new_worker",
                'float("-inf") if hello.running else',
                'float("-inf") if False else',
            ),
        ],
        _VISIT + "test_a_hello_while_the_database_is_away": [
            (
                "ended_attempts",
                "[] if holds is None else ",
                "",
            ),
            (
                "held_jobs",
                "over.get(pair[0]) if holds is None else holds",
                "holds",
            ),
        ],
        _VISIT + "test_a_pool_parent_takes_nobody_with_it": [
            (
                "new_worker",
                "bool(hello.topics) and ",
                "",
            ),
            (
                "new_worker",
                " and identities.leads_group(peer.pid)",
                "",
            ),
            (
                "new_worker",
                "process_tree.mark_of(peer.pid) if hello.topics else None",
                "process_tree.mark_of(peer.pid)",
            ),
        ],
    },
    is_part=True,
)

SERVICE: Final = Guarded(
    "pulse_actors.dispatcher.main",
    {
        _VISIT + "test_a_drain": [
            ("Dispatcher.drain", "self.registry.close(reconnect=reconnect)", "self.registry.close(reconnect=True)"),
        ],
        "process/test_reconcile.py::test_what_cannot_be_running_is_given_back": [
            ("Dispatcher.prime", "if self.host_workers is not None:", "if False:"),
        ],
        "process/test_bad_days.py::test_a_constraint_that_no_job_may_run_by": [
            ("dispatcher.main", "actor.claims.refused_jobs.run,", ""),
        ],
        "process/test_silence.py::test_workers_tell_how_they_are_recovered": [
            ("dispatcher.main", "if actor.host_workers is not None:", "if False:"),
        ],
        "process/test_dispatcher_leases.py::test_a_silent_worker_loses_its_lease": [
            ("Dispatcher.__init__", "if settings.proof_of_death:", "if True:"),
        ],
    },
    is_part=True,
)
