"""Commands that ask for more before they do anything."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.support.commandline.cli import PULSE, environment, run
from tests.support.commandline.tmux import screen
from tests.support.confidential import confidential

pytestmark = [pytest.mark.process]
ID = "0190163d-8694-739b-aea5-966c26f8ad91"
LOGIN = ("ctl", "login", "tls://127.0.0.1:9", "--user", "alice", "--no-check")


@pytest.mark.parametrize(("words", "code", "said"), [
    (("metrics",), 2, "no address is given: use --listen or set PULSE_METRICS"),
    (("ctl", "jobs", "change", ID), 2, "neither --priority nor --to-topic is given"),
    (("ctl", "top", "--once"), 3, "nobody answers"),
    (("ctl", "--socket", "/x", "--connect", "tls://h:1", "ping"), 2, "name two servers: one is allowed"),
    (("ctl", "jobs", "list", "--watch", "1", "--json"), 2, "--json"),
    (("passwd", "a:b"), 1, "user is 'a:b': a name without spaces, colons and commas is allowed"),
    (("migrate", "--print"), 2, "--print is allowed with --roles only"),
    (LOGIN, 1, "no password came on standard input"),
    (("ctl", "login", "tls://bob@127.0.0.1:9", "--user", "alice"), 1, "--user is 'alice' and the address says 'bob'"),
], ids=lambda one: " ".join(one[:4]) if isinstance(one, tuple) else "")  # fmt: skip
def test_what_is_missing_is_said(words: tuple[str, ...], code: int, said: str, tmp_path: Path) -> None:
    done = run(words, environment(tmp_path, HOME=str(tmp_path)))
    assert (done.code, bool(done.out)) == (code, "--json" in words)
    assert said in done.err
    assert not [*tmp_path.iterdir()]


def test_a_password_is_typed_unseen(tmp_path: Path) -> None:
    password = confidential("typ3d-word", "password of alice")
    with screen() as terminal:
        terminal.start(shlex.join([*PULSE, *LOGIN]), environment(tmp_path, HOME=str(tmp_path)), 120, 20)
        terminal.see("Password of alice:")
        terminal.type(password, "Enter")
        assert password not in terminal.see("saved in")
    assert password in (tmp_path / ".config" / "pulse" / "login.toml").read_text("utf-8")


def test_a_supervisor_is_asked_on_its_own_machine(tmp_path: Path) -> None:
    done = run(["ctl", "logs"], environment(tmp_path, HOME=str(tmp_path), PULSE_CONNECT="tls://queue.example:7420"))
    assert done.code == 3
    assert "on its own machine only: tls://queue.example:7420 leads to jobs" in done.err
