"""Jobs, schedules and workers named by a few characters: every command that takes an id takes them."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import pytest

from tests.support.commandline import cli_answers as answers
from tests.support.commandline.cli import pulse
from tests.support.servers.fake_dispatcher import FakeDispatcher

pytestmark = pytest.mark.process

JOB, SCHEDULE = answers.JOB_ID, answers.SCHEDULE_ID
OTHER = UUID("0190163d-8694-7aaa-aea5-966c26f8ad91")


@pytest.fixture
def server() -> Iterator[FakeDispatcher]:
    with answers.system() as dispatcher:
        yield dispatcher


@pytest.mark.parametrize("command", ["get", "why", "stack"])
def test_one_job(server: FakeDispatcher, command: str) -> None:
    assert pulse(server.directory, f"ctl jobs {command} 0190163d").code == 0
    assert server.bodies(f"jobs.{command}") == [{"id": JOB.bytes}]


def test_several_jobs_keep_their_order(server: FakeDispatcher) -> None:
    """A whole id is not looked for: it is an answer already."""
    done = pulse(server.directory, f"ctl jobs cancel {OTHER} 0190163D-86 0190163d")
    assert done.code == 0
    assert server.bodies("jobs.find") == [{"prefixes": ["0190163d86", "0190163d"]}]
    assert server.bodies("jobs.cancel") == [{"ids": [OTHER.bytes, JOB.bytes, JOB.bytes]}]


def test_a_prefix_of_no_job(server: FakeDispatcher) -> None:
    done = pulse(server.directory, "ctl jobs cancel 0190163d ffffffff")
    assert (done.code, done.err) == (1, "pulse: no job has an id that begins with ffffffff\n")
    assert server.bodies("jobs.cancel") == []


def test_a_prefix_of_several_jobs(server: FakeDispatcher) -> None:
    """Nothing is done; the jobs that may be meant are listed, and that there are more than are shown."""
    many = [answers.job(id=bytes([*OTHER.bytes[:15], number]), name="a\x1bb") for number in range(11)]
    server._script = {**server._script, "jobs.find": {"jobs": [answers.job(), *many[:1]]}}
    done = pulse(server.directory, "ctl jobs cancel 0190163d")
    assert (done.code, done.out) == (1, "")
    assert done.err.splitlines() == [
        "pulse: 0190163d may mean several jobs; more characters tell which:",
        f"pulse:   {JOB}  DEAD_LETTERED  resize",
        f"pulse:   {UUID(bytes=many[0]['id'])}  DEAD_LETTERED  a\\x1bb",
    ]
    assert server.bodies("jobs.cancel") == []
    server._script = {**server._script, "jobs.find": {"jobs": many}}
    said = pulse(server.directory, "ctl jobs get 0190163d").err.splitlines()
    assert (len(said), said[-1]) == (12, "pulse:   and more")


@pytest.mark.parametrize("command", ["get", "pause", "resume", "trigger", "preview", "delete", "update --priority 3"])
def test_a_schedule_by_its_key(server: FakeDispatcher, command: str) -> None:
    verb, *options = command.split(" ", 1)
    assert pulse(server.directory, f"ctl schedules {verb} nightly {' '.join(options)}").code == 0
    (body,) = server.bodies(f"schedules.{verb}")
    assert body["id"] == SCHEDULE.bytes


def test_jobs_of_a_schedule_by_its_key(server: FakeDispatcher) -> None:
    assert pulse(server.directory, "ctl jobs list --schedule nightly").code == 0
    assert server.bodies("jobs.list")[0]["schedule"] == SCHEDULE.bytes


def test_a_word_for_no_schedule(server: FakeDispatcher) -> None:
    rows = [{"id": SCHEDULE.bytes, "name": "report", "key": key} for key in ("nightly", "weekly", None)]
    server._script = {**server._script, "schedules.list": {"schedules": rows, "next": None}}
    done = pulse(server.directory, "ctl schedules delete nightyl")
    said = "pulse: no schedule has the key 'nightyl', or an id that begins so; similar keys: nightly\n"
    assert (done.code, done.err) == (1, said)
    assert server.bodies("schedules.delete") == []


@pytest.mark.parametrize(
    "line",
    ["submit resize --topic imagse", "topics get imagse", "topics set imagse --timeout 5", "jobs list --topic imagse"],
)
def test_a_topic_with_a_similar_name(server: FakeDispatcher, line: str) -> None:
    """Where the name is right, or JSON is wanted, nothing is said."""
    policy = {"topic": {"topic": "imagse", "policy": {}, "handlers": []}}
    server._script = {**server._script, "topics.get": policy, "topics.set": policy, "jobs.list": {"jobs": []}}
    said = "pulse: no job waits or runs in topic imagse, and no worker here serves it; similar topics: images\n"
    done = pulse(server.directory, f"ctl {line}")
    assert (done.code, done.err) == (0, said)
    assert pulse(server.directory, f"ctl {line} --json").err == ""
    assert pulse(server.directory, f"ctl {line.replace('imagse', 'images')}").err == ""


def test_a_new_topic_is_nothing_to_warn_of(server: FakeDispatcher) -> None:
    assert pulse(server.directory, "ctl submit resize --topic letters").err == ""


def test_a_handler_with_a_similar_name(server: FakeDispatcher) -> None:
    server._script = {**server._script, "jobs.list": {"jobs": []}}
    said = "pulse: no worker here has a handler resise; similar ones: resize\n"
    assert pulse(server.directory, "ctl jobs list --name resise").err == said
    assert pulse(server.directory, "ctl jobs list --name resize").err == ""


def worker(slot: int, pid: int | None, *, started: int = 0) -> dict[str, object]:
    identity, host = f"1f/b/1/{pid}.7/shop-9-{slot}", None if pid is None else "shop"
    return {"identity": identity, "name": f"shop-9-{slot}", "pid": pid, "host": host, "started": started}


@pytest.mark.parametrize("word", ["shop-9-1", "77", "1f/b/1/77.7/shop-9-1", "1f/b/1/77"])
def test_a_worker_by_its_name_pid_or_identity(server: FakeDispatcher, word: str) -> None:
    """A whole name goes before others that begin so."""
    server._script = {**server._script, "workers.list": {"workers": [worker(1, 77, started=2), worker(10, 78)]}}
    done = pulse(server.directory, f"ctl workers drain {word}")
    assert done.code == 0
    assert done.out.splitlines() == [
        "shop-9-1 (pid 77 on shop) gets no more jobs.",
        "It finishes 2 jobs, then it ends, and its pool starts a new process in its place.",
    ]
    assert server.bodies("workers.drain") == [{"worker": "1f/b/1/77.7/shop-9-1"}]


def test_a_word_for_no_worker_or_several(server: FakeDispatcher) -> None:
    """Nothing is drained."""
    server._script = {**server._script, "workers.list": {"workers": [worker(1, 77), worker(10, None)]}}
    assert pulse(server.directory, "ctl workers drain shop").err.splitlines() == [
        "pulse: shop may mean several workers; more characters tell which:",
        "pulse:   shop-9-1  pid 77  shop",
        "pulse:   shop-9-10",
    ]
    none = "pulse: no worker here has the name or pid {!r}, or a name or identity that begins so; {}\n"
    for word, more in (("shpo-9-1", "similar names: shop-9-1, shop-9-10"), ("None", "pulse ctl workers lists them")):
        done = pulse(server.directory, f"ctl workers drain {word}")
        assert (done.code, done.err) == (1, none.format(word, more))
    assert server.bodies("workers.drain") == []


@pytest.mark.parametrize(("how", "says"), [
    ({"condition": "stopped"}, "It is stopped (SIGSTOP): nothing happens until it goes on."),
    ({"draining": True}, "It drains already."),
])  # fmt: skip
def test_a_worker_that_hears_nothing_of_it(server: FakeDispatcher, how: dict[str, object], says: str) -> None:
    server._script = {**server._script, "workers.list": {"workers": [{**worker(1, 77), **how}]}}
    assert pulse(server.directory, "ctl workers drain shop-9-1").out.splitlines()[-1] == says


@pytest.mark.parametrize("line", ["ctl workers drain shop-9-1 --json", "ctl workers --json drain shop-9-1"])
def test_who_is_drained_as_json(server: FakeDispatcher, line: str) -> None:
    server._script = {**server._script, "workers.list": {"workers": [worker(1, None)]}}
    assert pulse(server.directory, line).document == {
        "identity": "1f/b/1/None.7/shop-9-1", "name": "shop-9-1", "pid": None, "host": None
    }  # fmt: skip
    assert pulse(server.directory, "ctl workers drain shop-9-1").out.splitlines() == [
        "shop-9-1 gets no more jobs.", "It ends, and its pool starts a new process in its place."
    ]  # fmt: skip
