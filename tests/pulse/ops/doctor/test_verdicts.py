"""The doctor's verdicts, at the edge of each limit: pure functions of rows and facts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pulse.cli.admin.doctor import RunningSystem, judge_workers, served_topics
from pulse.ops.doctor import blockers, database, directories, installation, queue
from pulse.ops.doctor.checks import CHECKS
from pulse.ops.doctor.directories import Directory, Socket
from pulse.ops.doctor.finding import Finding, State, is_well, list_some, shown_bytes, shown_s
from pulse.ops.doctor.installation import Abilities, DescriptorLimits, Requirement
from pulse.ops.doctor.running import ARRIVE_S
from pulse.ops.doctor.verdicts import CheckContext, judge, verdicts
from pulse.protocol.answers import Process, StatusAnswer, Worker
from pulse.store.admin.doctor import QUEUE_CHECKS, SERVER_CHECKS, DatabaseAnswers, expected_indexes

GRACE_S = 60.0
OK, WARNING, WRONG, SKIPPED = State.OK, State.WARNING, State.WRONG, State.SKIPPED
HOLDER = {"kind": "session", "name": "7", "user_name": "ann", "application": "", "state": "active", "query": "SELECT 1"}
SLOT = {**HOLDER, "kind": "replication slot", "state": "active", "age_s": None}
TABLE = {"name": "jobs", "live": 10, "dead": 0, "bytes": 8192, "vacuumed_s": None, "is_vacuumed": True}
INDEX = {"name": "i", "home": "jobs", "is_valid": True, "bytes": 64 * 1024**2, "entries": 1e6}
LEASES = {"worker": "h/b/1/2.3/w", "jobs": 2, "lapsed": 0, "lapsed_s": 0.0, "host": "h", "host_s": 1.0}
TOPIC = {"topic": "mail", "due_s": 10.0, "is_paused": False, "hosts": 1, "limit": None,
         "concurrency": None, "running": None}  # fmt: skip
ENDED = {"name": "x", "topic": "t", "age_s": 5.0, "error": "bad thing\nTraceback:", "job": "0190",
         "worker": "h/b/1/2.3/w", "jobs_dead": 0, "killed": 0}  # fmt: skip
RUNS = {"name": "x", "topic": "t", "jobs": 1, "age_s": 600.0, "job": "0190", "worker": "h/b/1/2.3/w"}
PAUSE = {"topic": "t", "reason": "fire", "paused_by": "uid 0 (root)", "age_s": 5.0, "left_s": None, "total": 1}
SERVER = {"version": "x", "version_num": 180006, "in_recovery": False, "encoding": "UTF8"}
ROOM = {"greatest": 100, "reserved": 3, "used": 10, "role_limit": -1, "role_used": 1,
        "database_limit": -1, "database_used": 1}  # fmt: skip


def test_settings_that_are_as_they_should_be() -> None:
    """Whatever is harmless is fine; a setting that this server does not have is not missed."""
    rows = [{"name": "fsync", "value": "on"}, {"name": "synchronous_commit", "value": "remote_apply"}]
    assert database.settings(rows, GRACE_S).state is OK


@pytest.mark.parametrize(("name", "value", "state"), [
    ("fsync", "off", WRONG), ("full_page_writes", "off", WARNING), ("synchronous_commit", "off", WRONG),
    ("autovacuum", "off", WRONG), ("track_counts", "off", WRONG),
    ("default_transaction_isolation", "repeatable read", WRONG), ("default_transaction_read_only", "on", WRONG),
    ("idle_session_timeout", "60000", WARNING), ("statement_timeout", "0", OK), ("statement_timeout", "4999", WARNING),
    ("statement_timeout", "5000", OK), ("idle_in_transaction_session_timeout", "1000", WARNING),
])  # fmt: skip
def test_settings_that_hurt(name: str, value: str, state: State) -> None:
    found = database.settings([{"name": name, "value": value}], GRACE_S)
    assert found.state is state
    assert state is OK or name in found.text


@pytest.mark.parametrize(("check", "usual", "verdicts"), [
    (partial(database.server, shown="dsn"), SERVER, [
        ({}, OK), ({"version_num": 149999}, WRONG), ({"version_num": 150000}, OK), ({"version_num": 190000}, WARNING),
        ({"in_recovery": True}, WRONG), ({"encoding": "LATIN1"}, WRONG), ({"encoding": "SQL_ASCII"}, WRONG),
    ]),
    (database.clock, {"skew_s": 0.9, "trip_s": 0.0}, [  # a skew counts beyond what the question itself took
        ({}, OK), ({"skew_s": -1.0}, WARNING), ({"skew_s": 1.4, "trip_s": 1.0}, OK), ({"skew_s": 60.0}, WRONG),
        ({"skew_s": -3600.0, "trip_s": 0.1}, WRONG),
    ]),
    (database.connections, ROOM, [
        ({}, OK), ({"used": 88}, WARNING), ({"used": 94}, WRONG), ({"role_limit": 20, "role_used": 11}, WARNING),
        ({"role_limit": 20, "role_used": 10}, OK), ({"database_limit": 3, "database_used": 1}, WRONG),
    ]),
    (partial(database.indexes, expected=["i"]), INDEX, [  # where nobody has counted, nothing is said of the size
        ({}, OK), ({"entries": 130_000.0}, WARNING), ({"entries": -1.0}, OK), ({"bytes": 1024, "entries": 0.0}, OK),
        ({"is_valid": False}, WRONG), ({"name": "other"}, WRONG),
    ]),
    (blockers.tables, TABLE, [  # many dead rows are worth a word where they outnumber the live ones
        ({}, OK), ({"dead": 100_000}, WARNING), ({"dead": 99_999}, OK), ({"dead": 100_000, "live": 100_000}, OK),
        ({"is_vacuumed": False}, WRONG),
    ]),
    (blockers.wraparound, {"xids": 0, "multixacts": 0}, [
        ({"xids": 999_999_999}, OK), ({"multixacts": 10**9}, WARNING), ({"xids": 1_600_000_000}, WRONG),
    ]),
    (queue.leases, LEASES, [
        ({}, OK), ({"lapsed": 1, "lapsed_s": 59.0}, OK), ({"lapsed": 1, "lapsed_s": 60.0}, WRONG),
        ({"host_s": None}, WRONG), ({"host_s": 59.0}, OK), ({"host_s": 60.0}, WRONG),
    ]),
    (queue.watchdog, {"wait_s": 0.0, "age_s": None}, [({}, WRONG), ({"age_s": 59.0}, OK), ({"age_s": 60.0}, WRONG)]),
], ids=["server", "clock", "connections", "indexes", "tables", "wraparound", "leases", "watchdog"])  # fmt: skip
def test_limits_of_a_row(
    check: Callable[..., Finding], usual: dict[str, Any], verdicts: list[tuple[dict[str, Any], State]]
) -> None:
    found = [check([{**usual, **changed}], GRACE_S).state for changed, _ in verdicts]
    assert found == [state for _, state in verdicts]


@pytest.mark.parametrize(("row", "state"), [
    ({**HOLDER, "age_s": 59.9, "xids": 99_999}, OK), ({**HOLDER, "age_s": 0.1, "xids": 100_000}, WARNING),
    ({**HOLDER, "age_s": 60.0, "xids": 5}, WARNING), ({**HOLDER, "age_s": 3600.0, "xids": 5}, WRONG),
    ({**HOLDER, "age_s": 61.0, "xids": 10_000_000}, WRONG),
    ({**HOLDER, "kind": "standby", "age_s": 61.0, "xids": 1}, WARNING), ({**SLOT, "xids": 99_999}, OK),
    ({**SLOT, "xids": 100_000}, WARNING), ({**SLOT, "xids": 10_000_000}, WRONG),
    ({**SLOT, "xids": 1, "state": "inactive"}, WARNING),
])  # fmt: skip
def test_xmin(row: dict[str, Any], state: State) -> None:
    """By age where that is known, and by distance; a slot without a reader is a finding at once."""
    found = blockers.xmin([row], GRACE_S)
    assert found.state is state
    assert (row["name"] in found.text) == (state is not OK)


@pytest.mark.parametrize(("row", "words"), [
    ({**HOLDER, "age_s": 61.0}, "session 7 (ann) has been active for 61 s: SELECT 1"),
    ({**HOLDER, "kind": "standby", "age_s": 61.0}, "standby of ann (walsender 7) by hot_standby_feedback"),
    ({**HOLDER, "kind": "prepared transaction", "age_s": 61.0}, "prepared transaction 7 of ann, prepared 61 s ago"),
    ({**SLOT, "application": "wal2json"}, "replication slot 7 (wal2json, active)"),
])  # fmt: skip
def test_what_keeps_a_snapshot(row: dict[str, Any], words: str) -> None:
    assert blockers.xmin([{**row, "xids": 100_000}], GRACE_S).text == f"{words}, 100,000 transactions back"


@pytest.mark.parametrize(("kind", "name", "command"), [
    ("session", "7", "SELECT pg_terminate_backend(7);"),
    ("prepared transaction", "it's", "ROLLBACK PREPARED 'it''s';"),
    ("replication slot", "gone", "SELECT pg_drop_replication_slot('gone');"),
    ("standby", "8", "hot_standby_feedback = off at that standby"),
])  # fmt: skip
def test_what_ends_a_snapshot(kind: str, name: str, command: str) -> None:
    row = {**HOLDER, "kind": kind, "name": name, "age_s": 61.0, "xids": 1}
    assert blockers.xmin([row, row], GRACE_S).advice[-1] == command
    many = [{**row, "name": f"{number}"} for number in range(5)]
    assert len(blockers.xmin(many, GRACE_S).advice[-1].split("   ")) == (1 if kind == "standby" else 3)


@pytest.mark.parametrize(("age_s", "state"), [(0.0, WARNING), (60.0, WRONG)])
def test_locks(age_s: float, state: State) -> None:
    """A young lock may be a migration; an old one is a fault."""
    row = {**HOLDER, "pid": 7, "age_s": age_s, "what": "holds X", "blockers": [8, 9]}
    found = blockers.locks([row], GRACE_S)
    assert (found.state, "behind pid 8, 9" in found.text) == (state, True)
    assert blockers.locks([], GRACE_S).state is OK


@pytest.mark.parametrize(
    ("changed", "served", "state"),
    [({}, None, SKIPPED), ({}, {"mail"}, OK), ({}, set(), WRONG), ({"due_s": 4.9}, set(), OK),
     ({"is_paused": True}, set(), OK), ({"hosts": 2}, set(), WARNING), ({"due_s": 60.0}, {"mail"}, WARNING),
     ({"due_s": 3599.0, "limit": "l"}, {"mail"}, OK), ({"due_s": 3600.0, "limit": "l"}, {"mail"}, WARNING),
     ({"due_s": 3600.0, "limit": "l", "concurrency": 2, "running": 1}, {"mail"}, WARNING),
     ({"due_s": 3600.0, "limit": "l", "concurrency": 2, "running": 2}, {"mail"}, OK)],
)  # fmt: skip
def test_topics(changed: dict[str, Any], served: set[str] | None, state: State) -> None:
    """Unserved is wrong where this is the only host, served and late is worth a word, under a limit after an hour."""
    assert queue.topics([{**TOPIC, **changed}], GRACE_S, served=served).state is state
    assert queue.topics([], GRACE_S, served=served).state is OK


def test_jobs_that_nobody_handles() -> None:
    row = {
        "topic": "mail", "name": "sned_mail", "jobs": 500, "age_s": 9.0, "job": "0190",
        "handlers": ["send_mail", "x"],
    }  # fmt: skip
    found = queue.unhandled([row], GRACE_S)
    assert found.state is WRONG
    for word in ("500 jobs", "'sned_mail'", "'mail'", "'send_mail'"):
        assert word in found.text
    assert found.advice[-1] == "pulse ctl jobs list --topic mail --name sned_mail"
    assert queue.unhandled([], GRACE_S).state is OK


@pytest.mark.parametrize(
    ("number", "crashes", "dead"), [(1, WARNING, WARNING), (3, WRONG, WARNING), (10, WRONG, WARNING)]
)
def test_endings(number: int, crashes: State, dead: State) -> None:
    """Crashes of a handler are wrong from the third on; dead letters are for somebody to look at."""
    died = queue.crashes([{**ENDED, "outcome": "crashed", "attempts": number, "jobs_dead": 2}], GRACE_S)
    assert (died.state, died.text.endswith(": bad thing; 2 jobs of it are dead letters now")) == (crashes, True)
    assert "pulse ctl jobs get 0190" in died.advice[0]
    assert queue.hung([{**ENDED, "outcome": "crashed", "attempts": number}], GRACE_S).state is OK
    found = queue.dead_letters([{**ENDED, "jobs": number}], GRACE_S)
    assert (found.state, "bad thing" in found.text) == (dead, True)


@pytest.mark.parametrize(
    ("outcome", "words"), [("timeout", "1 timeout"), ("stalled", "1 stall"), ("lease_expired", "1 lapsed lease")]
)
def test_hung(outcome: str, words: str) -> None:
    """What a handler did not end itself, and no death explains."""
    rows = [{**ENDED, "outcome": outcome, "attempts": 1, "killed": 1}]
    found = queue.hung(rows, GRACE_S)
    assert (found.state, f": {words} within" in found.text) == (WARNING, True)
    assert found.text.endswith(" (worker w of host h)") == (outcome == "lease_expired")
    assert any("frozen" in line for line in found.advice) == (outcome == "lease_expired")
    assert queue.crashes(rows, GRACE_S).state is OK


@pytest.mark.parametrize(("number", "state"), [(2, OK), (3, WARNING)])
def test_a_limit_that_does_its_work_is_no_news(number: int, state: State) -> None:
    rows = [{**ENDED, "outcome": "timeout", "attempts": number}]
    assert queue.hung(rows, GRACE_S).state is state


@pytest.mark.parametrize(("age_s", "state"), [(900.0, WRONG), (901.0, WARNING)])
def test_older_crashes_are_history(age_s: float, state: State) -> None:
    died = {**ENDED, "outcome": "crashed", "attempts": 3, "age_s": age_s}
    assert queue.crashes([died], GRACE_S).state is state


@pytest.mark.parametrize(("age_s", "state"), [(599.0, OK), (600.0, WARNING)])
def test_what_nothing_would_end(age_s: float, state: State) -> None:
    found = queue.running([{**RUNS, "age_s": age_s}], GRACE_S)
    assert found.state is state
    assert any("pulse ctl jobs stack 0190" in line for line in found.advice) == (state is WARNING)


def test_the_gate() -> None:
    found, whole = queue.gate([PAUSE], GRACE_S), queue.gate([{**PAUSE, "topic": ""}], GRACE_S)
    what = "topic 't' was paused 5 s ago by uid 0 (root), until somebody resumes it; reason: fire"
    assert (found.state, found.text) == (WARNING, what)
    assert (found.advice, whole.advice) == (("pulse ctl dispatch resume --topic t",), ("pulse ctl dispatch resume",))
    assert queue.gate([], GRACE_S).text == "nothing is paused"


@pytest.mark.parametrize(
    ("running", "lapsed", "age_s", "state"),
    [(1, 1, 59.0, OK), (0, 0, 60.0, OK), (0, 2, 60.0, WARNING), (1, 0, 60.0, WRONG), (1, 1, 60.0, WRONG)],
)
def test_hosts(running: int, lapsed: int, age_s: float, state: State) -> None:
    """One that held nothing when it went may be gone for good."""
    row = {"host": "h", "age_s": age_s, "running": running, "workers": ["v", "w"] * running, "lapsed": lapsed}
    found = queue.hosts([row], GRACE_S)
    assert found.state is state
    assert ("taken back" in found.text) == (lapsed > 0 and state is not OK)
    assert ("holds 1 job, of workers v, w" in found.text) == (state is WRONG)


def test_installation() -> None:
    needed = [
        Requirement("click", "8.1.7", ""),
        Requirement("asyncpg", "0.30", "server"),
        Requirement("trio", "0.27", "server"),
    ]
    sound = installation.installation("1", (3, 11, 2), needed, {"click": "8.1.7", "asyncpg": "0.30.0"})
    assert (sound.state, sound.details) == (OK, ("extra server lacks trio",))
    old = installation.installation("1", (3, 10, 1), needed, {"asyncpg": "0.29.9"})
    assert old.state is WRONG
    assert [old.text, *old.details] == [
        "Python 3.10.1 is too old: 3.11 or newer is needed",
        "asyncpg 0.29.9 is too old: 0.30 or newer is needed",
        "click is missing",
    ]


def test_what_the_distribution_asks_for_is_understood() -> None:
    found = {one.name: (one.oldest, one.extra) for one in installation.required() if one.name in {"click", "asyncpg"}}
    assert found == {"click": ("8.1.7", ""), "asyncpg": ("0.30", "server")}


def test_slips_of_the_pen() -> None:
    env = {"PULSE_LEASES": "1", "pulse_dsn": "x", "PULSE_LEASE_S": "3", "PULSE_RUNTIME_PATH": "/x", "PULSE_TEST": "1"}
    found = installation.near_misses(env, ["lease_s", "dsn", "runtime_dir"])
    assert found == [("PULSE_LEASES", "PULSE_LEASE_S"), ("pulse_dsn", "PULSE_DSN")]
    assert installation.configuration(None, None, env, ["lease_s", "dsn"]).state is WARNING
    assert installation.configuration("a\nb", None, {}, []).details == ("b",)


@pytest.mark.parametrize(
    ("facts", "state"),
    [(None, SKIPPED), (DescriptorLimits("d", 20, 1024, 10), OK), (DescriptorLimits("d", 20, 1023, 1), WARNING),
     (DescriptorLimits("d", 20, 1024, 300), WARNING), (DescriptorLimits("d", 20, 1024, 500), WRONG),
     (DescriptorLimits("d", 950, 1024, 1), WRONG)],
)  # fmt: skip
def test_limits(facts: DescriptorLimits | None, state: State) -> None:
    assert installation.limits(facts).state is state


def test_kernel() -> None:
    """Without pidfds no death is proved; without those of peers it is, by more steps."""
    assert installation.kernel(Abilities(pidfd=False, peer_pidfd=False)).state is WRONG
    by_steps, at_once = (installation.kernel(Abilities(pidfd=True, peer_pidfd=can)) for can in (False, True))
    assert (by_steps.state, at_once.state, by_steps.text == at_once.text) == (OK, OK, False)
    assert installation.abilities().pidfd


def test_places(tmp_path: Path) -> None:
    def state_of(path: Path, *, is_runtime: bool) -> State:
        found = directories.directory_at(path, named=True, is_shared=is_runtime)
        return (directories.runtime_dir(found, []) if is_runtime else directories.state_dir(found, is_used=True)).state

    for mode, state in ((0o777, WRONG), (0o700, OK)):
        tmp_path.chmod(mode)
        assert state_of(tmp_path, is_runtime=True) is state
    assert directories.runtime_dir(None, [tmp_path]).details == (str(tmp_path),)
    (tmp_path / "link").symlink_to(tmp_path)
    assert [state_of(tmp_path / name, is_runtime=False) for name in ("link", "none")] == [WRONG, WARNING]
    missing = directories.directory_at(tmp_path / "none", named=True, is_shared=False)
    assert directories.state_dir(missing, is_used=True).text.endswith("is not there yet")
    assert directories.state_dir(missing, is_used=False).state is OK
    (tmp_path / "pulse.sock").write_bytes(b"")
    client, control = directories.both_sockets(tmp_path)
    assert (client.is_there, client.pid, control.problem) == (True, None, "it is not there")
    found = directories.sockets([Socket(tmp_path / "a", is_there=True, pid=7, problem=None)])
    assert found.text == "accepted: a by pid 7"


@pytest.mark.parametrize(("is_between", "keeps", "state"), [
    (False, True, OK), (True, True, WARNING), (True, False, WRONG),
])  # fmt: skip
def test_a_pooler_by_what_it_does_to_sessions(state: State, *, is_between: bool, keeps: bool) -> None:
    assert database.pooler([{"is_between": is_between, "keeps_session": keeps}], GRACE_S).state is state


@pytest.mark.parametrize(("free_gib", "state"), [(0.5, WARNING), (4, WARNING), (11, OK)])
def test_little_room(free_gib: float, state: State) -> None:
    """Less than a gibibyte, or than a twentieth of the disk as long as that is not much either."""
    found = Directory(Path("/x"), "root", 0o700, None, int(free_gib * 1024**3), 1000 * 1024**3)
    assert directories.state_dir(found, is_used=True).state is state


def test_every_question_has_an_answer() -> None:
    """Each is judged, each check has a statement; what could not be asked is skipped; warnings count where wanted."""
    questions = {one.question for one in CHECKS.values() if one.question}
    assert questions == {*SERVER_CHECKS, *QUEUE_CHECKS, "identity", "schema", "pooler", "clusters"}
    assert list(verdicts(CheckContext())) == [check for check, one in CHECKS.items() if one.question]
    found = list(
        judge(DatabaseAnswers("dsn", failed=dict.fromkeys(questions, "no time")), CheckContext(), grace_s=GRACE_S)
    )
    assert {(one.state, one.text) for one in found} == {(SKIPPED, "no time")}
    assert "idx_jobs_claim" in expected_indexes()
    warned, wrong = Finding("a", WARNING, "x"), Finding("b", WRONG, "x")
    is_strict = [(is_well(some, strict=False), is_well(some, strict=True)) for some in (found, [warned], [wrong])]
    assert is_strict == [(True, True), (True, False), (False, False)]


def test_a_database_that_is_away() -> None:
    """No check is silent: each is skipped, or as the dispatcher found it before, which is what `status` says."""
    told = Finding("gate", State.WARNING, "all is paused")
    first, *others = judge(DatabaseAnswers("dsn", away="it is away"), CheckContext(told=[told]), grace_s=GRACE_S)
    assert (first.check, first.state, first.text) == ("database", State.WRONG, "it is away")
    assert [one.check for one in others] == list(verdicts(CheckContext()))[1:]
    assert told in others
    assert {one.state for one in others if one is not told} == {State.SKIPPED}


def test_words() -> None:
    assert [shown_s(seconds) for seconds in (0.9, 119, 120, 7200, 172_800)] == ["0 s", "119 s", "2 min", "2 h", "2 d"]
    sizes = [shown_bytes(number) for number in (1023, 2048, 5 * 1024**2, 3.5 * 1024**3)]
    assert sizes == ["1023 B", "2 KiB", "5 MiB", "3.5 GiB"]
    assert list_some(list("abcdefg")) == ("a", "b", "c", "d", "e", "and 2 more")


@pytest.mark.parametrize(("workers", "state", "words"), [
    (None, SKIPPED, "did not say"),
    ([], WARNING, "no worker is connected"),
    ([Worker(name="w", capacity=2, running=[b"x"], started=1)], OK, "1 connected, 1 of 2 places"),
    ([Worker(name="w", capacity=1, draining=True)], WARNING, "all workers drain"),
    ([Worker(name="w", pid=7, capacity=1, silent=True)], WRONG, "worker w (pid 7) has let a lease pass"),
    (
        [Worker(name="w", pid=7, capacity=1, condition="stopped", quiet_s=9.0)],
        WRONG,
        "is stopped (SIGSTOP), and has said nothing for 9 s",
    ),
    (
        [Worker(name="w", pid=7, capacity=2, condition="blocked", quiet_s=9.0, running=[bytes(16)], calls={"a": 1})],
        WRONG,
        "it has not answered for 9 s. Called there: 1 a",
    ),
])  # fmt: skip
def test_workers(workers: list[Worker] | None, state: State, words: str) -> None:
    found = judge_workers(RunningSystem(StatusAnswer(workers=workers), {}))
    assert (found.state, words in found.text) == (state, True)


@pytest.mark.parametrize(("up_s", "state", "topics"), [(ARRIVE_S - 0.1, OK, None), (ARRIVE_S, WARNING, set[str]())])
def test_after_a_start_workers_may_be_on_their_way(up_s: float, state: State, topics: set[str] | None) -> None:
    actors = [Process("pause", uptime_s=99.0), Process("dispatcher", uptime_s=up_s)]
    running = RunningSystem(StatusAnswer(actors=actors, workers=[]), {})
    assert (judge_workers(running).state, served_topics(running)) == (state, topics)


@pytest.mark.parametrize(("is_super", "is_owner", "said"), [
    (False, False, "owns nothing of pulse"), (True, False, "is a superuser"), (False, True, "owns the schema"),
])  # fmt: skip
def test_a_role_that_may_more_than_it_must(is_super: bool, is_owner: bool, said: str) -> None:
    found = database.role([{"name": "shop", "is_super": is_super, "is_owner": is_owner}], GRACE_S)
    assert (found.state, said in found.text) == (OK, True)


def test_limits_without_a_server() -> None:
    """Those of what would be started from here."""
    found = installation.limits_of(None, None)
    assert found is not None
    assert (found.whose, found.open_fds) == ("a server started from here", None)


@pytest.mark.parametrize(("shown", "where"), [("postgresql:///x", " at postgresql:///x"), ("", "")])
def test_the_dispatcher_names_no_dsn(shown: str, where: str) -> None:
    assert database.server([{**SERVER, "in_recovery": True}], GRACE_S, shown=shown).text.startswith(
        f"PostgreSQL {SERVER['version']}{where} is a standby"
    )
