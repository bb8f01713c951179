"""The order of the examples: its worker is killed while it waits and while it works; each service is called once."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

import pulse
from examples.order import LARGE_CENTS, order, pay
from pulse.job import handler_process
from tests.support.systems.system_kit import Pool, Whole, run
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.patient, pytest.mark.rest]

NUMBER = 7


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shop")


@pytest.fixture(scope="module")
def pool(whole: Whole, shop: Path) -> Pool:
    return whole.pool("--processes", "1", app="examples.order:app", env={"SHOP": str(shop)})


@pytest.fixture(autouse=True)
def _new(shop: Path) -> None:
    for file in shop.iterdir():
        file.unlink()


def test_a_worker_is_killed_in_the_middle(whole: Whole, pool: Pool, shop: Path) -> None:
    """Once while the job waits, and once in a step: the mail is a pipe that nobody reads."""
    os.mkfifo(shop / "mail")
    with pulse.Client(whole.path) as client:
        job = client.submit(pulse.call(order, NUMBER, LARGE_CENTS))
        until(lambda: client.get(job).awaited_signal == "payment", "it waits for the payment", 60)
        (idle,) = pool.workers()
        os.kill(idle, signal.SIGKILL)
        assert [pay(client, job, "receipt 1"), pay(client, job, "receipt 1")] == [True, False]
        until(lambda: client.get(job).awaited_signal == "approval", "it waits for the approval", 60)
        client.signal(job, "approval", payload=True)
        until(lambda: (shop / "stock").read_text("utf-8").count("\n") == 2, "it is shipped", 60)
        until(lambda: client.get(job).status == "RUNNING", "it mails", 60)
        before = client.get(job)
        process = handler_process(str(before.locked_by))
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        until(lambda: client.get(job).status == "RUNNING" and client.get(job).attempts > before.attempts, "again", 60)
        mail = list[str]()
        reader = threading.Thread(target=lambda: mail.append((shop / "mail").read_text("utf-8")), daemon=True)
        reader.start()
        assert client.result(job, str, timeout_s=60) == "shipped"
        reader.join(60)
        done = client.get(job)
        # The worker that was killed may have been sent the job in its last moment: then it was given back.
        begun = [one.outcome for one in done.history if one.outcome != "released"]
        assert (begun, done.crashes) == (["snoozed", "snoozed", "crashed"], 1)
    assert mail == [f"{NUMBER} is on its way\n"]
    assert (shop / "stock").read_text("utf-8") == f"{NUMBER} reserved\n{NUMBER} shipped\n"


def test_no_payment_comes(whole: Whole, pool: Pool, shop: Path) -> None:
    with pulse.Client(whole.path) as client:
        job = client.submit(pulse.call(order, NUMBER, LARGE_CENTS, pay_within_s=0.2))
        assert client.result(job, str, timeout_s=60) == "canceled"
        with pytest.raises(pulse.PulseError, match="COMPLETED"):
            pay(client, job, "too late")
    assert (shop / "stock").read_text("utf-8") == f"{NUMBER} reserved\n{NUMBER} released\n"
    assert "no payment" in (shop / "mail").read_text("utf-8")


def test_it_is_not_approved(whole: Whole, pool: Pool, shop: Path) -> None:
    with pulse.Client(whole.path) as client:
        job = client.submit(pulse.call(order, NUMBER, LARGE_CENTS))
        pay(client, job, "receipt 1")
        client.signal(job, "approval", payload=False)
        assert client.result(job, str, timeout_s=60) == "refused"
    assert (shop / "bank").read_text("utf-8") == f"{NUMBER} refunded, key {job} refund\n"


def test_the_script(whole: Whole, pool: Pool, shop: Path) -> None:
    made = run("examples.order", ["8", "120000"], {**whole.env, "SHOP": str(shop)}, within_s=60)
    assert made.stdout.splitlines() == ["paid: True", "paid again: False", "shipped"], made
