"""The pages of a job, a schedule, the gate and the status: pure functions of an answer and a time."""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO
from typing import Any
from uuid import UUID

import click
import msgspec
import pytest

from pulse.cli.control.dispatch import gate_lines
from pulse.cli.control.schedules import TimingOptions, schedules_table, when_body, when_words
from pulse.cli.control.schedules import facts as schedule_facts
from pulse.cli.control.topics_page import groups_table, merged, topics_table
from pulse.cli.jobs.commands import jobs_table
from pulse.cli.jobs.page import facts, show_job
from pulse.cli.output.render import Line, Screen, plain_table
from pulse.cli.system.status_page import finding_lines, overview
from pulse.cli.system.workers import workers_table
from pulse.common.version import VERSION
from pulse.ops.doctor.finding import document_of
from pulse.ops.doctor.running import findings, processes
from pulse.ops.job_text import outcome_of
from pulse.ops.status import merge
from pulse.protocol.answers import (
    HELD_S,
    AttemptInfo,
    Gate,
    JobInfo,
    JobPageAnswer,
    PauseInfo,
    StatusAnswer,
    Worker,
    read,
)
from pulse.protocol.schedules import ScheduleInfo, SchedulePageAnswer
from pulse.protocol.stats import GroupStats, Stats
from pulse.protocol.workflows import RelatedJobInfo, SignalInfo
from tests.support.commandline.cli_answers import stats

NOW_S = 1_900_000_000.0
ID = UUID("0190163d-8694-739b-aea5-966c26f8ad91")


def texts(lines: Iterable[Line]) -> list[str]:
    return ["".join(cell.text for cell in line).rstrip() for line in lines]


def job(**columns: Any) -> JobInfo:
    return JobInfo(
        **{"id": ID.bytes, "name": "resize", "topic": "images", "status": "PENDING", "max_attempts": 5, **columns}
    )


def status(**parts: Any) -> StatusAnswer:
    sound: dict[str, Any] = {
        "supervisor": {"pid": 1, "uptime_s": 7200.0, "version": VERSION},
        "actors": [{"name": "watchdog", "pid": 2, "state": "running", "restarts": 0, "uptime_s": 7199.0}],
        "pools": [], "database": {"ok": True, "dsn": "postgresql:///pulse", "server_version": "18.0"},
        "gate": {"paused": False, "reason": None, "topics": {}},
        "workers": [{"name": "w", "capacity": 10, "running": [ID.bytes], "started": 1}],
        "jobs": {"PENDING": 0, "RUNNING": 1, "COMPLETED": 12345}, "jobs_exact": True,
    }  # fmt: skip
    return read(StatusAnswer, {**sound, **parts})


class TestStatus:
    def test_a_sound_system(self) -> None:
        assert texts(overview(status(), NOW_S)) == [
            f"supervisor  pulse {VERSION}, pid 1, up 2 h", "database    ok  PostgreSQL 18.0  postgresql:///pulse",
            "gate        open", "actors      watchdog  running   pid 2, up 119 min",
            "workers     1 connected, 1 of 10 places taken", "jobs        1 running, 12,345 completed",
        ]  # fmt: skip
        assert findings(status(), {}) == []

    def test_many_paused_topics(self) -> None:
        many = status(gate={"paused": False, "topics": {f"t{number:04}": {} for number in range(2000)}})
        found = texts(overview(many, NOW_S))
        assert len(found) == 12
        assert "            and 1,995 more topics: pulse ctl dispatch status" in found

    def test_services(self) -> None:
        """The process that serves metrics is a process like others, and named where it does not run."""
        metrics = {"name": "metrics", "pid": 5, "state": "running", "restarts": 0, "uptime_s": 7199.0}
        found = texts(overview(status(services=[metrics]), NOW_S))
        assert "services    metrics  running   pid 5, up 119 min" in found
        ended = status(services=[{**metrics, "state": "starting", "restarts": 1}])
        assert [one.text for one in findings(ended, {})] == ["metrics is starting (1 restart so far)"]

    def test_what_is_not_there(self) -> None:
        away = status(database={"ok": False, "dsn": "postgresql://db/x"}, workers=[], jobs={"PENDING": 0})
        shown = texts(overview(away, NOW_S))
        assert shown[1] == "database    away  postgresql://db/x"
        assert shown[-2:] == ["workers     none connected", "jobs        none"]
        shown = texts(overview(status(jobs_exact=False), NOW_S))
        assert shown[-1] == "jobs        1 running, 12,345 completed (ended ones estimated)"
        assert texts(overview(StatusAnswer(), NOW_S)) == [
            "supervisor  unknown", "database    unknown: no actor told in time", "gate        unknown",
            "workers     unknown", "jobs        unknown",
        ]  # fmt: skip
        (silent,) = findings(status(), {"dispatcher": "no answer within 1 s"})
        assert silent.text == "the dispatcher does not answer: no answer within 1 s"

    def test_an_ordinary_start(self) -> None:
        """It is no incident that the dispatcher does not answer yet; that it died, and starts again, is one."""
        first = {"name": "dispatcher", "pid": 3, "state": "starting", "restarts": 0, "uptime_s": 0.5}
        silent = {"dispatcher": "no answer within 1 s"}
        begins = status(actors=[first], database=None, workers=None)
        assert findings(begins, silent) == []
        assert processes(begins, silent).text == "the supervisor (pid 1) is starting dispatcher"
        assert "database    unknown: the server is starting" in texts(overview(begins, NOW_S))
        assert [one.text for one in findings(begins, {"supervisor": "gone"})] == [
            "the supervisor does not answer: gone"
        ]
        (nobody,) = findings(StatusAnswer(), {**silent, "supervisor": "gone"})
        assert nobody.advice == ("pulse-supervisor starts a server.",)
        (again,) = findings(status(actors=[{**first, "restarts": 1}]), silent)
        assert again.text == "the dispatcher does not answer: no answer within 1 s"

    @pytest.mark.parametrize(("parts", "told"), [
        (
            {"database": {"ok": False, "dsn": "postgresql://db/x", "error": "connection\nrefused"}, "jobs": None},
            ["wrong database: the database is away: connection refused"],
        ),
        (
            {
                "actors": [
                    {"name": "dispatcher", "pid": None, "state": "starting", "restarts": 3, "uptime_s": None},
                    {"name": "pause", "pid": 9, "state": "running", "restarts": 1, "uptime_s": 5.0},
                    {"name": "watchdog", "pid": 8, "state": "running", "restarts": 1, "uptime_s": 500.0},
                ]
            },
            [
                "warning processes: dispatcher is starting (3 restarts so far)",
                "pause was restarted 5 s ago (1 restart so far)",
            ],
        ),
        (
            {
                "actors": [{"name": "pause", "pid": None, "state": "failed", "restarts": 9, "uptime_s": None}],
                "findings": [
                    {"id": "gate", "severity": "warning", "text": "paused"},
                    {"id": "hosts", "severity": "wrong", "text": "gone", "details": ["h"], "do": "look\nthere"},
                ],
            },
            ["wrong processes: pause is failed (9 restarts so far)", "wrong hosts: gone", "h", "warning gate: paused"],
        ),
    ])  # fmt: skip
    def test_what_is_wrong(self, parts: dict[str, Any], told: list[str]) -> None:
        """The worst first, as the doctor tells it, with what to do."""
        found = findings(status(**parts), {})
        shown = [" ".join(line.split()) for one in found for line in texts(finding_lines(one))]
        assert [line for line in shown if not line.startswith("-> ")] == told

    def test_what_to_do(self) -> None:
        told = {"id": "hosts", "severity": "wrong", "text": "gone", "do": "look\nthere"}
        (found,) = findings(status(findings=[told]), {})
        assert document_of(found) == {**told, "details": []}


class TestMerge:
    def test_it_has_the_keys_of_the_contract(self) -> None:
        keys = {"supervisor", "actors", "pools", "database", "gate", "workers", "jobs", "jobs_exact"}
        assert set(merge({}, None)) == set(merge(None, {})) == set(merge({}, {})) == keys
        assert merge({"more": 1}, None)["more"] == 1

    def test_each_tells_what_it_knows_best(self) -> None:
        processes: dict[str, object] = {"supervisor": {"pid": 1}, "actors": [1], "pools": [2]}
        supervisor = {**processes, "database": 1, "jobs": {"PENDING": 1}, "gate": 1, "workers": None}
        told: dict[str, object] = {"database": 2, "jobs": 2, "jobs_exact": True, "gate": 2, "workers": [3]}
        dispatcher = {**dict.fromkeys(processes), **told}
        assert merge(supervisor, dispatcher) == processes | told
        assert merge(None, {**processes, **told}) == {**processes, **told}

    def test_without_the_dispatcher_workers_are_unknown(self) -> None:
        merged = merge({"database": {"ok": True}, "jobs": {"PENDING": 1}, "workers": [1]}, None)
        assert (merged["workers"], merged["jobs"], merged["database"]) == (None, {"PENDING": 1}, {"ok": True})

    def test_counts_and_database_are_of_one_moment(self) -> None:
        supervisor: dict[str, object] = {"database": 1, "jobs": 1, "jobs_exact": True, "gate": {"paused": True}}
        merged = merge(supervisor, {"database": {"ok": False}, "jobs": None, "gate": None, "workers": []})
        assert (merged["database"], merged["jobs"], merged["jobs_exact"]) == ({"ok": False}, None, None)
        assert merged["gate"] == {"paused": True}


@pytest.mark.parametrize(("gate", "lines"), [
    (Gate(), ["open"]),
    (Gate(paused=True, paused_at=NOW_S - 300), ["all topics paused 5 min ago"]),
    (Gate(paused=True, paused_at=NOW_S), ["all topics paused just now"]),
    (Gate(paused=True, reason="upgrade"), ["all topics paused: upgrade"]),
    (
        Gate(topics={"b\x1b": PauseInfo(reason="x\ny", paused_at=NOW_S - 30), "a": PauseInfo()}),
        ["open, except:", "topic a paused", "topic b\\x1b paused 30 s ago: x\\ny"],
    ),
    (Gate(paused=True, topics={"a": PauseInfo()}), ["all topics paused", "topic a paused"]),
])  # fmt: skip
def test_the_gate_in_words(gate: Gate, lines: list[str]) -> None:
    assert texts(gate_lines(gate, NOW_S)) == lines


class TestJobs:
    def test_table(self) -> None:
        """A line for each job; tries that count, of those allowed; a long error is cut even where the text is piped."""
        dead = job(
            status="DEAD_LETTERED", attempts=7, uncharged=2, last_error="ValueError: no\nTraceback ...",
            submitted_at=NOW_S - 60,
        )  # fmt: skip
        lines = plain_table(jobs_table(JobPageAnswer([dead]), NOW_S), None)
        assert lines[0].split() == ["id", "status", "name", "topic", "tries", "age", "error"]
        assert lines[1].split() == [str(ID), "DEAD_LETTERED", "resize", "images", "5/5", "60", "s", "ValueError:", "no"]
        (_, line) = plain_table(jobs_table(JobPageAnswer([job(last_error="x" * 65536)]), NOW_S), None)
        assert len(line) < 400

    def test_an_error_is_seen_in_80_columns(self) -> None:
        dead = job(status="DEAD_LETTERED", last_error="ValueError: no", submitted_at=NOW_S - 600, attempts=5)
        (_, line) = plain_table(jobs_table(JobPageAnswer([dead]), NOW_S, 80), 80)
        assert line == f"{str(ID)[:13]}  DEAD_LETTERED  resize  images    5/5  10 min  ValueError: no"

    def test_facts_of_a_waiting_job(self) -> None:
        waiting = job(next_run_at=NOW_S + 5, submitted_at=NOW_S - 60.5, attempts=3, uncharged=1, crashes=1, priority=-5)
        assert {label: cell.text for label, cell in facts(waiting, NOW_S)} == {
            "status": "PENDING", "name": "resize", "topic": "images",
            "tries": "2 of 5 (3 attempts, 1 uncharged, 1 crash)", "priority": "-5",
            "submitted": "2030-03-17T17:45:39Z (60 s ago)", "due": "2030-03-17T17:46:45Z (in 5 s)",
        }  # fmt: skip

    def test_facts_of_a_running_job(self) -> None:
        running = job(
            status="RUNNING", started_at=NOW_S - 2, lease_until=NOW_S + 28, locked_by="h/w\x07", timeout_s=90.0
        )
        shown = {label: cell.text for label, cell in facts(running, NOW_S)}
        assert shown["worker"] == "h/w\\x07"
        assert shown["lease until"].endswith("(in 28 s)")
        assert shown["timeout"] == "90 s"
        assert "due" not in shown
        known = job(status="RUNNING", locked_by="h0st/b00t/42/1234.99/pool/1", hosts={"h0st": "alpha"})
        assert {label: cell.text for label, cell in facts(known, NOW_S)}["worker"] == "pool/1 on alpha, pid 1234"

    @pytest.mark.parametrize(("columns", "text"), [
        ({"status": "RUNNING", "attempts": 1, "unique_until": "end"}, "until it ends"),
        ({"status": "COMPLETED", "attempts": 1, "unique_until": "end"}, "given away"),
        ({"status": "PENDING", "unique_until": "start"}, "until it starts"),
        ({"status": "RETRYING", "attempts": 1, "unique_until": "start"}, "given away"),
        ({"status": "PENDING"}, "given away"),
    ], ids=str)  # fmt: skip
    def test_its_unique_key(self, columns: dict[str, Any], text: str) -> None:
        """And whether it still has it; nothing where there is none."""
        shown = {label: cell.text for label, cell in facts(job(unique_key="k\n", **columns), NOW_S)}
        assert shown["unique key"] == f"k\\n ({text})"
        assert not {"unique key", "group"} & dict(facts(job(status="PENDING"), NOW_S)).keys()

    def test_its_relatives(self) -> None:
        """A few of each, those that were deleted too, with their status in its colour."""
        parents = [RelatedJobInfo(bytes([one]) * 16, f"p{one}", "RUNNING", "run") for one in range(11)]
        children = [RelatedJobInfo(b"c" * 16), RelatedJobInfo(b"d" * 16, "\x1b[31m", "CANCELED", "run")]
        shown = job(
            waiting_on=11, next_run_at=NOW_S, parents=parents, parents_total=30, children=children, children_total=2
        )
        lines = [(label, cell.text) for label, cell in facts(shown, NOW_S)]
        assert "due" not in dict(lines)
        place = lines.index(("after", f"{UUID(bytes=bytes(16))}  RUNNING  p0, even if that fails"))
        assert lines[place + 10] == ("", "and 20 more")
        assert lines[place + 11 :] == [
            ("then", f"{UUID(bytes=b'c' * 16)}  deleted"), ("", f"{UUID(bytes=b'd' * 16)}  CANCELED  \\x1b[31m"),
        ]  # fmt: skip
        assert [cell.style for _, cell in facts(shown, NOW_S)][place] == "bold blue"

    def test_what_is_held_by_a_schedule_has_no_due_time(self) -> None:
        assert "due" not in dict(facts(job(next_run_at=HELD_S), NOW_S))
        assert "due" in dict(facts(job(next_run_at=NOW_S), NOW_S))

    def test_a_signal_that_it_waits_for(self) -> None:
        """And until when; a time that is over, or 31 years away, means nothing."""
        shown = dict(facts(job(awaited_signal="a\n", next_run_at=NOW_S + 60), NOW_S))
        assert shown["waits for"].text == 'the signal "a\\n", until 2030-03-17T17:47:40Z (in 60 s)'
        assert "due" not in shown
        endless = dict(facts(job(awaited_signal="a", next_run_at=NOW_S + 1e9), NOW_S))
        assert (endless["waits for"].text, "due" in endless) == ('the signal "a"', False)
        over = dict(facts(job(awaited_signal="a", next_run_at=NOW_S), NOW_S))
        assert ("waits for" in over, "due" in over) == (False, True)
        ended = dict(facts(job(status="CANCELED", awaited_signal="a", next_run_at=NOW_S + 60), NOW_S))
        assert not {"waits for", "due"} & ended.keys()

    def test_its_signals(self) -> None:
        """When, which, and the beginning of what they say."""
        some = [
            SignalInfo("a\n", payload='{"x": "' + "y" * 300 + '"}', sent_at=NOW_S),
            SignalInfo("b", payload='{"$pulse": "fernet", "data": "gAAA"}', sent_at=NOW_S), SignalInfo("c"),
            *[SignalInfo("d")] * 9,
        ]  # fmt: skip
        written = StringIO()
        show_job(job(signals=some, signals_total=120), Screen(written, {}), NOW_S)
        lines = written.getvalue().split("\n")
        place = lines.index("signals")
        assert lines[place + 1].startswith('  2030-03-17T17:46:40Z  a  {"x": "yyy')
        assert lines[place + 1].endswith("y…")
        assert lines[place + 2 : place + 4] == [
            "  2030-03-17T17:46:40Z  b  encrypted (fernet)", "  1970-01-01T00:00:00Z  c"
        ]  # fmt: skip
        assert lines[place + 10 : place + 13] == ["  1970-01-01T00:00:00Z  d", "  and 110 more", ""]

    def test_its_group(self) -> None:
        shown = {label: cell.text for label, cell in facts(job(status="PENDING", group_key="g\n"), NOW_S)}
        assert shown["group"] == "g\\n"

    def test_facts_of_a_completed_job(self) -> None:
        """Where it ran, when, and for how long."""
        times = {"started_at": NOW_S - 70, "completed_at": NOW_S - 60}
        shown = {
            label: cell.text
            for label, cell in facts(
                job(status="COMPLETED", ran_by="h0st/b00t/42/1234.99/pool/1", hosts={"h0st": "alpha"}, **times), NOW_S
            )
        }
        assert shown["ran by"] == "pool/1 on alpha, pid 1234"
        assert shown["claimed"].endswith("(70 s ago)")
        assert shown["ended"].endswith("(60 s ago), 10 s after its claim")

    @pytest.mark.parametrize(
        ("exit_code", "shown"),
        [(None, "crashed"), (-9, "crashed (SIGKILL)"), (3, "crashed (exit code 3)"), (-99, "crashed (signal 99)")],
    )
    def test_outcomes(self, exit_code: int | None, shown: str) -> None:
        assert outcome_of(AttemptInfo(outcome="crashed", exit_code=exit_code)) == shown


class TestSchedules:
    def test_when(self) -> None:
        some: list[dict[str, Any]] = [{"cron": "*/5 * * * *", "timezone": "UTC"}, {"every_s": 90.0}, {"run_at": NOW_S}]
        said = [when_words(ScheduleInfo(b"", **words)) for words in some]
        assert said == ["*/5 * * * * UTC", "every 90 s", "once at 2030-03-17T17:46:40Z"]

    def test_table(self) -> None:
        some = [
            ScheduleInfo(ID.bytes, "a", every_s=5.0, next_run_at=NOW_S + 3),
            ScheduleInfo(ID.bytes, "b", every_s=5.0, paused=True),
            ScheduleInfo(ID.bytes, "c", run_at=NOW_S),
        ]
        lines = plain_table(schedules_table(SchedulePageAnswer(some), NOW_S), None)
        assert [line.rstrip().rsplit("  ", 1)[1].strip() for line in lines[1:]] == ["in 3 s", "paused", "never again"]

    def test_declared(self) -> None:
        """Where code declares any, there is a column for the keys; a removed one says so in any state."""
        plain = ScheduleInfo(ID.bytes, "a", every_s=5.0, next_run_at=NOW_S + 3)
        assert "key" not in plain_table(schedules_table(SchedulePageAnswer([plain]), NOW_S), None)[0]
        words: dict[str, Any] = {"key": "k1", "declared_by": "app", "undeclared_at": NOW_S, "every_s": 5.0}
        states: dict[str, dict[str, Any]] = {
            "in 3 s": {"next_run_at": NOW_S + 3}, "paused": {"paused": True}, "stuck": {"error": "why"}
        }  # fmt: skip
        gone = [ScheduleInfo(ID.bytes, "b", **words, **more) for more in states.values()]
        title, own, *lines = plain_table(schedules_table(SchedulePageAnswer([plain, *gone]), NOW_S), None)
        assert (title.split()[-1], [line.split()[-1] for line in lines]) == ("key", ["k1"] * 3)
        assert all(f"{state}, not declared any more" in line for state, line in zip(states, lines, strict=True))
        assert "declared" not in own

    def test_facts(self) -> None:
        shown = {label: cell.text for label, cell in schedule_facts(ScheduleInfo(ID.bytes, "a", run_at=NOW_S), NOW_S)}
        assert (shown["topic"], shown["next"]) == ("the handler's", "never again")
        paused = ScheduleInfo(ID.bytes, "a", run_at=NOW_S, next_run_at=NOW_S, paused=True)
        assert dict(schedule_facts(paused, NOW_S))["next"].text == "paused"
        assert shown["args"] == "too long to be shown"

    def test_facts_of_a_key(self) -> None:
        plain = ScheduleInfo(ID.bytes, "a", run_at=NOW_S)
        assert not {"group", "unique key", "skipped"} & dict(schedule_facts(plain, NOW_S)).keys()
        keyed = ScheduleInfo(ID.bytes, "a", run_at=NOW_S, unique_key="k\n", skipped_at=NOW_S - 5, skipped_for=ID.bytes)
        keyed = msgspec.structs.replace(keyed, group_key="g\n")
        shown = {label: cell.text for label, cell in schedule_facts(keyed, NOW_S)}
        assert (shown["group"], shown["unique key"]) == ("g\\n", "k\\n (until a job ends, else skip)")
        assert shown["skipped"].endswith(" (5 s ago)")
        assert shown["for job"] == str(ID)
        keyed = msgspec.structs.replace(keyed, unique_until="start", on_conflict="replace")
        shown = {label: cell.text for label, cell in schedule_facts(keyed, NOW_S)}
        assert shown["unique key"] == "k\\n (until a job starts, else replace)"

    @pytest.mark.parametrize(("given", "message"), [
        ({}, "none of them given"),
        ({"cron": "* * * * *", "every": 5.0}, "--cron and --every given"),
        ({"every": 5.0, "at": NOW_S}, "--every and --at given"),
        ({"every": 5.0, "timezone": "UTC"}, "--timezone goes with --cron"),
    ])  # fmt: skip
    def test_exactly_one_kind(self, given: dict[str, Any], message: str) -> None:
        when: TimingOptions = {"cron": None, "timezone": None, "every": None, "at": None, **given}  # type: ignore[typeddict-item]
        with pytest.raises(click.UsageError, match=message):
            when_body(when)


def test_table_of_workers() -> None:
    body = {"identity": "i", "name": "w1", "pid": 7, "host": "h", "topics": ["a", "b"], "names": ["n"]}
    worker = read(
        Worker,
        {**body, "capacity": 10, "running": [ID.bytes, ID.bytes], "started": 2, "draining": True, "recovery": "lease"},
    )
    (_, line) = plain_table(workers_table([worker]), None)
    assert line.split() == ["w1", "7", "h", "2", "draining", "a,", "b", "n", "lease"]
    (_, line) = plain_table(workers_table([read(Worker, {**body, "capacity": 10, "silent": True})]), None)
    assert line.split()[3:5] == ["0/10", "silent"]


def test_the_groups_of_a_topic() -> None:
    groups = [
        GroupStats("hot\nkey", ready=1000, later=3, running=2, oldest_s=90.0, concurrency=2, full=True),
        GroupStats("halted", ready=1, concurrency=1, halted_by=ID.bytes),
        GroupStats("off", later=1, concurrency=0, full=True),
        GroupStats("free", ready=7),
    ]
    assert [line.split() for line in plain_table(groups_table(groups), None)] == [
        ["group", "waiting", "oldest", "running", "of", "later", "state"],
        ["hot", "key", "1,000", "90", "s", "2", "2", "3", "full"],
        ["halted", "1", "0", "1", "0", "halted", "by", str(ID)],
        ["off", "0", "0", "0", "1", "paused"],
        ["free", "7", "0", "0"],
    ]


def test_which_limit_a_topic_goes_by() -> None:
    """A column of its own, if there are limits; and whether that is full."""
    told = read(Stats, stats(
        topics=[{"topic": "a", "limit": "api"}, {"topic": "b", "limit": "b"}, {"topic": "c"}],
        limits=[{"name": "api", "running": 2, "concurrency": 2, "full": True}, {"name": "b"}],
    ))  # fmt: skip
    rows = merged([], told, Gate(), most=9)
    assert [(row["counted_by"], row["limit_full"]) for row in rows] == [("api", True), ("b", False), (None, None)]
    lines = [line.split() for line in plain_table(topics_table(rows, is_exact=True), None)]
    assert [line[7:] for line in lines] == [["workers", "limit", "policy"], ["api", "(full)"], ["b"], []]
    assert "limit" not in plain_table(topics_table(rows[2:], is_exact=True), None)[0]


def test_limits_that_are_full() -> None:
    told = [{"name": f"l{number}", "running": number, "concurrency": 1, "full": True} for number in range(7)]
    lines = texts(overview(status(limits=told), NOW_S))
    assert lines[-6:] == [
        "full limits l0  0 of 1 run", *(f"            l{number}  {number} of 1 run" for number in range(1, 5)),
        "            and 2 more",
    ]  # fmt: skip
    assert not any("limits" in line for line in texts(overview(status(limits=[]), NOW_S)))
