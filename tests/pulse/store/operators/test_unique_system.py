"""Unique jobs through a whole system: socket, command line and workers."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

import pulse
from pulse.errors import ConflictError
from pulse.job import Status
from tests.support.systems.system_kit import Whole

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system]


@pytest.fixture
def client(whole: Whole) -> Iterator[pulse.Client]:
    with pulse.Client(whole.path) as made:
        yield made


def test_one_at_a_time(client: pulse.Client, topic: str) -> None:
    """While a job waits, others find it; people see its key, and that an operator's retry gave it away."""
    first = client.submit("record", {"value": 1}, topic=topic, unique=topic, delay_s=3600, group_key="g")
    again = client.submit("record", topic=topic, unique=topic)
    assert (first.is_new, again, again.is_new) == (True, first, False)
    plain, replaced = client.submit_many([
        {"name": "record", "topic": topic, "delay_s": 3600},
        {"name": "record", "topic": topic, "unique": topic, "on_conflict": "replace", "delay_s": 60, "args": {"a": 2}},
    ])  # fmt: skip
    assert (plain == first, replaced) == (False, first)
    with pytest.raises(ConflictError, match=f"unique key '{topic}' belongs to job {first}"):
        client.submit("record", topic=topic, unique=topic, on_conflict="error")
    job = client.get(first)
    assert (job.args, job.unique_key, job.unique_until, job.group_key) == ({"a": 2}, topic, "end", "g")
    assert client.why(first).reasons[-1].code == "unique"
    client.cancel(first)
    other = client.submit("record", topic=topic, unique=topic, delay_s=3600)
    assert other.is_new
    assert client.retry(first).done == (first,)
    retried = client.get(first)
    assert (retried.unique_until, retried.group_key) == (None, "g")
    (listed,) = [one for one in client.jobs(topic=topic).jobs if one.id == other]
    assert listed.unique_key == topic


def test_on_the_command_line(whole: Whole, client: pulse.Client, topic: str) -> None:
    """The id of the job that has the key is printed, with a word about it."""
    words = ["ctl", "submit", "record", "--topic", topic, "--unique", f"{topic}:cli", "--delay", "1h", "--group", "g"]
    first, again = whole.command(*words), whole.command(*words, "--unique-until", "end", "--json")
    [job] = json.loads(again.stdout)["ids"]
    assert (first.stdout, client.get(job).group_key) == (f"{job}\n", "g")
    assert "has this unique key" not in first.stderr
    assert f"pulse: nothing new: job {job} has this unique key" in again.stderr
    strict = whole.command(*words, "--on-conflict", "error")
    assert (strict.returncode, strict.stdout) == (1, "")
    assert f"unique key '{topic}:cli' belongs to job {job}" in strict.stderr
    shown = whole.command("ctl", "jobs", "get", job).stdout
    assert f"{topic}:cli (until it ends)" in shown


def test_a_key_is_given_away_when_the_job_starts(whole: Whole, client: pulse.Client, topic: str) -> None:
    """What is submitted while one runs is one more, and only one; it runs afterwards."""
    gate = whole.gate(topic)
    whole.pool("--topic", topic, "--concurrency", "1")

    def submit() -> pulse.JobId:
        return client.submit("hold", {"gate": str(gate)}, topic=topic, unique=topic, unique_until="start")

    running = submit()
    whole.wait_entry(running)
    others = [submit() for _ in range(3)]
    assert [one.is_new for one in others] == [True, False, False]
    gate.touch()
    assert {client.wait(one, 60).status for one in (running, *others)} == {Status.COMPLETED}
