"""``pulse ctl`` as a whole process against a server on real sockets: output, exit codes, servers that are not well."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pulse.errors import NotFoundError, RefusedError, UnavailableError
from pulse.system.directories import CLIENT_SOCKET, SUPERVISOR_SOCKET
from tests.support.commandline import cli_answers as answers
from tests.support.commandline.cli import DEADLINE_S, PULSE, Done, environment, pulse, run
from tests.support.servers.fake_dispatcher import Body, FakeDispatcher, RuntimeDir

pytestmark = pytest.mark.process

JOB = str(answers.JOB_ID)
SCHEDULE = str(answers.SCHEDULE_ID)
OTHER = "0190163d-8694-739b-aea5-966c26f8ad99"
MINIMUM_KEYS = {"supervisor", "actors", "pools", "database", "gate", "workers", "jobs", "jobs_exact"}
ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{6})?Z")


class Told(NamedTuple):
    """What a command asks for, and what it shows of the answer: keys of its JSON document, words for people."""

    asked: str
    keys: tuple[str, ...]
    words: str


JOB_KEYS = (*answers.job(), "history")
GATE = Told("dispatch.status", ("paused", "reason", "topics"), "all topics paused 3 d ago: maintenance")
SCHEDULED = Told("schedules.get", ("id", "name", "cron", "next_run_at"), f"{SCHEDULE}\nname       report\n")
READING = {
    "ctl status": Told("status", tuple(sorted(MINIMUM_KEYS)), "gate        all topics paused 3 d ago: maintenance"),
    "ctl jobs list": Told("jobs.list", ("jobs", "next"), f"{JOB}  DEAD_LETTERED  resize"),
    f"ctl jobs get {JOB}": Told("jobs.get", JOB_KEYS, f"{JOB}\nstatus       DEAD_LETTERED\n"),
    f"ctl jobs why {JOB}": Told("jobs.why", ("id", "status", "reasons"), 'Topic "images" has been paused since 2030'),
    f"ctl jobs stack {JOB}": Told(
        "jobs.stack", ("worker", "pid", "stack"), 'attempt 2, pid 7, h/b/1/7.8/w\n\nFile "a.py"'
    ),
    "ctl workers": Told("workers.list", ("workers",), "0/10 +1  images, default  resize\n"),
    "ctl workers list": Told("workers.list", ("workers",), "0/10 +1  images, default  resize\n"),
    "ctl dispatch status": GATE,
    "ctl schedules list": Told("schedules.list", ("schedules", "next"), "30 6 * * 1-5 Europe/Berlin  in "),
    f"ctl schedules get {SCHEDULE}": SCHEDULED,
}
CHANGING = {
    "ctl submit resize": Told("submit", ("ids",), "-"),
    f"ctl jobs cancel {JOB}": Told("jobs.cancel", ("done", "refused"), f"canceled {JOB}\n"),
    f"ctl jobs signal {JOB} approved": Told("jobs.signal", ("new",), f"sent approved to {JOB}\n"),
    f"ctl jobs retry {JOB}": Told("jobs.retry", ("done", "refused"), f"retried {JOB}\n"),
    "ctl dispatch pause": GATE._replace(asked="dispatch.pause"),
    "ctl dispatch resume": Told("dispatch.resume", ("paused", "topics"), "open\n"),
    "ctl schedules create report --every 5": SCHEDULED._replace(asked="schedules.create"),
    f"ctl schedules update {SCHEDULE} --every 5": SCHEDULED._replace(asked="schedules.update"),
    f"ctl schedules pause {SCHEDULE}": SCHEDULED._replace(asked="schedules.pause"),
    f"ctl schedules resume {SCHEDULE}": SCHEDULED._replace(asked="schedules.resume"),
    f"ctl schedules trigger {SCHEDULE}": Told("schedules.trigger", ("id",), f"{JOB}\n"),
    f"ctl schedules preview {SCHEDULE}": Told(
        "schedules.preview", ("times", "timezone"), "2024-03-31 03:00:00+02:00\n"
    ),
    f"ctl schedules delete {SCHEDULE}": Told("schedules.delete", ("id",), f"deleted {SCHEDULE}\n"),
    "ctl actors restart dispatcher": Told("", ("name", "pid"), "dispatcher restarted, pid 77\n"),
    "ctl drain": Told("", (), "the pools of this supervisor finish what they hold"),
}


@pytest.fixture
def directory() -> Iterator[Path]:
    with RuntimeDir() as made:
        yield made.path


@pytest.fixture
def server() -> Iterator[FakeDispatcher]:
    with answers.system() as dispatcher:
        yield dispatcher


class TestOutput:
    @pytest.mark.parametrize(("line", "told"), (READING | CHANGING).items())
    def test_json_is_one_document_and_nothing_else(self, server: FakeDispatcher, line: str, told: Told) -> None:
        done = pulse(server.directory, f"{line} --json")
        assert (done.code, done.err) == (0, "")
        assert done.out.count("\n") == 1
        document: Any = done.document
        assert set(told.keys) <= document.keys()
        assert [asked.kind for asked in server.asked] == [told.asked] * bool(told.asked)

    @pytest.mark.parametrize(("line", "told"), (READING | CHANGING).items())
    def test_people_get_plain_text_in_a_pipe(self, server: FakeDispatcher, line: str, told: Told) -> None:
        done = pulse(server.directory, line)
        assert done.code == 0
        assert told.words in done.out
        assert "\x1b" not in done.out + done.err
        assert not done.err or done.err.startswith("more: ")

    def test_why_a_job_does_not_run(self, server: FakeDispatcher) -> None:
        """Reasons come one to a line in the server's order, each with what to do below it; programs get all of it."""
        done = pulse(server.directory, f"ctl jobs why {JOB}")
        assert done.out.splitlines() == [
            'Topic "images" has been paused since 2030-01-31T12:00:00Z (3 min ago), until somebody resumes it.',
            "  pulse ctl dispatch resume --topic images",
            "It is looked at again \\x1b[31mlater.",
        ]
        document: Any = pulse(server.directory, f"ctl jobs why {JOB} --json").document
        assert (document["id"], document["status"]) == (JOB, "PENDING")
        assert [reason["code"] for reason in document["reasons"]] == ["paused", "given_back"]
        assert ISO.fullmatch(document["reasons"][0]["details"]["paused_at"])

    def test_pages(self, server: FakeDispatcher) -> None:
        done = pulse(server.directory, "ctl jobs list --status running --status RETRYING --topic t --name n --limit 2")
        assert done.err == "more: repeat with --after abc\n"
        pulse(server.directory, f"ctl jobs list --after abc --schedule {SCHEDULE}")
        first, second = server.bodies("jobs.list")
        assert first == {"status": ["RUNNING", "RETRYING"], "topic": "t", "name": "n", "limit": 2}
        assert second == {"after": "abc", "schedule": answers.SCHEDULE_ID.bytes, "limit": 50}

    def test_the_gate(self, server: FakeDispatcher) -> None:
        done = pulse(server.directory, "ctl dispatch pause --topic images --reason 'new disks'")
        assert server.bodies("dispatch.pause") == [{"topic": "images", "reason": "new disks"}]
        assert done.out.startswith("all topics paused 3 d ago: maintenance\ntopic images paused ")
        pulse(server.directory, "ctl dispatch pause --for 10m")
        pulse(server.directory, "ctl dispatch pause --until 2030-01-01")
        assert server.bodies("dispatch.pause")[1:] == [
            {"topic": "", "for_s": 600.0},
            {"topic": "", "until": 1893456000.0},
        ]
        assert pulse(server.directory, "ctl dispatch resume").out == "open\n"
        assert server.bodies("dispatch.resume") == [{"topic": ""}]

    def test_a_topic_that_may_be_misspelled(self, server: FakeDispatcher) -> None:
        """A pause of an unknown topic, and the end of none, are done, with a note."""
        assert pulse(server.directory, "ctl dispatch pause --topic images").err == ""
        done = pulse(server.directory, "ctl dispatch pause --topic imagse")
        assert done.err == (
            "pulse: no job waits or runs in topic imagse, and no worker here serves it; similar topics: images\n"
        )
        done = pulse(server.directory, "ctl dispatch resume --topic imagse")
        assert (done.code, done.err) == (0, "pulse: topic imagse was not paused\n")
        assert pulse(server.directory, "ctl dispatch resume --topic images").err == ""

    def test_topics(self, directory: Path) -> None:
        policy = {
            "max_attempts": {"value": 3, "source": "topic"},
            "lease_s": {"value": 30.0, "source": "server"},
            "backoff": {"value": None, "source": None},
        }
        topic = {"topic": "images", "policy": policy, "handlers": [{"name": "resize", "backoff": "fixed:1"}]}
        script = {f"topics.{verb}": {"topic": topic} for verb in ("get", "set", "unset")}
        listed = {"topics": [{"topic": "", "max_attempts": 5, "backoff": None}, {"topic": "images", "ageing_s": 60.0}]}
        inside = {
            "stats": answers.stats(topics=[{"topic": "mail", "ready": 7, "oldest_s": 90.0}], exact=False),
            "dispatch.status": {"paused": False, "topics": {"night": {}}},
            "topics.list": {**listed, "next": "\x1b[31m"},
        }
        with FakeDispatcher(directory, {**script, **inside}) as server:
            line = "ctl topics set images --ageing 60 --max-attempts 3 --backoff list:1,10 --retention 0"
            line += " --retention-dead 5"
            done = pulse(directory, line)
            assert pulse(directory, "ctl topics unset images retention-dead backoff --json").document == topic
            assert pulse(directory, 'ctl topics unset ""').code == 0
            assert pulse(directory, "ctl topics get images").out == done.out
            table, document = pulse(directory, "ctl topics list"), pulse(directory, "ctl topics list --json").document
        assert server.bodies("topics.set") == [
            {
                "topic": "images",
                "policy": {
                    "max_attempts": 3, "backoff": "list:1,10", "retention_s": 0.0, "retention_dead_s": 5.0,
                    "ageing_s": 60.0,
                },
            }
        ]  # fmt: skip
        assert server.bodies("topics.unset") == [
            {"topic": "images", "options": ["backoff", "retention_dead_s"]},
            {"topic": "", "options": []},
        ]
        shown = [" ".join(one.split()) for one in done.out.splitlines()]
        assert {"images", "max-attempts 3 (topic)", "lease 30 (server)", "backoff quadratic", "stall no limit"} <= {
            *shown
        }
        assert "handler resize: backoff fixed:1" in shown
        assert [line.split() for line in table.out.splitlines()] == [
            ["topic", "waiting", "oldest", "running", "scheduled", "retrying", "unhandled", "workers", "policy"],
            ["(the", "server)", "max-attempts", "5"],
            ["images", "ageing", "60"],
            ["mail", "~7", "90", "s", "0", "0", "0", "0", "0"],
            ["night", "(paused)"],
        ]
        assert table.err == "more: repeat with --after $'\\x1b[31m'\n"
        assert isinstance(document, dict)
        assert [(row["topic"], row["ready"], row["paused"]) for row in document["topics"]] == [
            ("", None, False), ("images", None, False), ("mail", 7, False), ("night", None, True),
        ]  # fmt: skip
        assert len({frozenset(row) for row in document["topics"]}) == 1

    def test_groups(self, directory: Path) -> None:
        answer = {"groups": [], "is_all": False}
        with FakeDispatcher(directory, {"topics.groups": answer}):
            assert pulse(directory, "ctl topics groups images --json").document == answer
            done = pulse(directory, "ctl topics groups images")
        assert done.out == "no group has waiting jobs\n"
        assert "There are more groups than were looked at.\n" in done.err

    def test_a_list_that_is_watched_and_never_seen(self, directory: Path) -> None:
        with FakeDispatcher(directory, {}):
            done = pulse(directory, "ctl --timeout 0.2 jobs list --watch 1")
        assert (done.code, done.out, done.err.count("\n")) == (3, "", 1)

    def test_a_list_that_is_watched(self, directory: Path) -> None:
        script = {"jobs.list": {"jobs": [answers.job()], "next": None}}
        command = [*PULSE, "ctl", "--timeout", "2", "jobs", "list", "--watch", "0.1"]
        with (
            FakeDispatcher(directory, script) as server,
            subprocess.Popen(command, env=environment(directory), stdout=subprocess.PIPE, text=True) as process,
        ):
            assert process.stdout is not None
            try:
                assert any(JOB in line for line in process.stdout)
                server.__exit__(None, None, None)
                assert any(line.startswith("! nobody answers") for line in process.stdout)
                assert any(JOB in line for line in process.stdout)  # what was seen last
                with FakeDispatcher(directory, {"jobs.list": {"jobs": [answers.job(name="new")], "next": None}}):
                    assert any(" new " in line for line in process.stdout)
                    process.send_signal(signal.SIGINT)
                    assert process.wait(DEADLINE_S) == 130
            finally:
                process.kill()

    def test_schedules(self, server: FakeDispatcher) -> None:
        line = "ctl schedules create report --cron '30 6 * * *' --timezone UTC --args '{\"a\": 1.0}' --priority 3"
        assert pulse(server.directory, line).code == 0
        assert pulse(server.directory, "ctl schedules create once --at 2030-01-01T00:00:00").code == 0
        cron, once = server.bodies("schedules.create")
        assert isinstance(cron.pop("id"), bytes)
        assert cron == {"name": "report", "cron": "30 6 * * *", "timezone": "UTC", "args": '{"a": 1.0}', "priority": 3}
        assert once["at"] == 1893456000.0

    def test_schedules_at_run_time(self, server: FakeDispatcher) -> None:
        options = "--cron @daily --overlap skip --catch-up all --jitter 5 --starts 2030-01-01"
        assert pulse(server.directory, f"ctl schedules update {SCHEDULE} {options}").code == 0
        assert server.bodies("schedules.update") == [
            {
                "id": answers.SCHEDULE_ID.bytes, "cron": "@daily", "overlap": "skip", "catch_up": "all",
                "jitter_s": 5.0, "starts_at": 1893456000.0,
            }
        ]  # fmt: skip
        options = "--unique k --unique-until start --unset on-conflict --group g"
        assert pulse(server.directory, f"ctl schedules update {SCHEDULE} {options}").code == 0
        assert server.bodies("schedules.update")[1:] == [{
            "id": answers.SCHEDULE_ID.bytes, "group_key": "g", "unique": "k", "unique_until": "start",
            "on_conflict": None,
        }]  # fmt: skip
        for word in ("pause", "resume"):
            assert pulse(server.directory, f"ctl schedules {word} {SCHEDULE}").code == 0
            assert server.bodies(f"schedules.{word}") == [{"id": answers.SCHEDULE_ID.bytes}]
        assert pulse(server.directory, f"ctl schedules trigger {SCHEDULE}").out == f"{JOB}\n"
        assert server.bodies("schedules.trigger")[0]["id"] == answers.SCHEDULE_ID.bytes
        shown = pulse(server.directory, f"ctl schedules preview {SCHEDULE} --count 2").out
        assert shown == "2024-03-30 02:30:00+01:00\n2024-03-31 03:00:00+02:00\n"
        document = json.loads(pulse(server.directory, f"ctl schedules preview {SCHEDULE} --json").out)
        assert document == {"times": ["2024-03-30T01:30:00Z", "2024-03-31T01:00:00Z"], "timezone": "Europe/Berlin"}
        assert pulse(server.directory, f"ctl schedules update {SCHEDULE} --every 5 --cron @daily").code == 2

    def test_schedule_options_are_unset(self, server: FakeDispatcher) -> None:
        assert pulse(server.directory, f"ctl schedules update {SCHEDULE} --unset max-attempts --unset jitter").code == 0
        assert server.bodies("schedules.update") == [
            {"id": answers.SCHEDULE_ID.bytes, "max_attempts": None, "jitter_s": None}
        ]
        both = pulse(server.directory, f"ctl schedules update {SCHEDULE} --timeout 5 --unset timeout")
        assert both.code == 2
        assert "--timeout is given, and --unset timeout: one of them is allowed" in both.err

    @pytest.mark.rest
    @pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
    def test_any_encoding(self, server: FakeDispatcher, encoding: str) -> None:
        """A terminal that lacks a character gets its escape; JSON is UTF-8 all the same."""
        env = environment(server.directory, PYTHONIOENCODING=encoding)
        server._script = {"jobs.get": {"job": answers.job(name="größe 日本", args='{"ö": "日"}', last_error=None)}}
        done = subprocess.run(
            [*PULSE, "ctl", "jobs", "get", JOB], env=env, capture_output=True, check=False, timeout=30
        )
        assert done.returncode == 0
        assert rb"\u65e5\u672c" in done.stdout
        document: Any = run(["ctl", "jobs", "get", JOB, "--json"], env).document
        assert (document["name"], document["args"]) == ("größe 日本", {"ö": "日"})


class TestExitCodes:
    def test_a_refusal_is_one_line(self, directory: Path) -> None:
        """With --json it is a document, too."""
        refusal = NotFoundError("there is no job x")
        with FakeDispatcher(directory, {"jobs.get": refusal}):
            done, told = (pulse(directory, f"ctl jobs get {JOB}{option}") for option in ("", " --json"))
        assert (done.code, done.out, done.err) == (1, "", "pulse: there is no job x\n")
        assert (told.code, told.err) == (1, done.err)
        assert told.document == {"error": {"code": "not_found", "message": "there is no job x"}}

    @pytest.mark.parametrize(("line", "exit_code", "code"), [
        ("ctl jobs list --json --limit 0", 2, "bad_usage"),
        ("ctl statsu --json", 2, "bad_usage"),
        ("ctl status --json", 3, "nobody_answers"),
        ("ctl --connect nowhere://x jobs list --json", 1, "failed"),
    ])  # fmt: skip
    def test_a_failure_is_a_document_where_one_is_wanted(
        self, directory: Path, line: str, exit_code: int, code: str
    ) -> None:
        done = pulse(directory, line)
        document: Any = done.document
        assert (done.code, set(document), document["error"]["code"]) == (exit_code, {"error"}, code)
        assert document["error"]["message"] in done.err

    @pytest.mark.parametrize("as_json", [False, True])
    @pytest.mark.parametrize("verb", ["cancel", "retry"])
    def test_some_refused(self, directory: Path, verb: str, as_json: bool) -> None:
        answer = {"done": [answers.JOB_ID.bytes], "refused": [[bytes.fromhex(OTHER.replace("-", "")), "conflict"]]}
        with FakeDispatcher(directory, {f"jobs.{verb}": answer}):
            done = pulse(directory, f"ctl jobs {verb} {JOB} {OTHER} {'--json' if as_json else ''}")
        assert done.code == 1
        assert done.err == f"pulse: {OTHER}: conflict: its last attempt is still held by a worker\n"
        if as_json:
            assert done.document == {"done": [JOB], "refused": [[OTHER, "conflict"]]}
        else:
            assert done.out.split() == ["canceled" if verb == "cancel" else "retried", JOB]

    @pytest.mark.parametrize(("options", "out"), [("", "1,000 jobs canceled\n"), ("--json", None)])
    def test_a_failure_in_the_middle(self, directory: Path, options: str, out: str | None) -> None:
        """Finished batches are reported, and how much is left; the error is the server's."""
        jobs = [answers.job(id=number.to_bytes(16), status="PENDING") for number in range(1500)]

        def cancel(body: Mapping[str, Any]) -> Body | RefusedError:
            whole = len(body["ids"]) == 1000
            return {"done": body["ids"], "refused": []} if whole else UnavailableError("the database is away")

        with FakeDispatcher(directory, {"jobs.list": {"jobs": jobs, "next": None}, "jobs.cancel": cancel}):
            done = pulse(directory, f"ctl jobs cancel --topic images --yes {options}")
        assert (done.code, done.err) == (
            1,
            "pulse: the database is away; 500 jobs left, 500 of which may have been reached\n",
        )
        assert out is None or done.out == out
        if out is None:
            document: Any = done.document
            assert (len(document["done"]), document["refused"]) == (1000, [])

    @pytest.mark.parametrize(("line", "message"), [
        ("nonsense", "No such command 'nonsense' (see: "),
        ("wroker", "No such command 'wroker'. Did you mean 'worker'? (see: pulse --help)"),
        ("status", "No such command 'status'. Did you mean 'ctl status'?"),
        ("ctl statsu", "No such command 'statsu'. Did you mean 'status'?"),
        ("ctl topics lst", "No such command 'lst'. Did you mean 'list' or 'set'?"),
        ("ctl jobs get", "Missing argument 'ID'"),
        ("ctl jobs get 42", "Invalid value for 'ID': '42': the id of a job is allowed, or its first"),
        ("ctl jobs cancel", "which jobs?"),
        (f"ctl jobs signal {JOB} paid {{", "Invalid value for '[PAYLOAD]': '{': the payload is not JSON: Expecting"),
        ("ctl jobs list --status DONE", "Invalid value for '--status': 'DONE': PENDING, RUNNING, "),
        ("ctl jobs list --limit 0", "Invalid value for '--limit': 0 is not in the range 1<=x<=1000"),
        ("ctl submit x --priority 101", "Invalid value for '--priority': 101 is not in the range -100<=x<=100"),
        ("ctl submit x --delay 1 --at 2030-01-01", "--delay and --at cannot be given together"),
        ("ctl submit x --expires-in 1 --expires-at 2030-01-01", "--expires-in and --expires-at cannot be given"),
        ("ctl dispatch pause --for soon", "Invalid value for '--for': 'soon': a length of time above 0 is allowed"),
        ("ctl dispatch pause --for 5m --until 2030-01-01", "--for and --until cannot be given together"),
        ("ctl topics set images", "nothing to set: one or more of --max-attempts, --max-crashes, --backoff, "),
        ("ctl topics set images --backoff fixed:-5", "'fixed:-5': allowed are quadratic[:UNIT], exponential"),
        ("ctl topics set images --tries 3", "No such option"),
        ("ctl topics unset images tries", "'tries' is not one of 'max-attempts', 'max-crashes', 'backoff', "),
        ("ctl submit x - --id " + JOB, "--id names one job"),
        ("ctl schedules create x", "none of them given"),
        ("ctl --timeout 0 status", "Invalid value for '--timeout': '0': a length of time above 0 is allowed"),
        ("completion tcsh", "'tcsh' is not one of"),
        ("migrate", "no database is named: give --dsn or set PULSE_DSN"),
    ])  # fmt: skip
    def test_bad_usage_is_one_line(self, directory: Path, line: str, message: str) -> None:
        done = pulse(directory, line)
        assert (done.code, done.out) == (2, "")
        assert done.err.count("\n") == 1
        assert done.err.startswith("pulse: ")
        assert message in done.err
        assert " --help)" in done.err

    @pytest.mark.parametrize("line", ["", "ctl"])
    def test_without_a_command_the_help_is_shown(self, directory: Path, line: str) -> None:
        done = pulse(directory, line)
        assert (done.code, done.out) == (2, "")
        assert "Commands:" in done.err

    def test_a_closed_pipe_is_quiet(self, directory: Path) -> None:
        page = {"jobs": [answers.job(last_error="x" * 200)] * 1000, "next": None}
        command = f"{shlex.join(PULSE)} ctl jobs list | head -1"
        with FakeDispatcher(directory, {"jobs.list": page}):
            done = subprocess.run(
                ["sh", "-c", command], env=environment(directory), capture_output=True, check=False, timeout=DEADLINE_S
            )
        assert done.stdout.count(b"\n") == 1
        assert done.stderr == b""

    @pytest.mark.parametrize("line", ["ctl jobs list", "ctl jobs list --json"])
    def test_a_full_disk_is_one_line(self, server: FakeDispatcher, line: str) -> None:
        with Path("/dev/full").open("wb") as full:
            done = subprocess.run(
                [*PULSE, *line.split()], env=environment(server.directory), stdout=full, stderr=subprocess.PIPE,
                check=False, timeout=DEADLINE_S,
            )  # fmt: skip
        assert done.returncode == 1
        assert b"pulse: cannot go on: No space left on device\n" in done.stderr
        assert b"Traceback" not in done.stderr

    def test_interrupted(self, directory: Path) -> None:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits SIG_IGN
        try:
            with FakeDispatcher(directory) as silent:
                process = subprocess.Popen(
                    [*PULSE, "ctl", "jobs", "list"], env=environment(directory), stderr=subprocess.PIPE
                )
                deadline_s = time.monotonic() + DEADLINE_S
                while not silent.asked:
                    assert time.monotonic() < deadline_s
                    process.poll()
                process.send_signal(signal.SIGINT)
                _, stderr = process.communicate(timeout=DEADLINE_S)
        finally:
            signal.signal(signal.SIGINT, before)
        assert (process.returncode, stderr) == (130, b"pulse: interrupted\n")


def soonest(directory: Path, line: str, within_s: float = 2.0) -> Done:
    """The quickest of a few runs: on a busy machine any program may start late."""
    runs: list[Done] = []
    while len(runs) < 5 and (not runs or runs[-1].spent_s > within_s):
        runs.append(pulse(directory, line))
    return min(runs, key=lambda one: one.spent_s)


class TestNobodyAnswers:
    def test_the_places_are_listed(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TMPDIR", str(directory))  # a server of this user's may have used the usual one
        done = pulse(directory, "ctl jobs list")
        assert (done.code, done.out, done.err.count("\n")) == (3, "", 1)
        assert f"looked at {directory}/pulse.sock, /run/pulse/pulse.sock" in done.err
        assert done.err.endswith("(no such file or directory); pulse-supervisor starts a server\n")

    def test_status_lists_both_sockets(self, directory: Path) -> None:
        socket_path = directory / "pulse.sock"
        done = pulse(directory, f"ctl --socket {socket_path} status")
        reason = "no such file or directory"
        expected = (
            f"pulse: nobody answers; looked at {socket_path}, {directory}/supervisor.sock ({reason}); "
            "pulse-supervisor starts a server\n"
        )
        assert (done.code, done.err) == (3, expected)

    @pytest.mark.rest
    @pytest.mark.parametrize("frozen", [True, False])
    @pytest.mark.parametrize("silent", ["dispatcher", "supervisor"])
    def test_status_without_one_of_them(self, directory: Path, silent: str, frozen: bool) -> None:
        scripts = {"dispatcher": answers.dispatcher(), "supervisor": answers.supervisor(), silent: {}}
        supervisor, dispatcher = (
            FakeDispatcher(directory, scripts[who], name=name, frozen=frozen and silent == who)
            for who, name in (("supervisor", SUPERVISOR_SOCKET), ("dispatcher", CLIENT_SOCKET))
        )
        with supervisor, dispatcher:
            done = soonest(directory, "ctl status --json")
            words = pulse(directory, "ctl status")
        document: Any = done.document
        assert (done.code, done.err) == (1, "")
        assert set(document) == {*MINIMUM_KEYS, "findings"}
        assert done.spent_s <= 2.0
        assert f"wrong    processes: the {silent} does not answer: " in words.out
        assert document["supervisor"]["pid"] == 1
        assert document["jobs"] == {"PENDING": 12, "RUNNING": 1, "COMPLETED": 12345}
        workers = document["workers"]
        assert workers is None if silent == "dispatcher" else workers[0]["name"] == "w1"

    @pytest.mark.parametrize("frozen", [None, "dispatcher", "supervisor"])
    def test_ping_wants_both(self, directory: Path, frozen: str | None) -> None:
        """The exit code is 0 if supervisor and dispatcher answer; 3 within the time given if one of them does not."""
        supervisor = FakeDispatcher(directory, {"ping": {}}, name=SUPERVISOR_SOCKET, frozen=frozen == "supervisor")
        with supervisor, FakeDispatcher(directory, {"ping": {}}, frozen=frozen == "dispatcher"):
            done = soonest(directory, "ctl --timeout 1 ping")
        assert (done.code, bool(done.out), bool(done.err)) == ((0, True, False) if frozen is None else (3, False, True))
        assert done.spent_s < 3.0

    def test_control_asks_the_supervisor(self, directory: Path) -> None:
        with FakeDispatcher(directory, answers.supervisor(), name=SUPERVISOR_SOCKET) as supervisor:
            assert pulse(directory, "ctl actors restart pause").out == "pause restarted, pid 77\n"
            assert pulse(directory, "ctl drain --all").code == 0
            assert pulse(directory, f"ctl --socket {directory}/pulse.sock drain").code == 0
        assert supervisor.bodies("actors.restart") == [{"name": "pause"}]
        assert supervisor.bodies("drain") == [{"all": True}, {"all": False}]


def test_the_config_file_names_the_directory(server: FakeDispatcher, tmp_path: Path) -> None:
    config = tmp_path / "pulse.toml"
    config.write_text(f'runtime_dir = "{server.directory}"\n')
    assert run(["ctl", "workers"], environment(), cwd=tmp_path).code == 0
    assert run(["ctl", "workers"], environment(PULSE_CONFIG=str(config))).code == 0
    assert run(["ctl", "status"], environment(PULSE_CONFIG=str(config))).code == 0


def test_top_says_what_status_says(server: FakeDispatcher) -> None:
    found = [{"id": "unhandled", "severity": "wrong", "text": "500 jobs of 'sned_mail'", "details": [], "do": ""}]
    status: Any = answers.dispatcher()["status"]
    server._script = {**server._script, "status": {**status, "findings": found}}
    for line in ("ctl status", "ctl top --once"):
        assert "unhandled: 500 jobs of 'sned_mail'" in pulse(server.directory, line).out


def test_top_while_the_database_is_away(server: FakeDispatcher) -> None:
    """The dispatcher answers what it knows by itself: it is not the one that is silent."""
    away = UnavailableError("the database is away")
    server._script = {**server._script, "stats": away, "jobs.list": away}
    done = pulse(server.directory, "ctl top --once")
    assert "workers     1 connected" in done.out
    assert "does not answer" not in done.out
