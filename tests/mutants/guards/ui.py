"""The door of the dashboard: whose requests pass, who logs in, and that a change hits no more than was asked for."""

from __future__ import annotations

from typing import Final

from tests.mutants.code import Guarded

_RULES: Final = "unit/test_ui_rules.py::"
_PARTS: Final = "unit/test_ui_parts.py::"
_DOOR: Final = "unit/test_ui_guard.py::"
_LOGIN: Final = "unit/test_ui_login.py::"
_BULK: Final = "unit/test_ui_bulk.py::"
_PAGES: Final = "unit/test_ui_pages.py::"

DOOR: Final = Guarded(
    "pulse.ui.guard",
    {
        _DOOR + "test_names_that_it_may_be_called_by": [
            ("Guard._check_host", "not in self._options.known_hosts", "is None"),
        ],
        _DOOR + "test_pages_need_a_session": [
            ("Guard._checked", "elif session is None:", "elif False:"),
            ("Guard._checked", "path == LOGIN or", "path.startswith(LOGIN) or"),
            ("_to_login", 'if "hx-request" in headers:', "if False:"),
            ("_to_login", 'if headers.get("accept") == "text/event-stream":', "if False:"),
        ],
        _DOOR + "test_a_link_on_another_site_leads_to_the_page": [
            ("_to_login", 'if headers.get("sec-fetch-site") == "cross-site":', "if False:"),
            ("_to_login", "hop(rules.own_path(wanted))", "hop(wanted)"),
        ],
        _DOOR + "test_changes_need_the_token": [
            ("Guard._checked", "_check_token(session, form)", "pass"),
            ("Guard._checked", "if not is_reading and not rules.is_own_page(", "if False and not rules.is_own_page("),
            ("_check_token", "if not rules.is_same(session.token, ", "if False and not rules.is_same(session.token, "),
            ("_READING", '"GET", "HEAD"', '"GET", "HEAD", "OPTIONS"'),
        ],
        _DOOR + "test_nothing_is_read_of_strangers": [
            (
                "Guard._checked",
                "await _read_form(receive, MAX_LOGIN_BYTES)",
                "await _read_form(receive, MAX_FORM_BYTES)",
            ),
        ],
        _DOOR + "test_forms_are_bounded": [
            ("_read_body", "if size > most_bytes:", "if False:"),
            ("_read_form", "max_num_fields=MAX_FIELDS", "max_num_fields=None"),
            (
                "_read_form",
                "async with asyncio.timeout(FORM_S):",
                "async with asyncio.timeout(None if FORM_S < 1 else FORM_S):",
            ),
            ("_read_body", 'if message["type"] == "http.disconnect":', "if False:"),
        ],
        _DOOR + "test_read_only": [
            ("Guard._checked", " and self._options.read_only:", " and False:"),
            ("Guard._checked", "path not in _HARMLESS and ", 'not path.startswith("/login") and '),
            ("Guard._checked", "path not in _HARMLESS and ", ""),
        ],
        _DOOR + "test_cookies_of_others_do_not_hide_ours": [
            ("_cookie", 'cookie_parser(headers.get("cookie", ""))', 'dict([headers.get("cookie", "=").split("=", 1)])'),
        ],
        _DOOR + "test_a_unix_socket_knows_who_it_is": [
            ("Guard._session", "if uid not in {_ROOT, self._site.uid}:", "if False:"),
            ("Guard._session", "{_ROOT, self._site.uid}", "{self._site.uid, None}"),
            ("Guard._session", "        if session is not None:\n            return session\n", ""),
            ("cookie_header", "; HttpOnly", ""),
            ("cookie_header", "; SameSite=Strict", ""),
        ],
        _DOOR + "test_every_answer_is_hardened": [
            ("_harden", "headers.setdefault(name, value)", "pass"),
            ("_harden", 'else "no-store"', 'else "private"'),
            (
                "Guard.__call__",
                "await refused.response(scope, receive, send_guarded)",
                "await refused.response(scope, receive, send)",
            ),
        ],
    },
    is_part=True,
)

LOGINS: Final = Guarded(
    "pulse.security.password_login",
    {
        _LOGIN + "test_many_guesses_at_once_are_one": [
            ("Logins.check", "            self._by_source.tries(source, now_s)\n", ""),
            ("Logins._check_early", "self._by_source.wait_s(source, now_s)", "0.0"),
        ],
        _LOGIN + "test_one_name_from_many_addresses": [
            ("Logins.check", "self._by_name.tries(name, now_s)", "pass"),
            ("Logins._check_early", ", self._by_name.wait_s(name, now_s)", ", 0.0"),
        ],
        _LOGIN + "test_guesses_from_elsewhere_keep_nobody_out_who_is_known_there": [
            ("Logins.check", "is_new = (source, name) not in self._acquainted", "is_new = True"),
            ("Logins.check", "            if is_new:  #", "            if True:  #"),
            ("Logins._check_early", "if (source, name) not in self._acquainted:", "if True:"),
            ("Logins._check_early", "if (source, name) not in self._acquainted:", "if not self._acquainted:"),
            ("Logins._is_right", "if self._credentials.remembers(user, password):", "if False:"),
        ],
        _LOGIN + "test_one_network_of_ipv6_is_one_source": [
            ("source_of", "address.version == _IPV6", "False"),
        ],
    },
    is_part=True,
)
PAGES: Final = Guarded(
    "pulse.ui.pages.common",
    {
        _LOGIN + "test_what_a_user_may_do_and_see": [
            ("ask", "permit(request, kind)", "pass"),
            ("ask", "CONTENTS in session_of(request).rights or ", "True or "),
            ("do", "permit(request, kind)", "pass"),
            ("permit", "if ACCESS_OF[kind] not in session.rights:", "if False:"),
        ],
    },
    is_part=True,
)
LOGIN: Final = Guarded(
    "pulse.ui.pages.login",
    {
        _LOGIN + "test_links_that_are_wrong_lock_nobody_out": [
            ("ask", "not site.link_token or not rules.is_same(site.link_token, token)", "False"),
            ("ask", "    site.new_link()\n", ""),
        ],
        _LOGIN + "test_a_new_login_ends_the_session_before": [
            ("_enter", "    site.sessions.end(request.cookies.get(site.options.cookie))", "    pass"),
            ("check", 'rules.own_path(form.get("next", ["/"])[0])', 'form.get("next", ["/"])[0]'),
        ],
    },
    is_part=True,
)

NEWS: Final = Guarded(
    "pulse.ui.pages.live",
    {
        _LOGIN + "test_news_end_with_the_session": [
            ("stream", "if standing.at_s > session.ends_s:", "if False:"),
            ("stream", ", send_timeout=SEND_S", ""),
        ],
    },
    is_part=True,
)

SERVER: Final = Guarded(
    "pulse.ui.server",
    {
        _LOGIN + "test_who_connects_and_says_nothing_makes_room": [
            ("PeerProtocol._end_where_silent", "self.transport.close()", "pass"),
        ],
    },
    is_part=True,
)

STANDING: Final = Guarded(
    "pulse.ui.data.poller",
    {
        _PAGES + "test_what_was_asked_before_a_change_is_not_shown_after_it": [
            ("Poller.forget", "self._changed_s = time.monotonic()", "pass"),
            ("Poller.forget", "self._round = None", "pass"),
            ("Poller._ask", "if asked_s < self._asked_s:", "if False:"),
        ],
        _PAGES + "test_a_round_that_fails_is_not_the_last": [
            ("Poller.run", "except Exception:", "except LookupError:"),
        ],
    },
    is_part=True,
)

ORDERS: Final = Guarded(
    "pulse.ui.data.bulk_orders",
    {
        _BULK + "test_what_was_counted_is_what_is_changed": [
            ("ordered", "is_meant = only is None or job.id in only", "is_meant = True"),
            ("ordered", "filters.matches(job, at_s)", "True"),
        ],
        _BULK + "test_ages_are_meant_as_of_the_page": [
            ("ordered", "filters.wire(now_s - at_s)", "filters.wire()"),
            ("ordered", "filters.matches(job, at_s)", "filters.matches(job, now_s)"),
            ("_moment", "min(now_s, at_s)", "at_s"),
        ],
    },
    is_part=True,
)

TASKS: Final = Guarded(
    "pulse.ui.data.bulk_tasks",
    {
        _BULK + "test_a_task_is_taken_back": [
            ("BulkTask.undo", " or not self.back", ""),
            ("BulkTasks.undo", "        task.forget()\n", ""),
            ("BulkTask.keep", "self.back is None or self.order.parts", "self.back is None"),
        ],
        _BULK + "test_what_undoes_is_bounded": [
            ("BulkTasks._change", "self._forget_some(task)", "pass"),
            ("BulkTask.keep", "self.back is None or ", ""),
        ],
        _BULK + "test_it_ends_where_all_were_met": [
            ("BulkTasks._walk", "if left == 0:", "if False:"),
        ],
    },
    is_part=True,
)

RULES: Final = Guarded(
    "pulse.ui.auth.rules",
    {
        _RULES + "test_own_page": [
            ("is_own_page", 'fetch_site is not None and fetch_site != "same-origin"', "False"),
            ("is_own_page", 'parts.scheme in {"http", "https"} and ', ""),
            ("is_own_page", " and parts.netloc.lower() == host.lower()", ""),
        ],
        _RULES + "test_tokens_and_paths": [
            ("is_same", "given is not None and hmac.compare_digest", "hmac.compare_digest"),
            ("own_path", ' or path.startswith(("//", "/\\\\"))', ""),
            ("own_path", " or not path.isprintable()", ""),
            ("own_path", ' or not path.startswith("/")', ""),
        ],
        _RULES + "test_host_name": [
            ("host_name", "parts.username is None and ", ""),
            ("host_name", " and parts.netloc == host", ""),
        ],
    },
    is_part=True,
)

CREDENTIALS: Final = Guarded(
    "pulse.security.credentials",
    {
        _RULES + "TestCredentials::test_plain_and_bcrypt": [
            ("Credentials.remembers", " and self._mark(user, password) in self._verified", ""),
            ("Credentials.verify", "entry is _NOBODY or not matches", "False"),
            ("_matches", "        return False\n", "        return True\n"),
        ],
        _RULES + "TestCredentials::test_guessing_gets_slower": [
            ("Throttle._pause_s", "min(self._longest_s, ", "max(0.0, "),
            ("Throttle.tries", "count = 0", "pass"),
            ("Throttle.tries", "while len(self._failures) > self._most", "while False"),
        ],
        _LOGIN + "test_who_is_right_does_not_wipe_out_wrong_guesses": [
            ("Throttle.was_right", "if count > 1:", "if False:"),
        ],
        _LOGIN + "test_time_does_not_tell_who_exists": [
            ("Credentials.verify", "                _matches(other, given)\n", "                pass\n"),
            ("Credentials.verify", "if kind != _kind_of(entry):", "if True:"),
            ("_kind_of", "entry.secret[:_KIND_BYTES]", "entry.secret[4:6]"),
            ("Credentials.verify", "entry is _NOBODY or ", ""),
        ],
    },
    is_part=True,
)

SESSIONS: Final = Guarded(
    "pulse.ui.auth.sessions",
    {
        _RULES + "TestSessions::test_life": [
            ("BrowserSessions.find", "session is not None and session.ends_s <= now_s", "False"),
            ("BrowserSessions._end", "self._by_hash.pop(key, None)", "self._by_hash.get(key)"),
            ("BrowserSessions._end", "session.ends_s = 0.0", "pass"),
        ],
        _RULES + "TestSessions::test_bounds": [
            ("BrowserSessions.begin", "while len(self._by_hash) > MOST", "while False"),
            ("BrowserSession.show_next", "while len(self.undos) > _MOST_UNDOS", "while False"),
        ],
        _LOGIN + "test_one_user_does_not_end_the_sessions_of_others": [
            ("BrowserSessions.begin", "for key in of_user[:-MOST_OF_ONE]:", "for key in ():"),
        ],
    },
    is_part=True,
)

FILTERS: Final = Guarded(
    "pulse.ui.data.filters",
    {
        _PARTS + "TestFilters::test_a_change_hits_no_more_than_was_asked_for": [
            ("Filters._agreements", "yield not self.topic or job.topic == self.topic", "yield True"),
            ("Filters._agreements", "yield not self.status or ", "yield True or "),
            ("Filters._agreements", "yield age_s > -_CLOCKS_S", "yield True"),
            ("Filters._agreements", "yield not self.name or job.name == self.name", "yield True"),
            ("Filters._agreements", "yield not self.schedule or ", "yield True or "),
            ("Filters._agreements", "yield not self.worker or ", "yield True or "),
            ("Filters._agreements", "yield not self.older or ", "yield True or "),
            ("Filters._agreements", "yield not self.newer or ", "yield True or "),
        ],
    },
    is_part=True,
)
