"""``pulse ctl submit`` as a whole process: one job from the command line, many from standard input."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pulse.errors import UnavailableError
from tests.support.commandline import cli_answers as answers
from tests.support.commandline.cli import DEADLINE_S, PULSE, environment, pulse
from tests.support.servers.fake_dispatcher import FakeDispatcher, RuntimeDir

pytestmark = pytest.mark.process

JOB = str(answers.JOB_ID)


@pytest.fixture
def directory() -> Iterator[Path]:
    with RuntimeDir() as made:
        yield made.path


@pytest.fixture
def server() -> Iterator[FakeDispatcher]:
    with answers.system() as dispatcher:
        yield dispatcher


class TestSubmit:
    def test_one_job(self, server: FakeDispatcher) -> None:
        line = """ctl submit resize '{"w": 1.10}' --topic t --priority -3 --max-attempts 2 --timeout 9 --delay 1.5"""
        done = pulse(server.directory, line)
        ((body,),) = ([*asked["jobs"]] for asked in server.bodies("submit"))  # type: ignore[misc]
        sent = dict(body)
        assert sent.pop("id").hex() == done.out.strip().replace("-", "")
        assert sent == {
            "name": "resize", "args": '{"w": 1.10}', "topic": "t", "priority": -3, "max_attempts": 2, "timeout_s": 9.0,
            "delay_s": 1.5,
        }  # fmt: skip

    def test_jobs_to_wait_for(self, server: FakeDispatcher) -> None:
        assert pulse(server.directory, f"ctl submit merge --after {JOB} --after {JOB} --on-failure run").code == 0
        ((body,),) = ([*asked["jobs"]] for asked in server.bodies("submit"))  # type: ignore[misc]
        assert (body["after"], body["on_failure"]) == ([answers.JOB_ID.bytes] * 2, "run")

    def test_an_id_of_ones_own(self, server: FakeDispatcher) -> None:
        done = pulse(server.directory, f"ctl submit resize --id {JOB} --at 2030-01-01T00:00 --json")
        assert done.document == {"ids": [JOB]}
        (asked,) = server.bodies("submit")
        assert asked == {
            "jobs": [
                {"name": "resize", "args": "{}", "priority": 0, "run_at": 1893456000.0, "id": answers.JOB_ID.bytes}
            ]
        }

    def test_ten_megabytes_are_one_line(self, server: FakeDispatcher) -> None:
        huge = b'{"x": "' + b"y" * 10_000_000 + b'"}\n'
        done = pulse(server.directory, "ctl submit x -", stdin=b"{}\n" + huge + b"{}\n")
        assert (done.code, done.out.count("\n"), done.err.count("\n")) == (1, 1, 1)
        assert "lines 2 to 2: submit: the request has 10000" in done.err
        assert done.err.endswith("; submitted before: 1 job\n")

    @pytest.mark.parametrize("as_json", [False, True])
    def test_many_jobs(self, server: FakeDispatcher, as_json: bool) -> None:
        lines = [b'{"n": %d}' % number for number in range(2500)]
        done = pulse(
            server.directory, f"ctl submit x - --topic t {'--json' if as_json else ''}", stdin=b"\n".join(lines)
        )
        sent: list[Any] = [body["jobs"] for body in server.bodies("submit")]
        assert (done.code, done.err) == (0, "")
        assert [one["args"].encode() for jobs in sent for one in jobs] == lines
        assert all(len(jobs) <= 1000 for jobs in sent)
        assert {one["topic"] for jobs in sent for one in jobs} == {"t"}
        document: Any = done.document if as_json else {"ids": done.out.split()}
        assert [one.replace("-", "") for one in document["ids"]] == [one["id"].hex() for jobs in sent for one in jobs]

    def test_no_lines(self, server: FakeDispatcher) -> None:
        assert pulse(server.directory, "ctl submit x - --json", stdin=b"\n\n").document == {"ids": []}
        assert server.asked == []

    @pytest.mark.parametrize("bad", [b"[1]", b"{", b'{"a": "\xff"}', rb'{"a": "\ud800"}', b'{"a": NaN}'])
    def test_a_bad_line(self, server: FakeDispatcher, bad: bytes) -> None:
        done = pulse(server.directory, "ctl submit x - --json", stdin=b'{"n": 1}\n\n{"n": 2}\n' + bad + b'\n{"n": 3}\n')
        ids: Any = done.document
        assert (done.code, len(ids["ids"]), done.err.count("\n")) == (1, 2, 1)
        assert done.err.startswith("pulse: line 4: args ")
        assert done.err.endswith("; submitted before: 2 jobs\n")
        (body,) = server.bodies("submit")
        assert len(msgspec.convert(body["jobs"], list[object])) == 2

    def test_a_refused_batch(self, directory: Path) -> None:
        calls: list[int] = []

        def refuse_the_second(body: dict[str, object]) -> Any:
            calls.append(1)
            return answers.submitted(body) if len(calls) == 1 else UnavailableError("the database is away")

        with FakeDispatcher(directory, {"submit": refuse_the_second}):
            done = pulse(directory, "ctl submit x -", stdin=b"{}\n" * 1500)
        message = "lines 1001 to 1500: the database is away; submitted before: 1,000 jobs"
        assert (done.code, done.out.count("\n"), done.err) == (1, 1000, f"pulse: {message}\n")

    def test_a_slow_producer_does_not_wait(self, server: FakeDispatcher) -> None:
        process = subprocess.Popen(
            [*PULSE, "ctl", "submit", "x", "-"], env=environment(server.directory), stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(2):
            process.stdin.write(b"{}\n")
            process.stdin.flush()
            assert len(process.stdout.readline()) == 37
        process.stdin.close()
        assert process.wait(DEADLINE_S) == 0
        process.stdout.close()
        assert len(server.bodies("submit")) == 2
