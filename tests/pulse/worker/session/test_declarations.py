"""What a pool tells its server about the app, where the config file has several queues."""

from __future__ import annotations

import os

import msgspec
import pytest

import pulse
from pulse.routes import Queue, Routes
from pulse.worker.app_name import AppError
from pulse.worker.options import HostOptions, PoolOptions, PoolTopics
from pulse.worker.session.declarations import Declarations, OtherQueues, declarations_of

ROUTES = Routes(
    {name: Queue(name, f"/run/{name}/pulse.sock") for name in ("orders", "mail", "idle")},
    {"mail*": "mail", "pay": "orders", "default": "orders"},
)
app = pulse.App()


@app.handler("welcome", topic="mail")
async def welcome() -> None: ...


@app.handler("news", topic="mail.news")
async def news() -> None: ...


@app.handler("crunch")
async def crunch() -> None: ...


@app.handler("lost", topic="lost")
async def lost() -> None: ...


app.schedule("daily", every_s=60)(welcome)
app.schedule("hourly", every_s=60)(crunch)
app.schedule("paid", every_s=60, topic="pay")(welcome)
app.schedule("never", every_s=60, topic="nowhere")(crunch)
HANDLERS = ["crunch", "lost", "news", "welcome"]


def declared_by(queue: str | None, *topics: str) -> Declarations:
    """What a handler process declares, after its options have come to it as JSON."""
    chosen = PoolTopics(named=topics or None, queue=queue, routes=None if queue is None else ROUTES)
    sent = HostOptions(
        pool=PoolOptions(app="shop:app", topics=chosen), parent_pid=os.getpid(), name_fd=0, notes_fd=0, stack_fd=0
    )
    got = msgspec.json.decode(msgspec.json.encode(sent), type=HostOptions)
    assert got == sent
    return declarations_of(app, got.pool)


def told(queue: str | None, *topics: str) -> tuple[list[str], list[object], list[str]]:
    """Topics, keys of schedules, and names of handlers."""
    declared = declared_by(queue, *topics)
    schedules = declared.requests["schedules.declare"]["schedules"]
    assert isinstance(schedules, list)
    return list(declared.topics), [one["key"] for one in schedules], sorted(declared.handlers)


def test_a_pool_declares_what_belongs_to_its_queue() -> None:
    """
    A schedule goes by its own topic, else by its handler's; topics without a route belong to no queue.

    Handlers of other queues are not declared, unless a schedule of this queue fires them: a job that names no topic
    would get one that nobody serves there.
    """
    assert told("orders") == (["default"], ["hourly", "paid"], ["crunch", "welcome"])
    assert told("mail") == (["mail", "mail.news"], ["daily"], ["crunch", "news", "welcome"])


def test_topics_that_are_named_are_served() -> None:
    """With their handlers: so a queue is drained that had the topic before."""
    assert told("orders", "mail.news") == (["mail.news"], ["hourly", "paid"], ["crunch", "news", "welcome"])
    assert told("mail", "lost") == (["lost"], ["daily"], HANDLERS)


def test_without_queues_it_declares_everything() -> None:
    served = ["default", "lost", "mail", "mail.news"]
    assert told(None) == (served, ["daily", "hourly", "paid", "never"], HANDLERS)
    assert told(None, "mail")[2] == HANDLERS
    assert declared_by(None).left_out == OtherQueues()


def test_what_is_left_out_is_named() -> None:
    lost = ("lost", "nowhere")
    assert declared_by("orders").left_out == OtherQueues(("mail", "mail.news"), ("daily", "never"), lost)
    assert declared_by("mail").left_out == OtherQueues(("default", "pay"), ("hourly", "never", "paid"), lost)
    assert declared_by("mail", "lost", "pay").left_out == OtherQueues(
        ("default",), ("hourly", "never", "paid"), ("nowhere",)
    )


def test_an_app_that_the_queue_has_nothing_for() -> None:
    with pytest.raises(
        AppError,
        match=r"^shop:app has no topic of queue idle: it has default, lost, mail, mail\.news;"
        r" topics of the queue are none, and --topic names others$",
    ):
        declared_by("idle")
    assert told("idle", "x")[:2] == (["x"], [])
