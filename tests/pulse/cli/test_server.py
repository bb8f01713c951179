"""Which server the commands ask, by the config file; what they say if none answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulse.cli.server import ServerHandle, _client_at, nobody_of
from pulse.client.discovery import LocalSocket, Refusal, UnansweredError
from pulse.errors import BadRequestError, ConfigError, NobodyAnswersError, UnavailableError
from pulse.routes import Queue


def test_the_config_file_is_read_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, settings of a server that are wrong keep no client out; what is named goes before it."""
    monkeypatch.chdir(tmp_path)
    for name in ("PULSE_CONFIG", "PULSE_RUNTIME_DIR", "PULSE_CONNECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PULSE_LEASE_S", "odd")
    assert ServerHandle(None, 1.0)._socket() is None
    monkeypatch.delenv("PULSE_LEASE_S")
    named = tmp_path / "other.toml"
    named.write_text('runtime_dir = "/run/b"\n', "utf-8")
    (tmp_path / "pulse.toml").write_text('runtime_dir = "/run/a"\n', "utf-8")
    assert ServerHandle(None, 1.0)._socket() == Path("/run/a/pulse.sock")
    monkeypatch.setenv("PULSE_CONFIG", str(named))
    assert ServerHandle(None, 1.0)._socket() == Path("/run/b/pulse.sock")
    assert ServerHandle(Path("/run/d.sock"), 1.0)._socket() == Path("/run/d.sock")
    monkeypatch.setenv("PULSE_CONNECT", "/run/e.sock")  # clients read it themselves
    assert ServerHandle(None, 1.0)._socket() is None


def test_topics_lead_to_queues_unless_a_server_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory in the file counts where nothing says which queue; one in the environment before all."""
    monkeypatch.chdir(tmp_path)
    for name in ("PULSE_CONFIG", "PULSE_RUNTIME_DIR", "PULSE_CONNECT"):
        monkeypatch.delenv(name, raising=False)
    queues = '[queues.a]\nserver = "/run/a.sock"\n[queues.b]\nserver = "/run/b.sock"\n[routes]\na = "a"\nb = "b"\n'
    (tmp_path / "pulse.toml").write_text(queues, "utf-8")
    server = ServerHandle(None, 1.0)
    with pytest.raises(ConfigError, match=r"has queues, .*: allowed are a topic, the id of a job, and .* \(a, b\)$"):
        server.elsewhere()
    for nothing in ("", None, 3):
        server.route(nothing)
        assert server.queue is None
    server.route("a")
    assert server._place() == "/run/a.sock"
    server.route("b")  # jobs of a topic that has moved are still there
    assert server._place() == "/run/a.sock"
    server.check_topic("a")
    with pytest.raises(BadRequestError, match=r"^topic 'b' belongs to queue b: a topic of queue a is allowed$"):
        server.check_topic("b")
    (tmp_path / "pulse.toml").write_text('runtime_dir = "/run/c"\n' + queues, "utf-8")
    server = ServerHandle(None, 1.0)
    assert server._place() == Path("/run/c/pulse.sock")
    server.route("b")
    assert server._place() == "/run/b.sock"
    for named in (ServerHandle(Path("/run/d.sock"), 1.0), ServerHandle(None, 1.0, "tls://d:1")):
        named.route("nowhere")
        assert (named.routes, named.queue) == (None, None)
    for name in ("PULSE_RUNTIME_DIR", "PULSE_CONNECT"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "/run/d")
            assert ServerHandle(None, 1.0).routes is None
            server = ServerHandle(None, 1.0)
            server.turn_to(Queue("a", "/run/a.sock"))  # it is named, too, and goes before the environment
            assert server._place() == "/run/a.sock"
            with pytest.raises(BadRequestError, match="belongs to queue b"):
                server.check_topic("b")


def test_what_is_not_named_here_is_the_server_of_a_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool tells its handlers of its own: a topic of another queue, where nobody serves it, is not meant for it."""
    monkeypatch.chdir(tmp_path)
    for name in ("PULSE_CONFIG", "PULSE_RUNTIME_DIR", "PULSE_CONNECT"):
        monkeypatch.delenv(name, raising=False)
    queues = (
        '[queues.a]\nserver = "/run/a/pulse.sock"\n[queues.b]\nserver = "tls://u@b:1"\n[routes]\na = "a"\nb = "b"\n'
    )
    file = tmp_path / "pulse.toml"
    file.write_text(queues, "utf-8")
    for name, value, own, other in (
        ("PULSE_CONNECT", "unix:///run/a/../a/pulse.sock", "a", "b"),
        ("PULSE_CONNECT", "tls://B:1", "b", "a"),
        ("PULSE_RUNTIME_DIR", "/run/a", "a", "b"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            server = ServerHandle(None, 1.0)
            server.route(other)
            server.check_topic(own)
            assert server.goes_by_topic
            with pytest.raises(BadRequestError, match=f"^topic '{other}' belongs to queue {other}: a topic of queue"):
                server.check_topic(other)
            ServerHandle(Path("/run/a/pulse.sock"), 1.0).check_topic("b")
            ServerHandle(None, 1.0, "tls://b:1").check_topic("a")
            assert not ServerHandle(Path("/run/a/pulse.sock"), 1.0).goes_by_topic
            patch.setenv(name, "/run/c")
            ServerHandle(None, 1.0).check_topic("nowhere")
            assert not ServerHandle(None, 1.0).goes_by_topic
    file.write_text('runtime_dir = "/run/a"\n' + queues, "utf-8")
    server = ServerHandle(None, 1.0)
    server.check_topic("a")
    with pytest.raises(BadRequestError, match="belongs to queue b"):
        server.check_topic("b")
    file.write_text('runtime_dir = "/run/a"\n', "utf-8")
    ServerHandle(None, 1.0).check_topic("b")


def test_a_supervisor_is_not_asked_from_elsewhere() -> None:
    with pytest.raises(NobodyAnswersError, match=r"on its own machine only: tls://localhost:1 leads to jobs$"):
        ServerHandle(None, 1.0, "tls://localhost:1").ask_supervisor("status")


def test_nobody_is_asked_where_others_may_write(tmp_path: Path) -> None:
    """Any of them could listen there; a directory that the user has named may be shared with a group."""
    tmp_path.chmod(0o770)
    refusals: list[Refusal] = []
    for named in (False, True):
        assert _client_at(LocalSocket(tmp_path / "supervisor.sock", named), 0.0, refusals) is None
    assert ["writable by others" in one.reason for one in refusals] == [True, False]


def test_all_that_went_wrong_is_said() -> None:
    """Not only the places where nobody listens."""
    assert nobody_of(UnansweredError("nobody"), UnavailableError("away")).message == "nobody; away"
    assert nobody_of(UnavailableError("away"), UnavailableError("away")).message == "away"
