"""Both clients against a real socket: they ask the same, read the same, and survive the same."""

from __future__ import annotations

import inspect
import os
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest

import pulse
from pulse.errors import (
    BadRequestError,
    ConflictError,
    NobodyAnswersError,
    NotFoundError,
    ProtocolError,
    TooLargeError,
    UnauthorizedError,
)
from pulse.protocol import encode
from tests.support.commandline import cli_answers as answers
from tests.support.servers.client_flavors import failing, using
from tests.support.servers.fake_dispatcher import Body, FakeDispatcher, RuntimeDir
from tests.support.servers.fake_server import FakeServer

pytestmark = pytest.mark.timed

JOB = uuid.UUID(int=1)
app = pulse.App()


@app.handler("resize")
async def resize(path: str) -> None:
    """Only submitted here."""


@pytest.fixture
def directory() -> Iterator[Path]:
    with RuntimeDir() as made:
        yield made.path


@pytest.fixture(params=["blocking", "asyncio", "trio"])
def flavor(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def ids_of(body: Body) -> Body:
    jobs: Any = body["jobs"]
    return {"ids": [one["id"] for one in jobs]}


def row(status: str, **more: object) -> Body:
    return {"job": {"id": JOB.bytes, "name": "a", "topic": "t", "status": status, "history": [], **more}}


def test_submit(flavor: str, directory: Path) -> None:
    with FakeDispatcher(directory, {"submit": ids_of}) as server:
        first, many = using(
            flavor, server.path, lambda client: client.submit(resize, {"path": "ä.png"}, priority=5, delay_s=10),
            lambda client: client.submit_many([{"name": "a", "id": JOB}, {"name": "b", "topic": "t"}]),
        )  # fmt: skip
        bodies: Any = server.bodies("submit")
        (one,), (two, three) = (body["jobs"] for body in bodies)
        assert one == {
            "name": "resize",
            "args": '{"path":"ä.png"}',
            "priority": 5,
            "delay_s": 10,
            "id": first.bytes,  # type: ignore[attr-defined]
        }
        assert many == [JOB, uuid.UUID(bytes=three["id"])]
        assert two["id"] == JOB.bytes


def test_a_name_that_nobody_handles(flavor: str, directory: Path) -> None:
    """The job has its id, and the caller is warned at its own line."""
    unhandled = [("sned_mail", "mail", ["send_mail"]), ("x", "mail", [])]
    script = {"submit": lambda body: {**ids_of(body), "unhandled": unhandled}}
    with FakeDispatcher(directory, script) as server, pytest.warns(pulse.UnhandledNameWarning) as warned:
        (job,) = using(flavor, server.path, lambda client: client.submit("sned_mail", id=JOB))
    assert job == JOB
    first, second = [str(one.message) for one in warned]
    assert first.startswith("no worker that serves topic mail has a handler named sned_mail; similar: send_mail. ")
    assert second.startswith("no worker that serves topic mail has a handler named x. ")
    caller = __file__ if flavor == "blocking" else inspect.getfile(using)  # who awaits it
    assert {one.filename for one in warned} == {caller}


def test_a_submit_whose_answer_was_lost_is_repeated(flavor: str, directory: Path) -> None:
    with FakeDispatcher(directory, {"submit": ids_of}, hang_up=frozenset({"submit"})) as server:
        (job_id,) = using(flavor, server.path, lambda client: client.submit("a"))
        first, second = server.bodies("submit")
        assert first == second
        assert first["jobs"][0]["id"] == job_id.bytes  # type: ignore[index, attr-defined]


def test_a_cancel_whose_answer_was_lost_is_not(flavor: str, directory: Path) -> None:
    with (
        FakeDispatcher(directory, hang_up=frozenset({"jobs.cancel"})) as server,
        pytest.raises(NobodyAnswersError, match=r"jobs\.cancel: .* may or may not have been done"),
    ):
        using(flavor, server.path, lambda client: client.cancel(JOB))
    assert len(server.bodies("jobs.cancel")) == 1


def test_a_server_that_comes_back(flavor: str, directory: Path) -> None:
    answers: dict[str, Any] = {"ping": {}}
    first = FakeDispatcher(directory, answers)
    second = FakeDispatcher(directory, answers)
    first.__enter__()
    restarted = threading.Event()

    def listen_again() -> None:
        second.__enter__()
        restarted.set()

    def restart(_: object) -> None:
        first.__exit__(None, None, None)
        threading.Timer(0.1, listen_again).start()

    latency = using(flavor, first.path, lambda client: client.ping(), restart, lambda client: client.ping())[2]
    assert restarted.wait(10)
    second.__exit__(None, None, None)
    assert isinstance(latency, float)
    assert latency >= 0.05


def test_wait_asks_until_the_end(flavor: str, directory: Path) -> None:
    rows = iter([row("PENDING"), row("RUNNING"), row("COMPLETED", result='{"ok": true}')])
    with FakeDispatcher(directory, {"jobs.get": lambda _: next(rows)}) as server:
        (job,) = using(flavor, server.path, lambda client: client.wait(JOB, timeout_s=5))
        assert isinstance(job, pulse.Job)
        assert (job.status, job.result) == (pulse.Status.COMPLETED, {"ok": True})


def test_wait_ends_in_time(flavor: str, directory: Path) -> None:
    with FakeDispatcher(directory, {"jobs.get": row("RUNNING")}) as server:
        started_s = time.monotonic()
        with pytest.raises(TimeoutError, match=r"is RUNNING after 0\.2 s"):
            using(flavor, server.path, lambda client: client.wait(JOB, timeout_s=0.2))
        assert 0.2 <= time.monotonic() - started_s < 2


@pytest.mark.parametrize(("error", "step"), [
    (NotFoundError("no such job"), lambda client: client.get(JOB)),
    (ConflictError("other args"), lambda client: client.submit("a", id=JOB)),
    (BadRequestError("no"), lambda client: client.schedules_create("a", every_s=1)),
])  # fmt: skip
def test_refusals_are_errors(flavor: str, directory: Path, error: Any, step: Callable[[Any], Any]) -> None:
    script: dict[str, Any] = {"jobs.get": error, "submit": error, "schedules.create": error, "ping": {}}
    with FakeDispatcher(directory, script) as server:
        refused = failing(flavor, type(error), error.message, step)
        using(flavor, server.path, refused, lambda client: client.ping())


TOPIC = {"topic": "t", "policy": {}, "handlers": []}
LIMIT = {"name": "api", "concurrency": 5, "running": 2, "topics": ["api", "mail"], "undeclared_at": 1.9e9}
CALLS: dict[str, Callable[[Any], Any]] = {
    "jobs.list": lambda client: client.jobs(status="PENDING", limit=5),
    "jobs.get": lambda client: client.get(str(JOB)), "jobs.cancel": lambda client: client.cancel(JOB),
    "jobs.retry": lambda client: client.retry(JOB), "jobs.why": lambda client: client.why(JOB),
    "jobs.parents": lambda client: client.parents(JOB, 5, "0f"), "jobs.stack": lambda client: client.stack(JOB),
    "schedules.create": lambda client: client.schedules_create(resize, {"path": "a"}, every_s=5),
    "schedules.get": lambda client: client.schedules_get(JOB),
    "schedules.list": lambda client: client.schedules_list(),
    "schedules.update": lambda client: client.schedules_update(JOB, cron="@daily", name=resize, args={"path": "b"}),
    "schedules.pause": lambda client: client.schedules_pause(JOB),
    "schedules.resume": lambda client: client.schedules_resume(JOB),
    "schedules.trigger": lambda client: client.schedules_trigger(JOB),
    "schedules.preview": lambda client: client.schedules_preview(JOB, 1),
    "schedules.delete": lambda client: client.schedules_delete(JOB),
    "dispatch.pause": lambda client: client.pause("t", "x", for_s=5.0),
    "dispatch.resume": lambda client: client.resume("t"), "dispatch.status": lambda client: client.dispatch_status(),
    "topics.list": lambda client: client.topics_list(), "topics.get": lambda client: client.topics_get("t"),
    "topics.groups": lambda client: client.topics_groups("t", 5),
    "topics.set": lambda client: client.topics_set("t", backoff="fixed:1", timeout_s=None),
    "topics.unset": lambda client: client.topics_unset("t", "backoff"),
    "limits.list": lambda client: client.limits(5, name="api"),
    "limits.set": lambda client: client.set_limit("api", group_key="g", concurrency=5, rate=None),
    "limits.unset": lambda client: client.unset_limit("api"),
    "workers.list": lambda client: client.workers(), "workers.drain": lambda client: client.drain_worker("h/b/1/w1"),
    "status": lambda client: client.status(),
    "ping": lambda client: client.request("ping", {}),
}  # fmt: skip


def test_everything_that_can_be_asked(flavor: str, directory: Path) -> None:
    paused = {"code": "paused", "text": "It is paused.", "advice": "resume", "details": {"last_job_id": JOB.bytes}}
    script: dict[str, Any] = {
        **answers.dispatcher(), "jobs.retry": {"done": [], "refused": [[JOB.bytes, "conflict"]]},
        "jobs.why": {"id": JOB.bytes, "name": "a", "topic": "t", "status": "PENDING", "reasons": [paused]},
        "schedules.pause": {"schedule": {"id": JOB.bytes, "name": "a", "kind": "every", "args": "{}", "paused": True}},
        **{f"topics.{verb}": {"topic": TOPIC} for verb in ("get", "set", "unset")}, "ping": {},
        "jobs.parents": {"jobs": [], "next": "1f"},
        "limits.list": {"limits": [LIMIT, {**LIMIT, "group_key": "g"}], "next": "3:apig"},
        **{f"limits.{verb}": {"limit": LIMIT} for verb in ("set", "unset")},
        "topics.groups": {"groups": [{"group_key": "g", "halted_by": JOB.bytes}], "is_all": True},
    }  # fmt: skip
    with FakeDispatcher(directory, script) as server:
        found: dict[str, Any] = dict(zip(CALLS, using(flavor, server.path, *CALLS.values()), strict=True))
        assert [asked.kind for asked in server.asked] == [*CALLS]
        assert [server.bodies(f"limits.{verb}") for verb in ("list", "set", "unset")] == [
            [{"limit": 5, "name": "api"}],
            [{"name": "api", "group_key": "g", "policy": {"concurrency": 5, "rate": None}}],
            [{"name": "api", "group_key": None}],
        ]
    assert found["jobs.list"].next == "abc"
    assert found["jobs.cancel"] == pulse.Changed((JOB,), ())
    assert found["jobs.retry"] == pulse.Changed((), ((JOB, "conflict"),))
    reason = pulse.Reason("paused", "It is paused.", "resume", {"last_job_id": str(JOB)})
    assert found["jobs.why"] == pulse.Why(JOB, "a", "t", pulse.Status.PENDING, (reason,))
    assert found["jobs.parents"] == pulse.JobPage((), "1f")
    assert found["jobs.stack"] == pulse.Stack("h/b/1/7.8/w", 7, 2, 'File "a.py", line 3 in crunch\n')
    assert found["schedules.pause"].paused
    assert found["schedules.trigger"] == answers.JOB_ID
    assert str(found["schedules.preview"][0]) == "2024-03-30 02:30:00+01:00"
    assert [found[f"topics.{verb}"] for verb in ("get", "set", "unset")] == [TOPIC] * 3
    limit = pulse.Limit(
        name="api", concurrency=5, running=2, topics=("api", "mail"), undeclared_at=datetime.fromtimestamp(1.9e9, UTC)
    )
    assert found["limits.list"] == pulse.LimitPage((limit, replace(limit, group_key="g")), "3:apig")
    assert (found["limits.set"], found["limits.unset"]) == (limit, None)
    assert found["topics.groups"] == {"groups": [{"group_key": "g", "halted_by": str(JOB)}], "is_all": True}
    assert found["workers.list"][0]["running"] == [str(answers.JOB_ID)]
    assert found["workers.drain"] is None
    assert found["ping"] == {}


def test_nobody_is_there(flavor: str, directory: Path) -> None:
    with pytest.raises(NobodyAnswersError) as caught:
        using(flavor, directory / "pulse.sock", lambda client: client.ping())
    looked = f"nobody answers; looked at {directory / 'pulse.sock'} (no such file or directory)"
    assert caught.value.message == f"{looked}; pulse-supervisor starts a server"


def test_where_clients_look(flavor: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stale = directory / "stale"
    stale.mkdir(0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(stale / "pulse.sock"))
    live = directory / "live" / "pulse"
    live.mkdir(0o700, parents=True)
    monkeypatch.setenv("PULSE_RUNTIME_DIR", str(stale))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory / "live"))
    with FakeDispatcher(live, {"ping": {}}) as server:
        using(flavor, None, lambda client: client.ping())  # type: ignore[arg-type]
        assert server.bodies("ping") == [{}]
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory / "none"))
    monkeypatch.setenv("TMPDIR", str(directory))
    if Path("/run/pulse/pulse.sock").exists():
        pytest.skip("a server runs on this machine")
    with pytest.raises(NobodyAnswersError) as caught:
        using(flavor, None, lambda client: client.ping())  # type: ignore[arg-type]
    looked = [f"{stale}/pulse.sock (connection refused)", f"; {directory}/none/pulse/pulse.sock, /run/pulse"]
    assert all(text in caught.value.message for text in [*looked, "/run/pulse/pulse.sock", f"pulse-{os.geteuid()}"])


def test_a_directory_that_others_control(flavor: str, directory: Path) -> None:
    directory.chmod(0o777)
    with (
        FakeDispatcher(directory, {"ping": {}}) as server,
        pytest.raises(NobodyAnswersError, match="writable by others"),
    ):
        using(flavor, server.path, lambda client: client.ping())


def test_a_server_that_says_nothing(flavor: str, directory: Path) -> None:
    with FakeDispatcher(directory, frozen=True) as server:
        started_s = time.monotonic()
        with pytest.raises(NobodyAnswersError):
            using(flavor, server.path, lambda client: client.ping(), timeout_s=0.2)
        assert time.monotonic() - started_s < 2


def test_an_answer_that_does_not_come(flavor: str, directory: Path) -> None:
    with FakeDispatcher(directory, {"ping": {}}) as server:
        said = r"status: no answer within 0\.2 s"
        overdue = failing(flavor, NobodyAnswersError, said, lambda client: client.status())
        using(flavor, server.path, overdue, lambda client: client.ping(), timeout_s=0.2)


def test_too_large_is_not_sent(flavor: str) -> None:
    with FakeServer(max_frame_bytes=10_000) as server:
        with pytest.raises(TooLargeError, match=r"submit: the request has \d+ bytes; the server accepts 10000"):
            using(
                flavor, server.path, lambda client: client.ping(),
                lambda client: client.submit("a", {"x": "y" * 20_000}),
            )  # fmt: skip
        assert [heard.kind for heard in server.wait_peer().log] == ["hello", "ping"]


def test_credentials_and_refusal(flavor: str) -> None:
    with FakeServer() as server:
        server.refuse_hello = ("unauthorized", "wrong password")
        with pytest.raises(UnauthorizedError, match="wrong password"):
            using(flavor, server.path, lambda client: client.ping(), user="ada", password="x")
        hello = server.first_hello()
        assert (hello["role"], hello["user"], hello["password"]) == ("client", "ada", "x")


@pytest.mark.parametrize(
    "reply",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\0", encode("ok", 0, {}), encode("welcome", 0, {"protocol": 1})],
)
def test_a_server_of_another_kind(flavor: str, directory: Path, reply: bytes) -> None:
    path = directory / "pulse.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(reply)
                connection.recv(1000)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(ProtocolError):
            using(flavor, path, lambda client: client.ping())
        thread.join(10)


def test_errors_in_the_body_stay_as_they_are(flavor: str, directory: Path) -> None:
    def fail(_: object) -> None:
        raise KeyError("mine")

    with FakeDispatcher(directory) as server, pytest.raises(KeyError, match="mine"):
        using(flavor, server.path, fail)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_who_reads_may_be_cancelled(backend: str) -> None:
    """When the task that reads for all is cancelled, another one reads on; each answer reaches its caller."""
    with FakeServer(silent_on=["ping"]) as server:

        async def run() -> list[str]:
            done: list[str] = []

            async def ask(name: str, scope: anyio.CancelScope) -> None:
                with scope:
                    assert await client.request("ping", {"name": name}) == {"name": name}
                    done.append(name)

            async with pulse.connect(server.path) as client, anyio.create_task_group() as group:
                peer = server.wait_peer()
                scopes = {name: anyio.CancelScope() for name in ("first", "second", "third")}
                asked = {}
                for name, scope in scopes.items():
                    group.start_soon(ask, name, scope)
                    asked[name] = await anyio.to_thread.run_sync(peer.take, "ping")
                scopes["first"].cancel()
                for name in ("third", "first", "second"):  # nobody waits for the first any more
                    peer.send("ok", asked[name].request, {"name": name})
            return done

        assert sorted(anyio.run(run, backend=backend)) == ["second", "third"]


def test_threads_take_turns(directory: Path) -> None:
    with FakeDispatcher(directory, {"submit": ids_of}) as server, pulse.Client(server.path) as client:
        ids: list[uuid.UUID] = []

        def work() -> None:
            ids.extend(client.submit("a") for _ in range(20))

        threads = [threading.Thread(target=work) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert len(set(ids)) == 100


def test_a_fork_while_a_thread_asks(directory: Path) -> None:
    """The child has a connection of its own; its parent's goes on."""
    script = (
        "import os, sys, threading, pulse, warnings\n"
        "warnings.simplefilter('ignore', DeprecationWarning)\n"  # of a fork beside threads: that is what is tested
        "client = pulse.Client(sys.argv[1])\n"
        "threading.Thread(target=lambda: print(client.request('slow')['said'])).start()\n"
        "sys.stdin.readline()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    client.ping()\n"
        "    os._exit(0)\n"
        "print(os.waitpid(child, 0)[1], flush=True)\n"
    )
    with FakeDispatcher(directory, {"ping": {}}) as server:
        line = [sys.executable, "-W", "error", "-c", script, str(server.path)]
        with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            parent = server.wait_peer()
            slow = parent.take("slow")
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            child = server.wait_peer()
            assert process.stdout.readline() == "0\n"
            child.wait_closed()
            parent.send("ok", slow.request, {"said": "still here"})
            assert process.stdout.readline() == "still here\n"
    assert (parent.count("ping"), child.count("ping")) == (0, 1)
