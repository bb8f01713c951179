"""Which consumers a bridge takes. With NATS: test_nats_system.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig

from pulse.bridge.nats import NatsOptions, _ensure_consumer
from pulse.errors import ConfigError

pytestmark = pytest.mark.anyio


async def ensure(there: ConsumerConfig, subject: str | None = None) -> None:
    class JetStream:
        async def consumer_info(self, stream: str, consumer: str) -> SimpleNamespace:
            assert (stream, consumer) == ("S", "c")
            return SimpleNamespace(config=there)

    options = NatsOptions(["nats://h:1"], stream="S", consumer="c", subject=subject)
    await _ensure_consumer(cast("JetStreamContext", JetStream()), options)


async def test_one_that_suits() -> None:
    there = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, filter_subject="orders.eu")
    await ensure(there)
    await ensure(there, "orders.eu")


@pytest.mark.parametrize(("there", "said"), [
    (ConsumerConfig(ack_policy=AckPolicy.NONE), "S has other acknowledgements: a pull consumer with explicit"),
    (ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, deliver_subject="x"), "S pushes: a pull consumer with explicit"),
    (ConsumerConfig(ack_policy=AckPolicy.EXPLICIT), r"^--subject is orders\.eu: .* is there already, with >$"),
], ids=["acknowledgements", "push", "subject"])  # fmt: skip
async def test_one_that_does_not(there: ConsumerConfig, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        await ensure(there, "orders.eu")
