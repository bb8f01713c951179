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
            ("PeerSession._greet", "Access.WORKER if hello.role is Role.WORKER else Access.VIEWER", "Access.VIEWER"),
        ],
        _LIVE + "test_a_stranger_gets_no_further_than_hello": [
            ("PeerSession._greet", "if needed not in self._peer.rights:", "if False:"),
        ],
        _LIVE + "test_each_kind_takes_its_role": [
            ("PeerSession._greet", " if ACCESS_OF[kind] in self._peer.rights", ""),
        ],
        _LIVE + "test_frames_of_a_viewer_are_short": [
            ("PeerSession._greet", "None if Access.CLIENT in self._peer.rights else VIEWER_MAX_FRAME_BYTES", "None"),
            ("PeerSession._greet", "None if Access.CLIENT in self._peer.rights else ", ""),
        ],
        _LIVE + "test_a_viewer_sees_no_contents": [
            ("PeerSession._reply", "CONTENTS not in self._peer.rights and ", "False and "),
        ],
        "process/test_system_secrets.py::test_what_is_redacted_is_for_the_worker_alone": [
            ("PeerSession._reply", 'self._redaction.check(getattr(body, "args", None))', "pass"),
            (
                "PeerSession._reply",
                "self._redaction.answer(await REQUESTS[frame.kind](self._context, body))",
                "await REQUESTS[frame.kind](self._context, body)",
            ),
        ],
        _LIVE + "test_a_refusal_is_noted_once": [
            ("PeerSession._forbid", "if times is not None:", "if False:"),
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
            ("Listener.serve", "await anyio.sleep(ACCEPT_PAUSE_S)", "pass"),
            ("Listener.serve", "(OSError, anyio.BrokenResourceError) as error", "OSError as error"),
            ("Listener.serve", "(OSError, anyio.BrokenResourceError) as error", "anyio.BrokenResourceError as error"),
            ("Listener.serve", "error.__cause__ or error", "error"),
        ],
        "process/test_tcp.py::test_a_peer_that_is_cut_in_its_first_exchange": [
            ("Listener._serve_peer", "if connection.is_cut and ", "if "),
            ("Listener._serve_peer", "if connection.is_cut and ", "if not connection.is_cut and "),
        ],
        "store/test_visit_guards.py::test_of_whom_the_kernel_can_tell": [
            ("Listener._knows", "self._services.process_watch is not None and ", ""),
            ("Listener._knows", "peer.pid != 0 and ", ""),
            ("Listener._knows", " and peer.pidns == self._host.pidns", ""),
        ],
        "unit/test_handshake_cost.py::test_those_who_come_wait_for_as_long": [
            ("Listener._context", "self._handshakes.each_s = tls.handshake_s(context)", "pass"),
        ],
        "unit/test_handshake_cost.py::test_none_begins_before_its_turn": [
            ("Listener._secured", "await self._handshakes.wait(source, network)", "pass"),
        ],
        "unit/test_handshake_cost.py::test_who_waited_has_time_left": [
            ("Listener._secured", "with anyio.fail_after(HELLO_DEADLINE_S):  # anew", "if True:  #"),
        ],
        _TCP + "test_who_speaks_no_tls_is_sent_away": [
            ("Listener._secured", "if self._tls is None:", "if True:"),
        ],
        _TCP + "test_a_certificate_is_taken_anew": [
            ("Listener.reload", "self._tls = self._context(cert, key)", "pass"),
        ],
        _LIVE + "test_who_is_anywhere_keeps_nobody_out": [
            ("Listener.__init__", "self._remote_limits = ConnectionLimits()", "self._remote_limits = self._limits"),
            ("Listener._entered", "scope.cancel()", "pass"),
        ],
        _LIVE + "test_the_servers_own_account_has_no_bound": [
            ("Listener._attend_local", "self._own_limits if self._grants.is_own(peer.uid) else ", ""),
        ],
        _TCP + "test_too_many_of_one_source": [
            ("Listener._attend_remote", "if self._is_full(self._remote_limits, source):", "if False:"),
            ("Listener._entered", "slot.free()", "pass"),
        ],
    },
    is_part=True,
)
HANDSHAKES: Final = Guarded(
    "pulse_actors.dispatcher.admission.tls_limits",
    {
        "unit/test_handshakes.py::test_so_many_a_second": [
            ("TlsHandshakes.wait", "max(1 / A_SECOND, self.each_s / SHARE)", "self.each_s / SHARE"),
            ("TlsHandshakes.wait", "await anyio.sleep(max(0.0, self._opens_s - time.monotonic()))", "pass"),
        ],
        "unit/test_handshakes.py::test_who_opens_many_does_not_go_before_who_opens_one": [
            ("TlsHandshakes.wait", "before = ASKER.set(network)", "before = ASKER.set(None)"),
            ("TlsHandshakes.wait", "async with address.lock:", "async with anyio.Lock():"),
        ],
        "unit/test_handshakes.py::test_those_that_take_long_are_fewer": [
            ("TlsHandshakes.wait", "max(1 / A_SECOND, self.each_s / SHARE)", "1 / A_SECOND"),
            ("TlsHandshakes.wait", "self.each_s / SHARE", "self.each_s"),
        ],
        "unit/test_handshakes.py::test_whoever_is_alone_begins_at_once": [
            ("TlsHandshakes.wait", "ASKER.reset(before)", "pass"),
        ],
    },
)
CALLERS: Final = Guarded(
    "pulse_actors.dispatcher.net.peer",
    {
        "unit/test_callers.py::test_who_asks_from_elsewhere": [
            ("AuthenticatedPeer.asker", "self.counted_as or ", ""),
            ("RemotePeerAuth.admit", "counted_as=self.source", "counted_as=self.address"),
        ],
        "unit/test_callers.py::test_who_asks_here": [
            ("AuthenticatedPeer.asker", " or None", ""),
        ],
        _TCP + "test_nobody_comes_in_without_a_password": [
            ("RemotePeerAuth.admit", "if self.logins is not None:", "if False:"),
            ("RemotePeerAuth.admit", "hello.user is None or ", ""),
        ],
        _TCP + "TestWorkers::test_a_worker_comes_back_as_itself": [
            ("AuthenticatedPeer.worker", "session if session is not None and identities.is_session(session) else ", ""),
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
            ("ConnectionLimits.refusal", "self._here[source] >= self._most", "False"),
            ("ConnectionLimits.refusal", "self._before_hello[source] >= self._most_before_hello", "False"),
            ("ConnectionSlot.greeted", "if not self._is_greeted:", "if True:"),
            ("ConnectionSlot.free", "self.greeted()", "pass"),
            ("ConnectionSlot.free", "self._limits.leave(self.source)", "pass"),
        ],
        "unit/test_crowd.py::test_room_is_made_where_the_most_are": [
            ("ConnectionLimits.enter", "max(self._waiting.values(), key=len)", "next(iter(self._waiting.values()))"),
            ("ConnectionSlot.__init__", "network_of(source)", "source"),
        ],
        "unit/test_crowd.py::test_the_oldest_that_has_said_nothing_makes_room": [
            ("ConnectionLimits.enter", "self._before_hello_of_all >= self._most_before_hello_of_all", "False"),
            ("ConnectionLimits.enter", "self._before_hello_of_all >=", "self._before_hello_of_all >"),
            ("ConnectionSlot.evict", "self.greeted()", "pass"),
            ("ConnectionSlot.evict", "self._on_evicted()", "pass"),
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
