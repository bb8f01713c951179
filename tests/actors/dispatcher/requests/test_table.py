"""What is written down of who asked, and what is refused or answered before the database is asked."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pulse import protocol
from pulse.errors import BadRequestError, UnavailableError
from pulse.store.operators.transaction import Acting, Operator
from pulse_actors.dispatcher.context import RequestContext
from pulse_actors.dispatcher.requests import jobs
from pulse_actors.dispatcher.requests.table import _who, pause_dispatch, set_topic

pytestmark = pytest.mark.anyio

JOB = uuid.uuid4().bytes


def context(**services: Any) -> RequestContext:
    return cast("RequestContext", SimpleNamespace(services=SimpleNamespace(**services)))


@pytest.mark.parametrize(("operator", "who"), [
    (Operator(), None), (Operator(user="ann"), "ann"), (Operator(7), "uid 7"), (Operator(7, "ann"), "uid 7 (ann)"),
    (Operator(7, "pulse", behalf="bob"), "uid 7 (pulse) for bob"),
])  # fmt: skip
def test_who_paused(operator: Operator, who: str | None) -> None:
    """The kernel's word where there is one; of another machine's client only its login is known."""
    assert _who(operator) == who


@pytest.mark.parametrize("lease_s", [0.5, 29.0])
async def test_no_topic_has_a_shorter_lease_than_the_server(lease_s: float) -> None:
    on = context(server=SimpleNamespace(policy={"lease_s": 30.0}))
    with pytest.raises(BadRequestError, match="at least the server's own, 30 s, is allowed"):
        await set_topic(on, protocol.TopicSet("t", {"lease_s": lease_s}))


async def test_what_changed_nothing_is_not_noted() -> None:
    await jobs._note(cast("Acting", None), "jobs.cancel", protocol.JobsWithDependents([JOB]), [])


async def test_a_worker_without_a_stack_to_show() -> None:
    worker = SimpleNamespace(facts=SimpleNamespace(name="w", pid=7))

    async def take(*_asked: object) -> None: ...

    on = context(registry=SimpleNamespace(holder_of=lambda _: (worker, 1)), stacks=SimpleNamespace(take=take))
    with pytest.raises(UnavailableError, match="worker w, pid 7, shows no stack"):
        await jobs.take_stack(on, protocol.ById(JOB))


@pytest.mark.parametrize(("ends", "said"), [
    ({"until": 3.0, "for_s": 1.0}, "until and for_s are both given"),
    ({"until": 2.0}, "a time in the future is allowed"),
])  # fmt: skip
async def test_no_pause_has_two_ends_or_one_in_the_past(ends: dict[str, Any], said: str) -> None:
    async def now_us() -> int:
        return 2_000_000

    on = context(store=SimpleNamespace(reads=SimpleNamespace(now_us=now_us)))
    with pytest.raises(BadRequestError, match=said):
        await pause_dispatch(on, protocol.DispatchGate("t", **ends))
