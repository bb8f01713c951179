"""Who may do what: the door of the dispatcher, that of the supervisor, and what a viewer gets to see."""

from __future__ import annotations

from typing import Final

from tests.mutants.code import Guarded

_LIVE: Final = "process/test_access.py::"
_TCP: Final = "process/test_tcp.py::"
_UNIT: Final = "unit/test_access.py::"

VISIT: Final = Guarded(
    "pulse_actors.dispatcher.net.session",
    {
        _LIVE + "test_only_a_worker_gets_jobs": [
            ("Visit._greet", "Access.WORKER if hello.role is Role.WORKER else Access.VIEWER", "Access.VIEWER"),
        ],
        _LIVE + "test_a_stranger_gets_no_further_than_hello": [
            ("Visit._greet", "if needed not in self._caller.rights:", "if False:"),
        ],
        _LIVE + "test_each_kind_takes_its_role": [
            ("Visit._greet", " if ACCESS_OF[kind] in self._caller.rights", ""),
        ],
        _LIVE + "test_frames_of_a_viewer_are_short": [
            ("Visit._greet", "None if Access.CLIENT in self._caller.rights else VIEWER_MAX_FRAME_BYTES", "None"),
            ("Visit._greet", "None if Access.CLIENT in self._caller.rights else ", ""),
        ],
        _LIVE + "test_a_viewer_sees_no_contents": [
            ("Visit._reply", "CONTENTS not in self._caller.rights and ", "False and "),
        ],
        "process/test_system_secrets.py::test_what_is_redacted_is_for_the_worker_alone": [
            ("Visit._reply", 'self._desktop.redaction.check(getattr(body, "args", None))', "pass"),
            (
                "Visit._reply",
                "self._desktop.redaction.answer(await REQUESTS[frame.kind](self._desktop, body))",
                "await REQUESTS[frame.kind](self._desktop, body)",
            ),
        ],
        _LIVE + "test_a_refusal_is_noted_once": [
            ("Visit._forbid", "if times is not None:", "if False:"),
        ],
    },
    is_part=True,
)
SCHEDULES: Final = Guarded(
    "pulse_actors.dispatcher.requests.schedules",
    {
        "process/test_system_secrets.py::test_what_is_redacted_is_for_the_worker_alone": [
            ("update_schedule", "_check_hidden(on, row)", "pass"),
            ("update_schedule", ' and "args" not in changes', ""),
            ("update_schedule", 'changes.get("name", row["name"]) != row["name"] and ', ""),
        ],
    },
    is_part=True,
)
EXPLAIN: Final = Guarded(
    "pulse.store.failures",
    {
        "store/test_bad_rows.py::test_no_row_is_told": [
            (
                "explain",
                'None if isinstance(error, _OF_A_ROW) else getattr(error, "detail", None)',
                'getattr(error, "detail", None)',
            ),
            ("_OF_A_ROW", "asyncpg.CheckViolationError, ", ""),
            ("_OF_A_ROW", ", asyncpg.NotNullViolationError", ","),
        ],
    },
    is_part=True,
)
ROLES: Final = Guarded(
    "pulse.store.admin.roles",
    {
        "store/test_roles_made.py::test_one_who_may_not_make_roles": [
            ("_HEAD", "SET LOCAL search_path = pg_catalog, pg_temp;", ""),
        ],
    },
    is_part=True,
)
PRINTED: Final = Guarded(
    "pulse_actors.shared.json_size",
    {
        "unit/test_submits.py::test_numbers_that_print_as_megabytes": [
            ("excess", "_EXPONENT.search(text)", "False"),
            ("excess", "2 * size_bytes > most_bytes or ", ""),
            ("excess", """_STRING.sub('""', text)""", "text"),
            ("excess", ' - bare.count(mark + " ")', ""),
            ("excess", "min(one, MOST_DIGITS)", "one"),
            ("excess", "found[:9]", "found"),
            ("excess", "return size_bytes if size_bytes > most_bytes else None", "return None"),
            ("excess", "if size_bytes > most_bytes else None", "if size_bytes >= most_bytes else None"),
            ("excess", 'len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))', "len(text)"),
        ],
        "unit/test_results_split.py::test_a_progress_that_prints_too_long_is_left_out": [
            ("comes_back", "text is None or ", ""),
            ("comes_back", "excess(text, CLAIM_MAX_BYTES) is None", "True"),
        ],
    },
    is_part=True,
)
REDACT: Final = Guarded(
    "pulse.security.redaction",
    {
        "unit/test_redact.py::test_what_is_hidden": [
            ("_Rule.hides", "len(there) == len(self.keys) and ", "len(there) > 0 and "),
            ("Redaction.__init__", "path.casefold()", "path"),
            ("Redaction._hidden", "key.casefold()", "key"),
            ("Redaction._hidden", "if isinstance(value, list):", "if False:"),
            ("Redaction._text", "if sealed_by(text) is not None:", "if False:"),
            ("Redaction._hides", "rule.handler in {None, name}", "True"),
        ],
        "unit/test_redact.py::test_whose_it_is_counts_unless_nobody_says": [
            ("Redaction._hides", "name is None or ", ""),
        ],
        "unit/test_redact.py::test_what_is_not_touched_is_the_same_to_the_letter": [
            ("Redaction._text", "text if shown == value else json_text.dumps(shown)", "json_text.dumps(shown)"),
        ],
        "unit/test_redact.py::test_what_cannot_be_looked_at_is_hidden": [
            ("Redaction._text", "return json_text.dumps(MASK)", "return text"),
        ],
        "unit/test_redact.py::test_a_mask_is_never_stored": [
            ("Redaction.check", "MASK in self._values(json_text.loads(args), ())", "False"),
            ("Redaction._values", "if isinstance(value, list):", "if False:"),
        ],
    },
    is_part=True,
)
DOOR: Final = Guarded(
    "pulse_supervisor.control.server",
    {
        _LIVE + "test_a_stranger_gets_no_further_than_hello": [
            ("ControlServer._converse", "self._check_right(peer, frame, Access.VIEWER)", "pass"),
        ],
        _LIVE + "test_one_account_keeps_nobody_out": [
            ("ControlServer._converse", "self._of_account[uid] > MOST_OF_ONE and ", "False and "),
            ("ControlServer._converse", "if is_own else MAX_CONNECTIONS - OWN_SEATS", ""),
            ("ControlServer._attend", "self._of_account[peer.requester.uid] -= 1", "pass"),
        ],
        _LIVE + "test_each_kind_takes_its_role": [
            ("ControlServer._answer", "self._check_right(peer, frame, ACCESS_OF[frame.kind])", "pass"),
        ],
        _LIVE + "test_a_refusal_is_noted_once": [
            ("ControlServer._check_right", "self._forbade(frame.kind, needed, peer.requester)", "pass"),
        ],
    },
    is_part=True,
)
RECEPTION: Final = Guarded(
    "pulse_actors.dispatcher.net.listener",
    {
        "unit/test_reception.py::test_accept_does_not_spin": [
            ("Reception.serve", "await anyio.sleep(ACCEPT_PAUSE_S)", "pass"),
            ("Reception.serve", "(OSError, anyio.BrokenResourceError) as error", "OSError as error"),
            ("Reception.serve", "(OSError, anyio.BrokenResourceError) as error", "anyio.BrokenResourceError as error"),
            ("Reception.serve", "error.__cause__ or error", "error"),
        ],
        "process/test_tcp.py::test_a_peer_that_is_cut_in_its_first_exchange": [
            ("Reception._visit", "if connection.is_cut and ", "if "),
            ("Reception._visit", "if connection.is_cut and ", "if not connection.is_cut and "),
        ],
        "store/test_visit_guards.py::test_of_whom_the_kernel_can_tell": [
            ("Reception._knows", "self._office.deaths is not None and ", ""),
            ("Reception._knows", "peer.pid != 0 and ", ""),
            ("Reception._knows", " and peer.pidns == self._office.host.pidns", ""),
        ],
        "unit/test_handshake_cost.py::test_those_who_come_wait_for_as_long": [
            ("Reception._context", "self._handshakes.each_s = tls.handshake_s(context)", "pass"),
        ],
        "unit/test_handshake_cost.py::test_none_begins_before_its_turn": [
            ("Reception._secured", "await self._handshakes.wait(source, network)", "pass"),
        ],
        "unit/test_handshake_cost.py::test_who_waited_has_time_left": [
            ("Reception._secured", "with anyio.fail_after(HELLO_DEADLINE_S):  # anew", "if True:  #"),
        ],
        _TCP + "test_who_speaks_no_tls_is_sent_away": [
            ("Reception._secured", "if self._tls is None:", "if True:"),
        ],
        _TCP + "test_a_certificate_is_taken_anew": [
            ("Reception.reload", "self._tls = self._context(cert, key)", "pass"),
        ],
        _LIVE + "test_who_is_anywhere_keeps_nobody_out": [
            ("Reception.__init__", "self._remote_crowd = Crowd()", "self._remote_crowd = self._crowd"),
            ("Reception._entered", "scope.cancel()", "pass"),
        ],
        _LIVE + "test_the_servers_own_account_has_no_bound": [
            ("Reception._attend_local", "self._own_crowd if self._grants.is_own(peer.uid) else ", ""),
        ],
        _TCP + "test_too_many_of_one_source": [
            ("Reception._attend_remote", "if self._is_crowded(self._remote_crowd, source):", "if False:"),
            ("Reception._entered", "place.free()", "pass"),
        ],
    },
    is_part=True,
)
HANDSHAKES: Final = Guarded(
    "pulse_actors.dispatcher.admission.tls_limits",
    {
        "unit/test_handshakes.py::test_so_many_a_second": [
            ("Handshakes.wait", "max(1 / A_SECOND, self.each_s / SHARE)", "self.each_s / SHARE"),
            ("Handshakes.wait", "await anyio.sleep(max(0.0, self._opens_s - time.monotonic()))", "pass"),
        ],
        "unit/test_handshakes.py::test_who_opens_many_does_not_go_before_who_opens_one": [
            ("Handshakes.wait", "before = ASKER.set(network)", "before = ASKER.set(None)"),
            ("Handshakes.wait", "async with address.lock:", "async with anyio.Lock():"),
        ],
        "unit/test_handshakes.py::test_those_that_take_long_are_fewer": [
            ("Handshakes.wait", "max(1 / A_SECOND, self.each_s / SHARE)", "1 / A_SECOND"),
            ("Handshakes.wait", "self.each_s / SHARE", "self.each_s"),
        ],
        "unit/test_handshakes.py::test_whoever_is_alone_begins_at_once": [
            ("Handshakes.wait", "ASKER.reset(before)", "pass"),
        ],
    },
)
CALLERS: Final = Guarded(
    "pulse_actors.dispatcher.net.peer",
    {
        "unit/test_callers.py::test_who_asks_from_elsewhere": [
            ("Caller.asker", "self.counted_as or ", ""),
            ("Remote.admit", "counted_as=self.source", "counted_as=self.address"),
        ],
        "unit/test_callers.py::test_who_asks_here": [
            ("Caller.asker", " or None", ""),
        ],
        _TCP + "test_nobody_comes_in_without_a_password": [
            ("Remote.admit", "if self.logins is not None:", "if False:"),
            ("Remote.admit", "hello.user is None or ", ""),
        ],
        _TCP + "TestWorkers::test_a_worker_comes_back_as_itself": [
            ("Caller.worker", "session if session is not None and identities.is_session(session) else ", ""),
        ],
    },
    is_part=True,
)
SECRETS: Final = Guarded(
    "pulse.config",
    {
        "unit/test_config.py::TestFile::test_a_secret_of_the_wrong_type_is_not_shown": [
            ("_harmless", "_CONCEALED if name in _SECRET else value", "value"),
            ("_harmless", " and isinstance(value, str)", ""),
        ],
    },
    is_part=True,
)
CROWD: Final = Guarded(
    "pulse_actors.dispatcher.admission.connection_limits",
    {
        "unit/test_crowd.py::test_bounds": [
            ("Crowd.refusal", "self._here[source] >= self._most", "False"),
            ("Crowd.refusal", "self._unknown[source] >= self._most_unknown", "False"),
            ("Place.known", "if not self._is_known:", "if True:"),
            ("Place.free", "self.known()", "pass"),
            ("Place.free", "self._crowd.leave(self.source)", "pass"),
        ],
        "unit/test_crowd.py::test_room_is_made_where_the_most_are": [
            ("Crowd.enter", "max(self._strangers.values(), key=len)", "next(iter(self._strangers.values()))"),
            ("Place.__init__", "network_of(source)", "source"),
        ],
        "unit/test_crowd.py::test_the_oldest_that_has_said_nothing_makes_room": [
            ("Crowd.enter", "self._unknown_of_all >= self._most_unknown_of_all", "False"),
            ("Crowd.enter", "self._unknown_of_all >=", "self._unknown_of_all >"),
            ("Place.evict", "self.known()", "pass"),
            ("Place.evict", "self._make_room()", "pass"),
        ],
    },
    is_part=True,
)
GRANTS: Final = Guarded(
    "pulse.security.grants",
    {
        _UNIT + "TestGrants": [
            ("Grants.is_own", "uid in {self.own, _ROOT}", "uid == self.own"),
            ("_resolved", "if number in found:", "if False:"),
        ],
        _LIVE + "test_a_stranger_gets_no_further_than_hello": [
            ("Grants.of", "groups_of(connection) if self.groups else frozenset[int]()", "frozenset[int]()"),
        ],
    },
    is_part=True,
)
REFUSED: Final = Guarded(
    "pulse.security.log_throttle",
    {
        _UNIT + "TestRefused": [
            ("Refused.count", "if now_s - told_s < self._again_s:", "if False:"),
            ("Refused.count", "(told_s, since + 1)", "(told_s, since)"),
        ],
    },
    is_part=True,
)
