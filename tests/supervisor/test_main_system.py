"""The runtime directory, the service manager, and the command line, with real processes."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pulse.common.version import VERSION
from pulse_supervisor import main
from tests.support.systems.peers import Peer
from tests.support.systems.supervisor_kit import Rig, four, supervisor
from tests.support.systems.system import short_directory
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.system]


class Manager:
    """A service manager: a datagram socket that keeps its messages."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.setblocking(False)
        self.told: list[str] = []
        self.kept: dict[str, socket.socket] = {}

    def heard(self, text: str) -> list[str]:
        """The messages so far with *text* in them; descriptors that come with them are kept."""
        with contextlib.suppress(BlockingIOError):
            while True:
                data, fds, _, _ = socket.recv_fds(self._socket, 4096, 4)
                message = data.decode()
                self.told.append(message)
                name = message.partition("FDNAME=")[2]
                if message.startswith("FDSTOREREMOVE=1") and name in self.kept:
                    self.kept.pop(name).close()
                if fds:
                    self.kept[name] = socket.socket(fileno=fds[0])
        return [message for message in self.told if text in message]

    def wait(self, text: str) -> str:
        return until(lambda: self.heard(text), f"the manager is told {text}")[0]

    def close(self) -> None:
        self._socket.close()
        for sock in self.kept.values():
            sock.close()


def command(
    *words: str, env: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PULSE_")}
    return subprocess.run(
        [sys.executable, "-m", "pulse_supervisor.main", *words], env={**inherited, **(env or {})}, cwd=cwd,
        check=False, capture_output=True, text=True, timeout=30,
    )  # fmt: skip


class TestRuntimeDirectory:
    def test_a_second_one_is_refused_by_one_line(self) -> None:
        """The line names the directory and the pid of the holder; the holder and its sockets are untouched."""
        with supervisor(four()) as first:
            first.wait_ready()
            with supervisor(four(), directory=first.directory) as second:
                assert second.wait_exit() == 1
                holder = f"another pulse-supervisor (pid {first.pid})"
                assert second.lines() == [
                    f"pulse-supervisor: runtime directory {first.directory} is in use by {holder}"
                ]
                assert second.acts() == []
            assert first.ask("ping") == {}

    def test_what_is_not_a_socket_is_not_removed(self) -> None:
        with short_directory() as place:
            (place / "pulse.sock").write_text("mine")
            with supervisor(four(), directory=place) as rig:
                assert rig.wait_exit() == 1
                assert rig.lines() == [f"pulse-supervisor: {place / 'pulse.sock'} is not a socket: move it away"]
            assert (place / "pulse.sock").read_text() == "mine"

    def test_a_socket_in_use_is_not_taken_away(self) -> None:
        """A program that listens on pulse.sock keeps it; the supervisor says so in one line and exits 1."""
        with short_directory() as directory, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
            stranger.bind(f"{directory}/pulse.sock")
            stranger.listen()
            ended = command("--runtime-dir", str(directory), "--dsn", "host=x")
            assert ended.returncode == 1
            (line,) = [line for line in ended.stderr.splitlines() if line.startswith("pulse-supervisor: ")]
            assert line.startswith(f"pulse-supervisor: socket {directory}/pulse.sock is in use")
            assert Path(f"{directory}/pulse.sock").is_socket()

    def test_a_long_path_is_refused_with_its_length(self) -> None:
        with short_directory() as place, supervisor(four(), directory=place / ("x" * 120)) as rig:
            assert rig.wait_exit() == 1
            assert re.search(r"pulse-supervisor: socket path .* has \d+ bytes", rig.lines()[0])


class TestServiceManager:
    @pytest.fixture(params=["path", "abstract"])
    def manager_env(self, request: pytest.FixtureRequest) -> object:
        return request.param

    def listen(self, kind: object, place: Path) -> tuple[Manager, str]:
        """A manager at an address of that kind, and NOTIFY_SOCKET for it."""
        if kind == "path":
            return Manager(str(place / "notify")), str(place / "notify")
        name = f"pulse-test-{os.getpid()}-{place.name}"
        return Manager("\0" + name), "@" + name

    def test_it_tells_ready_watchdog_and_stopping(self, manager_env: object) -> None:
        """READY with the main pid, WATCHDOG while all answer, STOPPING at the end; no child can speak to it."""
        with short_directory() as place:
            manager, address = self.listen(manager_env, place)
            with (
                contextlib.closing(manager),
                supervisor(four(), env={"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000000"}) as rig,
            ):
                ready = manager.wait("READY=1")
                assert f"MAINPID={rig.pid}" in ready.splitlines()
                assert "STATUS=ready" in ready.splitlines()
                for pid in rig.pids().values():
                    assert b"NOTIFY_SOCKET" not in Path(f"/proc/{pid}/environ").read_bytes()
                manager.wait("WATCHDOG=1")
                assert manager.heard("STOPPING=1") == []
                rig.process.terminate()
                manager.wait("STOPPING=1")
                assert rig.wait_exit() == 0

    def test_the_watchdog_is_not_fed_while_an_actor_is_away(self) -> None:
        """From the kill of a frozen actor until its successor answers, WATCHDOG=1 does not come."""
        with short_directory() as place:
            manager, address = self.listen("path", place)
            env = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "100000"}
            with contextlib.closing(manager), supervisor(four(), env=env) as rig:
                manager.wait("READY=1")
                manager.wait("WATCHDOG=1")
                manager.told.clear()
                os.kill(rig.pids()["scheduler"], signal.SIGKILL)
                manager.wait("STATUS=scheduler starting")
                told = manager.told
                away = told.index("STATUS=scheduler starting")
                until(lambda: manager.heard("") and "STATUS=ready" in told[away:], "the scheduler is back")
                assert "WATCHDOG=1" not in told[away : told.index("STATUS=ready", away)]

    @pytest.mark.rest
    def test_a_restart_refuses_no_client(self) -> None:
        """The next supervisor takes the sockets over, with connections from meanwhile."""
        with short_directory() as place, contextlib.ExitStack() as clients:
            manager, address = self.listen("path", place)
            clients.enter_context(contextlib.closing(manager))
            env = {"NOTIFY_SOCKET": address}
            with supervisor(four(), directory=place / "run", env=env) as first:
                manager.wait("READY=1")
                assert set(manager.kept) == {"pulse.sock", "supervisor.sock"}
                first.process.terminate()
                assert first.wait_exit() == 0
            clients.enter_context(socket.socket(socket.AF_UNIX)).connect(str(place / "run" / "pulse.sock"))
            operator = clients.enter_context(Peer(place / "run" / "supervisor.sock"))
            manager.told.clear()
            with supervisor(four(), directory=place / "run", env=env, handed=manager.kept) as second:
                second.wait_act("dispatcher lets a client in")
                assert operator.hello().welcome["server"]
                for pid in (second.pid, *second.pids().values()):
                    environ = Path(f"/proc/{pid}/environ").read_bytes() if pid != second.pid else b""
                    assert b"LISTEN_FDS" not in environ
                assert [path.name for path in (place / "run").iterdir() if path.name == "pulse.sock"]

    @pytest.mark.rest
    @pytest.mark.parametrize("stale", ["elsewhere", "no name", "no socket"])
    def test_what_was_handed_over_and_is_of_no_use(self, stale: str) -> None:
        """A socket of another place, or without its name, is closed, and a new one is made: clients find that."""
        with short_directory() as place, contextlib.ExitStack() as open_things:
            path = place / ("other" if stale == "elsewhere" else "run") / "pulse.sock"
            path.parent.mkdir(0o700)
            given = open_things.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            if stale != "no socket":
                given.bind(str(path))
                given.listen()
            if stale == "no name":
                path.unlink()
            with supervisor(four(), directory=place / "run", handed={"pulse.sock": given}) as rig:
                rig.wait_ready()
                with socket.socket(socket.AF_UNIX) as client:
                    client.connect(str(place / "run" / "pulse.sock"))
                    rig.wait_act("dispatcher lets a client in")


class TestCommand:
    def test_help_shows_examples(self) -> None:
        done = command("--help")
        assert done.returncode == 0
        assert "pulse-supervisor --app shop.jobs:app --processes 4" in done.stdout

    @pytest.mark.parametrize(("words", "begin"), [
        (["--version", "--dsn", "nonsense"], f"pulse-supervisor {VERSION}\n"), (["--print-unit", "tmpfiles"], "# "),
    ], ids=["version", "unit"])  # fmt: skip
    def test_what_starts_nothing(
        self, words: list[str], begin: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(main, "run", lambda _: pytest.fail("it starts"))
        assert main.cli.main(words, standalone_mode=False) == 0
        assert capsys.readouterr().out.startswith(begin)

    @pytest.mark.parametrize("words", [
        ["--nonsense"], ["--processes", "many"], ["--processes", "2"], ["--spares", "2"], ["--log-level", "loud"],
        ["extra"],
    ])  # fmt: skip
    def test_bad_usage_is_one_line_and_exit_2(self, words: list[str]) -> None:
        with short_directory() as place:
            done = command(*words, cwd=place)
        assert (done.returncode, done.stdout) == (2, "")
        assert re.fullmatch(r"pulse-supervisor: .*\n", done.stderr)

    def test_a_bad_setting_is_one_line_and_exit_1(self) -> None:
        with short_directory() as place:
            done = command(env={"PULSE_LEASE_S": "soon"}, cwd=place)
        assert (done.returncode, done.stdout) == (1, "")
        assert re.fullmatch(r"pulse-supervisor: PULSE_LEASE_S is 'soon': .*\n", done.stderr)

    def test_a_pool_of_which_queue_is_one_line_and_exit_1(self) -> None:
        """Before anything is started: it would say that it is ready, and end, again and again."""
        with short_directory() as place:
            (place / "pulse.toml").write_text('[queues.mail]\nserver = "mail.sock"\n', "utf-8")
            done = command("--app", "shop:app", "--runtime-dir", str(place / "run"), cwd=place)
            assert not (place / "run").exists()
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == (
            "pulse-supervisor: the config file has queues: app is 'shop:app', and none is allowed: pulse worker --queue"
            " NAME runs a pool for one of them (mail)\n"
        )

    def test_a_directory_that_cannot_be_made_is_one_line_and_exit_1(self) -> None:
        with short_directory() as place:
            (place / "file").write_text("")
            done = command("--runtime-dir", str(place / "file" / "run"), cwd=place)
        assert done.returncode == 1
        assert re.fullmatch(r"pulse-supervisor: runtime directory .* cannot be (made|used): .*\n", done.stderr)


@pytest.mark.rest
def test_a_log_that_nobody_reads_any_more_stops_nothing() -> None:
    """When the reader of stderr has gone, the supervisor goes on, answers, and stops cleanly."""
    with supervisor(four(), pipes_log=True) as rig:
        close_log(rig)
        os.kill(rig.pids()["pause"], signal.SIGKILL)
        until(lambda: rig.actor("pause")["restarts"] == 1, "the actor is back")
        rig.process.terminate()
        assert rig.wait_exit() == 0


@pytest.mark.rest
def test_a_failure_that_nobody_reads_keeps_its_exit_code() -> None:
    with supervisor(four(pause=["--crash", "refuse"]), pipes_log=True) as rig:
        assert rig.process.stderr is not None
        rig.process.stderr.close()
        assert rig.wait_exit() == 1


def close_log(rig: Rig) -> None:
    assert rig.process.stderr is not None
    for line in rig.process.stderr:
        if b"supervisor_ready" in line:
            break
    rig.process.stderr.close()
