"""Which server a command works for, where there may be several queues."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from pulse.config import Settings
from pulse.errors import BadRequestError, ConfigError, PathError
from pulse.queues.server_option import chosen_server, queue_at, refuse_two
from pulse.routes import Queue, Routes

ONE = Routes({}, {})
SHOP = Routes({"mail": Queue("mail", "tls://mail.example:7420")}, {"*": "mail"})


@pytest.fixture(autouse=True)
def without_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PULSE_CONNECT", "PULSE_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)


def chosen(
    routes: Routes, named: str | None = None, queue: str | None = None, runtime_dir: Path | None = None
) -> str | Path | None:
    settings = Settings(runtime_dir=runtime_dir)
    return chosen_server(settings, routes, named, queue=queue, needed="--queue NAME is needed")


def test_what_is_named_counts() -> None:
    assert chosen(ONE, "/run/a.sock", runtime_dir=Path("/run/b")) == "/run/a.sock"
    assert chosen(SHOP, "/run/a.sock") == "/run/a.sock"
    assert chosen(SHOP, queue="mail", runtime_dir=Path("/run/b")) == "tls://mail.example:7420"
    assert chosen(ONE) is None


def test_the_environment_goes_before_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for every client; a dashboard of another server than `pulse ctl` asks would restart its actors."""
    assert chosen(SHOP, runtime_dir=Path("/run/b")) == Path("/run/b/pulse.sock")
    monkeypatch.setenv("PULSE_CONNECT", "tls://a:1")
    assert chosen(SHOP, runtime_dir=Path("/run/b")) is None
    assert chosen(SHOP, queue="mail") == "tls://mail.example:7420"


def test_of_several_queues_one_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^the config file has queues: --queue NAME is needed \(mail\)$"):
        chosen(SHOP)
    with pytest.raises(BadRequestError, match=r"^there is no queue 'post': allowed are mail$"):
        chosen(SHOP, queue="post")
    with pytest.raises(BadRequestError, match=r"'mail': allowed are those that the config file has in \[queues\], and"):
        chosen(ONE, queue="mail")


@pytest.mark.parametrize(("named", "error"), [("tls://a", ConfigError), ("/", PathError)])
def test_what_can_be_no_server_is_refused_at_once(named: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        chosen(ONE, named)


def test_the_queue_of_a_server_that_is_not_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSE_CONNECT", "tls://MAIL.example:7420")
    assert queue_at(SHOP, None) == SHOP.queues["mail"]
    assert queue_at(SHOP, "/run/b/pulse.sock") is None
    assert queue_at(ONE, None) is None


def test_two_servers() -> None:
    refuse_two({"--socket": None, "--connect": "tls://a:1", "--queue": None})
    with pytest.raises(click.UsageError, match=r"^--socket and --queue name two servers: one is allowed$"):
        refuse_two({"--socket": "/x", "--connect": None, "--queue": "mail"})
