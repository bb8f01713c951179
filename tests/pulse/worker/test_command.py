"""What `pulse worker` refuses before it starts anything, and the exit code that the supervisor gets."""

from __future__ import annotations

import sys

import click
import pytest
from click.testing import CliRunner

from pulse.errors import HandlerError
from pulse.worker import __main__ as program
from pulse.worker import command
from pulse.worker.command import worker
from pulse.worker.pool import parent
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
