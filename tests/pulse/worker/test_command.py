"""What `pulse worker` refuses before it starts anything, and the exit code that the supervisor gets."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pulse.config import load_routes
from pulse.errors import ConfigError, HandlerError
from pulse.system import processes
from pulse.worker import __main__ as program
from pulse.worker import command
from pulse.worker.command import worker
from pulse.worker.options import PoolOptions, PoolTopics
from pulse.worker.pool import parent, reload
from pulse.worker.pool.parent import REFUSED
from pulse.worker.service import REFUSED as HOPELESS


@pytest.mark.parametrize(("words", "said"), [
    (["--topic", "x" * 201], "1 to 200 characters are allowed"),
    (["--socket", "/nowhere", "--connect", "tls://localhost:1"], "--socket and --connect name two servers"),
    (["--queue", "mail", "--connect", "tls://localhost:1"], "--connect and --queue name two servers"),
])  # fmt: skip
def test_what_is_refused(words: list[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "configure_logging", lambda *_: None)
    monkeypatch.setattr(parent, "run_pool", lambda _: 0)
    done = CliRunner().invoke(worker, ["tests.support.apps.worker_app:app", *words])
    assert (done.exit_code, said in done.output) == (2, True)


@pytest.mark.parametrize("words", [[], ["--socket", "/nowhere"], ["--topic", "mail"]])
def test_where_there_are_several_queues_one_is_named(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What handler processes get is decided here, once."""
    file = tmp_path / "pulse.toml"
    file.write_text('[queues.mail]\nserver = "tls://mail.example:7420"\n[routes]\n"*" = "mail"\n', "utf-8")
    monkeypatch.setenv("PULSE_CONFIG", str(file))
    monkeypatch.setenv("PULSE_CONNECT", "tls://mail.example:7420")
    monkeypatch.setattr(command, "configure_logging", lambda *_: None)
    started: list[PoolOptions] = []
    monkeypatch.setattr(parent, "run_pool", started.append)
    app = "tests.support.apps.worker_app:app"
    done = CliRunner().invoke(worker, [app, *words])
    assert isinstance(done.exception, ConfigError)
    assert done.exception.message == "the config file has queues: --queue NAME is needed (mail)"
    assert (CliRunner().invoke(worker, [app, "--queue", "mail"]).exit_code, len(started)) == (0, 1)
    assert started[0].topics == PoolTopics(queue="mail", routes=load_routes(file))
    assert started[0].socket == "tls://mail.example:7420"


def test_the_config_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says cannot change between settings and routes."""
    file = tmp_path / "pulse.toml"
    file.write_text('[queues.mail]\nserver = "/run/mail.sock"\n', "utf-8")
    monkeypatch.chdir(tmp_path)
    for name in ("PULSE_CONFIG", "PULSE_CONNECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(command, "configure_logging", lambda *_: file.unlink())
    started: list[PoolOptions] = []
    monkeypatch.setattr(parent, "run_pool", started.append)
    done = CliRunner().invoke(worker, ["tests.support.apps.worker_app:app", "--queue", "mail"])
    assert (done.exit_code, [one.socket for one in started]) == (0, ["/run/mail.sock"])
    assert os.environ.pop("PULSE_CONNECT") == "/run/mail.sock"
    assert os.environ.pop("PULSE_CONFIG") == str(file), "for handlers in another directory"


def test_what_a_reloading_pool_is_started_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """The options that were given, but for what belongs to this process alone."""
    started: list[list[str]] = []
    monkeypatch.setattr(command, "configure_logging", lambda *_: None)
    monkeypatch.setattr(processes, "die_with_parent", lambda *_: None)
    monkeypatch.setattr(reload, "run_reloading", lambda app, words: started.append([app, *words]))
    app = "tests.support.apps.worker_app:app"
    given = ["--topic", "a", "--topic", "b", "--no-preload", "--concurrency", "3"]
    done = CliRunner().invoke(worker, [app, "--reload", "--parent-pid", "7", *given])
    assert (done.exit_code, done.output) == (0, "")
    words = ["--concurrency", "3", "--no-preload", "--topic", "a", "--topic", "b", "--backend", "asyncio"]
    assert started == [[app, app, *words]]


@pytest.mark.parametrize(("error", "words", "code"), [
    (HandlerError("no"), [], REFUSED), (HandlerError("no"), ["--parent-pid", "1"], HOPELESS),
    (click.UsageError("no"), ["--parent-pid", "1"], 2),
])  # fmt: skip
def test_another_start_would_not_help(
    error: Exception, words: list[str], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """For people and their scripts it is a refusal like others."""

    def refuse(**_options: object) -> None:
        raise error

    monkeypatch.setattr(worker, "main", refuse)
    monkeypatch.setattr(sys, "argv", ["pulse.worker", "jobs:app", *words])
    assert program.main() == code
    assert "no" in capsys.readouterr().err
