"""What a pool tells its server about the app, where the config file has several queues."""

from __future__ import annotations

from pathlib import Path

import pytest

import pulse
from pulse.worker.app_name import AppError
from pulse.worker.options import PoolOptions
from pulse.worker.session.declarations import declarations_of

FILE = """
[queues.orders]
server = "unix:///run/orders/pulse.sock"
[queues.mail]
server = "tls://shop@mail.example:7420"
[queues.idle]
server = "/run/idle/pulse.sock"
[routes]
"mail*" = "mail"
pay = "orders"
default = "orders"
"""
app = pulse.App()


@app.handler("welcome", topic="mail")
async def welcome() -> None: ...


@app.handler("crunch")
async def crunch() -> None: ...


@app.handler("lost", topic="lost")
async def lost() -> None: ...


app.schedule("daily", every_s=60)(welcome)
app.schedule("hourly", every_s=60)(crunch)
app.schedule("paid", every_s=60, topic="pay")(welcome)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pulse.toml").write_text(FILE, "utf-8")
    for name in ("PULSE_CONFIG", "PULSE_CONNECT"):
        monkeypatch.delenv(name, raising=False)


def told(server: str | None, topics: tuple[str, ...] | None = None) -> tuple[list[str], list[object]]:
    """Topics, and keys of schedules."""
    declared = declarations_of(app, PoolOptions(app="shop:app", socket=server, topics=topics))
    schedules = declared.requests["schedules.declare"]["schedules"]
    assert isinstance(schedules, list)
    return list(declared.topics), [one["key"] for one in schedules]


def test_a_pool_declares_what_belongs_to_the_queue_of_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule goes by its own topic, else by its handler's; topics without a route belong to no queue."""
    assert told("/run/orders/pulse.sock") == (["default"], ["hourly", "paid"])
    assert told("tls://mail.example:7420") == (["mail"], ["daily"])
    monkeypatch.setenv("PULSE_CONNECT", "tls://ann@mail.example:7420")
    assert told(None) == (["mail"], ["daily"])


def test_topics_that_are_named_are_served() -> None:
    assert told("tls://mail.example:7420", ("lost",)) == (["lost"], ["daily"])


@pytest.mark.parametrize("server", [None, "/run/other/pulse.sock", "tls://mail.example:7421"])
def test_elsewhere_it_declares_everything(server: str | None) -> None:
    """As without routes."""
    assert told(server) == (["default", "lost", "mail"], ["daily", "hourly", "paid"])


def test_an_app_that_the_queue_has_nothing_for() -> None:
    with pytest.raises(
        AppError,
        match=r"^shop:app has no topic of queue idle: it has default, lost, mail; allowed are none, and --topic$",
    ):
        told("/run/idle/pulse.sock")
    assert told("/run/idle/pulse.sock", ("x",)) == (["x"], [])
