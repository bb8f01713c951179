"""Leases: whose are extended, on whose word."""

from __future__ import annotations

from typing import Final

from tests.mutants.code import Guarded

_SESSION: Final = "HeartbeatWriter._renewals_of_session"
_GUARDS: Final = "store/test_lease_guards.py::"
_PARENT: Final = _GUARDS + "test_a_parent_beats_for_its_child"
_ABSENT: Final = _GUARDS + "test_a_parent_beats_for_a_child_that_has_not_come_back"

LEASES: Final = Guarded(
    "pulse_actors.dispatcher.writes.heartbeat",
    {
        _GUARDS + "test_sessions_of_nobody_cost_one_look": [
            ("SessionLookup.named", "if self._by_key is None:", "if True:"),
            ("SessionLookup.held", "if identity not in self._running:", "if True:"),
        ],
        _GUARDS + "test_a_worker_extends_what_it_lists": [
            ("HeartbeatWriter._answer", " if (one.id, one.attempt) not in written", ""),
            ("HeartbeatWriter._answer", "(one.id, one.attempt) not in written", "False"),
            ("HeartbeatWriter._beat", "if worker is not None:", "if False:"),
            ("HeartbeatWriter._renewals", "if beat.jobs is not None:", "if False:"),
        ],
        _GUARDS + "test_a_result_that_overtakes_a_heartbeat_is_no_loss": [
            ("HeartbeatWriter._answer", " - done", ""),
            ("HeartbeatWriter._answer", "before - (", "set() - ("),
            ("HeartbeatWriter._answer", " - self._registry.reporting", ""),
            ("HeartbeatWriter._answer", "if missed:", "if False:"),
        ],
        _GUARDS + "test_where_nothing_is_lost_nothing_is_said": [
            ("HeartbeatWriter._held", " if renewals else None", ""),
            ("HeartbeatWriter._answer", "if missed:", "if True:"),
            ("HeartbeatWriter._answer", "renewals[0].worker if renewals else beat.worker", "renewals[0].worker"),
        ],
        _GUARDS + "test_a_worker_that_lists_nothing_at_all": [
            ("HeartbeatWriter._renewals", "if beat.jobs is not None:", "if True:"),
            ("HeartbeatWriter._renewals", "if beat.session is None:", "if False:"),
            ("HeartbeatWriter._renewals", "[] if held is None else ", ""),
            ("HeartbeatWriter._beat", "if worker is not None:", "if True:"),
            ("HeartbeatWriter._held", "set() if worker is None else ", ""),
        ],
        _PARENT: [
            ("HeartbeatWriter._renewals", "if beat.session is None:", "if True:"),
            (_SESSION, "if not may_speak_for(uid, worker.identity, worker.facts.uid):", "if False:"),
            (_SESSION, "if worker is not None:", "if False:"),
            (_SESSION, "self._registry.by_session(session, remote=uid is None) or ", ""),
            ("may_speak_for", "{owner, 0}", "{owner}"),
            (_SESSION, "worker.contact.hear(now_s, itself=False)", "pass"),
            (_SESSION, "itself=False", "itself=True"),
            (_SESSION, "worker.contact.beat(now_s)", "pass"),
        ],
        _GUARDS + "test_who_may_speak_for_whom": [
            ("may_speak_for", "if uid is None else", "if False else"),
            ("may_speak_for", "identities.is_remote(identity) if uid", "True if uid"),
            ("may_speak_for", " and not identities.is_remote(identity)", ""),
            ("may_speak_for", "uid in {owner, 0} and ", ""),
        ],
        _ABSENT: [
            (_SESSION, "if worker is not None:", "if True:"),
            (_SESSION, " or not may_speak_for(uid, identity, identities.user_of(self._host, identity))", ""),
        ],
        _GUARDS + "test_the_word_of_a_parent_counts_for_who_is_not_connected": [
            (_SESSION, " or self._registry.unconnected(session)", ""),
            ("HeartbeatWriter._beat", "self._registry.find(", "self._registry.get("),
        ],
        _GUARDS + "test_a_session_over_tcp_is_nobodys_of_here": [
            (_SESSION, "by_session(session, remote=uid is None)", "by_session(session, remote=False)"),
        ],
        _GUARDS + "test_a_worker_over_tcp_that_has_not_come_back": [
            ("SessionLookup.named", "identities.mark_of(session) if remote else session", "session"),
            (_SESSION, "lookup.named(session, remote=uid is None)", "lookup.named(session, remote=False)"),
        ],
        _GUARDS + "test_a_session_of_nobody": [
            (_SESSION, "identity is None or ", ""),
        ],
        _GUARDS + "test_a_text_that_prints_too_long_is_not_kept": [
            ("HeartbeatWriter._extend", "one if comes_back(one.progress) else _without_progress(one)", "one"),
            (
                "HeartbeatWriter._extend",
                "one if comes_back(one.progress) else _without_progress(one)",
                "_without_progress(one)",
            ),
            ("HeartbeatWriter._keep", "if comes_back(one.progress):", "if True:"),
            ("HeartbeatWriter._keep", "if comes_back(one.progress):", "if False:"),
        ],
        "store/test_visit_guards.py::test_a_process_brings_no_more_than_has_room": [
            ("HeartbeatWriter._answer", "            beat.settled()\n            answered", "            answered"),
            ("HeartbeatWriter._answer", 'if beat.kept else {"lost": lost, "kept": False}', ""),
            ("HeartbeatWriter._answer", '{"lost": lost} if beat.kept else ', ""),
        ],
        "store/test_visit_guards.py::test_what_the_database_does_not_take_leaves_its_room": [
            (
                "HeartbeatWriter._answer",
                "                beat.settled()\n            return []",
                "            return []",
            ),
        ],
        _GUARDS + "test_what_a_heartbeat_weighs": [
            ("_weight", "beat.jobs or ()", "beat.jobs"),
            ("_weight", "beat.jobs or ()", "()"),
            ("_weight", "1 + sum(", "sum("),
            ("_weight", "sum(1 + len", "sum(len"),
            ("_weight", ' + len(job.text or "") // ROW_BYTES', ""),
            ("_weight", 'job.text or ""', "job.text"),
        ],
    },
)
