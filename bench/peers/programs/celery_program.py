"""celery, in its own environment; it has no async handlers, so it has verbs of its own."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Final

import celery  # type: ignore[import-not-found]
from celery.signals import worker_ready  # type: ignore[import-not-found]

from bench.peers.programs.kit import PAD, Tally

PROCESSES: Final = 2
PREFETCH: Final = 64

verb, broker, directory = sys.argv[1:]
tally = Tally(Path(directory))
app = celery.Celery("bench", broker=broker)
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=PREFETCH,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)


def noop(number: int, pad: str) -> None:  # noqa: ARG001 - they come by these names
    """Nothing."""
    tally.count()


def stamp(submitted_s: float) -> None:
    """Tell how old it is."""
    tally.stamp(submitted_s)


noop_task = app.task(name="noop")(noop)
stamp_task = app.task(name="stamp")(stamp)


def produce() -> None:
    """One connection; it has no bulk call."""
    with app.connection_for_write() as connection, app.amqp.Producer(connection) as producer:
        for line in sys.stdin:
            question = json.loads(line)
            if question["do"] == "submit":
                for number in range(question["first"], question["first"] + question["count"]):
                    noop_task.apply_async(kwargs={"number": number, "pad": PAD}, producer=producer)
            elif question["do"] == "stamp":
                stamp_task.apply_async(kwargs={"submitted_s": time.monotonic()}, producer=producer)
            sys.stdout.write("{}\n")
            sys.stdout.flush()


def work() -> None:
    """A prefork pool."""

    def ready(**_: object) -> None:
        tally.ready()

    worker_ready.connect(ready, weak=False)
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=WARNING"]
    app.worker_main(["worker", "--pool=prefork", f"--concurrency={PROCESSES}", *quiet])


if verb == "produce":
    produce()
elif verb == "work":
    work()
