"""The table of roles: it covers every kind, agrees with the page, and grants what it says."""

from __future__ import annotations

import os
import socket
from typing import Final

import pytest

from pulse import protocol
from pulse.errors import ConfigError
from pulse.protocol.roles import ACCESS_OF, EVERYTHING, NOTHING, Access, refusal, rights_of
from pulse.security.conceal import conceal, is_about_contents
from pulse.security.grants import Grants, parse_roles, read_grants
from pulse.security.log_throttle import Refused
from pulse.system.sockets.peer_credentials import credentials_of, groups_of
from tests.support.checking.markdown import DOCS, section, table

KINDS: Final = {**protocol.CLIENT_KINDS, **protocol.WORKER_KINDS, **protocol.SUPERVISOR_KINDS}


def documented() -> dict[str, set[Access]]:
    rows = table(section((DOCS / "protocol.md").read_text("utf-8"), "13. Roles"))
    return {row["kind"]: {role for role in Access if row[role] == "yes"} for row in rows}


def test_every_kind_of_both_sockets_takes_a_role() -> None:
    assert ACCESS_OF.keys() == KINDS.keys()


def test_the_page_has_the_table() -> None:
    expected = {kind: {role for role in Access if needed in rights_of({role})} for kind, needed in ACCESS_OF.items()}
    expected["hello as client"] = set(Access)
    expected["hello as worker"] = {Access.WORKER}
    assert documented() == expected


def test_what_changes_something_takes_more_than_a_viewer() -> None:
    reading = {
        kind
        for kind in ACCESS_OF
        if kind.endswith(
            (
                ".list",
                ".count",
                ".errors",
                ".find",
                ".get",
                ".groups",
                ".parents",
                ".why",
                ".graph",
                ".preview",
                "status",
            )
        )
    }
    allowed = {kind for kind, needed in ACCESS_OF.items() if needed is Access.VIEWER}
    assert allowed == reading - {"audit.list", "handler.parents"} | {"stats", "ping"}


@pytest.mark.parametrize(("given", "amounts_to"), [
    ("viewer", {Access.VIEWER}), ("client", {Access.CLIENT, Access.VIEWER}),
    ("worker", {Access.WORKER, Access.CLIENT, Access.VIEWER}),
    ("operator", {Access.OPERATOR, Access.CLIENT, Access.VIEWER}), ("operator+worker", EVERYTHING), ("viewer+", None),
    ("", None), ("root", None), ("Viewer", None),
])  # fmt: skip
def test_roles_include_others(given: str, amounts_to: set[Access] | None) -> None:
    """Worker and operator are clients, clients are viewers, and neither of the first two is the other."""
    assert parse_roles(given) == amounts_to


def test_the_refusal_names_who_what_and_the_role() -> None:
    said = refusal("jobs.retry", Access.OPERATOR, "user bob (uid 7)", rights_of({Access.CLIENT}))
    assert said == "jobs.retry needs the role operator, which user bob (uid 7) does not have (has: viewer, client)"
    assert refusal("ping", Access.VIEWER, "uid 7", NOTHING).endswith("(has: none)")


class TestGrants:
    def test_own_account_and_root_may_do_everything(self) -> None:
        ours, _theirs = socket.socketpair()
        with ours, _theirs:
            assert read_grants(None, None).of(ours) == EVERYTHING
            assert Grants(own=12345).of(ours) == (EVERYTHING if os.geteuid() == 0 else NOTHING)

    def test_names_and_numbers(self) -> None:
        """Names are looked up once; a number needs no account."""
        grants = read_grants("root:viewer, 4711:worker+operator", "root:client,4712:viewer")
        assert grants.users == {0: {Access.VIEWER}, 4711: EVERYTHING}
        assert grants.groups == {0: {Access.CLIENT, Access.VIEWER}, 4712: {Access.VIEWER}}
        assert grants.shared
        assert not read_grants(None, None).shared

    @pytest.mark.parametrize(("users", "groups", "message"), [
        ("no-such-one:viewer", None, "allow_users: there is no user 'no-such-one' on this machine"),
        (None, "no-such-one:viewer", "allow_groups: there is no group 'no-such-one' on this machine"),
        ("root:viewer,0:client", None, "allow_users: user '0' is there twice: each once is allowed"),
    ])  # fmt: skip
    def test_mistakes(self, users: str | None, groups: str | None, message: str) -> None:
        with pytest.raises(ConfigError) as caught:
            read_grants(users, groups)
        assert caught.value.message == message

    def test_groups_come_from_the_kernel(self) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            assert groups_of(ours) == {os.getegid(), *os.getgroups()}
            assert credentials_of(ours) == (os.getpid(), os.geteuid(), os.getegid())


def test_a_refusal_is_told_once_in_a_while_with_the_number_of_those_between() -> None:
    refused = Refused(again_s=60.0)
    assert [refused.count(("1", "drain"), t) for t in (0.0, 1.0, 59.0, 60.0, 61.0)] == [*(1, None, None, 3, None)]
    assert refused.count(("1", "logs"), 1.0) == 1
    assert refused.count(("2", "drain"), 1.0) == 1


class TestConceal:
    def test_contents_go_and_that_is_said(self) -> None:
        job = {
            "id": b"1", "schedule": b"2", "args": "{}", "result": None, "last_error": "e",
            "history": [{"attempt": 1, "progress": "1"}],
        }  # fmt: skip
        history = [{"attempt": 1, "concealed": True}]
        rest = {"id": b"1", "schedule": b"2", "last_error": "e", "history": history, "concealed": True}
        assert conceal({"job": job}) == {"job": rest}
        assert conceal({"jobs": [{"id": b"1"}], "next": "args"}) == {"jobs": [{"id": b"1"}], "next": "args"}
        assert conceal({"schedule": {"args": "{}"}}) == {"schedule": {"concealed": True}}

    def test_what_a_viewer_may_ask_of_jobs_and_schedules(self) -> None:
        """Each answer with contents is listed: a new one must be, too."""
        asked = {kind for kind, needed in ACCESS_OF.items() if needed is Access.VIEWER}
        assert {kind for kind in asked if is_about_contents(kind)} == {
            *("jobs.get", "jobs.list", "jobs.parents", "schedules.get", "schedules.list")
        }
