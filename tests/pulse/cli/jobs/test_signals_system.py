"""``pulse ctl jobs signal`` as a whole process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pulse.errors import ConflictError
from tests.support.commandline import cli_answers as answers
from tests.support.commandline.cli import pulse
from tests.support.servers.fake_dispatcher import FakeDispatcher, RuntimeDir

pytestmark = pytest.mark.process

JOB = str(answers.JOB_ID)


@pytest.fixture
def server() -> Iterator[FakeDispatcher]:
    with answers.system() as dispatcher:
        yield dispatcher


def test_what_is_sent(server: FakeDispatcher) -> None:
    """The payload as it was written; a key of its own for each, so that a request can be repeated."""
    assert pulse(server.directory, f"""ctl jobs signal {JOB} paid '{{"n": 1.10}}' --key k""").code == 0
    assert pulse(server.directory, f"ctl jobs signal {JOB[:12]} paid").code == 0
    assert pulse(server.directory, f"ctl jobs signal {JOB} paid -", stdin=b' ["\xc3\xa4"]\n').code == 0
    first, *others = server.bodies("jobs.signal")
    assert first == {"id": answers.JOB_ID.bytes, "name": "paid", "payload": '{"n": 1.10}', "key": "k"}
    assert [one["payload"] for one in others] == ["null", ' ["ä"]\n']
    assert {one["id"] for one in others} == {answers.JOB_ID.bytes}
    assert len({first["key"], *(one["key"] for one in others)}) == 3


@pytest.mark.parametrize(("given", "said"), [
    (b"{", "the payload is not JSON: Expecting property name enclosed in double quotes at character 2"),
    (b"", "the payload is not JSON: Expecting value at character 1"),
    (b'"\xff"', "the payload is not UTF-8 text"),
    (b'"' + b"x" * 1024 * 1024, "the payload has more than 1048576 bytes"),
], ids=["json", "nothing", "utf-8", "huge"])  # fmt: skip
def test_a_payload_that_cannot_be_sent(server: FakeDispatcher, given: bytes, said: str) -> None:
    done = pulse(server.directory, f"ctl jobs signal {JOB} paid -", stdin=given)
    assert (done.code, done.out, done.err) == (1, "", f"pulse: {said}\n")
    assert server.asked == []


def test_what_was_sent_before() -> None:
    with RuntimeDir() as directory, FakeDispatcher(directory.path, {"jobs.signal": {"new": False}}):
        done = pulse(directory.path, f"ctl jobs signal {JOB} 'it is ok' --key k")
        told = pulse(directory.path, f"ctl jobs signal {JOB} 'it is ok' --key k --json")
    assert (done.code, done.out) == (0, f"nothing new: with that key 'it is ok' to {JOB} was sent before\n")
    assert (told.code, told.document) == (0, {"new": False})


def test_a_job_that_has_ended() -> None:
    refusal = ConflictError(f'signal "paid": job {JOB} is COMPLETED')
    with RuntimeDir() as directory, FakeDispatcher(directory.path, {"jobs.signal": refusal}):
        done = pulse(directory.path, f"ctl jobs signal {JOB} paid")
    assert (done.code, done.out, done.err) == (1, "", f'pulse: signal "paid": job {JOB} is COMPLETED\n')
