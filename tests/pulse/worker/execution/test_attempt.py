"""What a handler gets of its job."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import pulse
from pulse.app.workflows.steps import NextSignal
from pulse.protocol import Assignment
from pulse.worker.execution.attempt import Attempt, arguments_for
from pulse.worker.execution.link import AttemptLink
from pulse.worker.execution.server_reader import ServerReader

app = pulse.App()


class Pool: ...


@app.handler("n")
async def handler(ctx: pulse.Context, pool: Pool = pulse.provided(), **given: int) -> None: ...


def attempt(args: str, **extra: object) -> Attempt:
    told = {name: msgspec.Raw(msgspec.msgpack.encode(value)) for name, value in extra.items()}
    return Attempt(Assignment(bytes(16), 1, "n", "t", args, None, 30.0, told), app.handlers["n"], 0.0)


@pytest.mark.parametrize("args", ["[1]", "7", "null"])
def test_args_that_are_no_object(args: str) -> None:
    with pytest.raises(TypeError, match="args are not an object"):
        arguments_for(attempt(args), app.handlers["n"], {})


def test_what_the_worker_fills_is_not_among_the_args() -> None:
    """A job cannot replace it either."""
    one, pool = attempt('{"x": 1, "pool": 2, "ctx": 3}'), Pool()
    found = arguments_for(one, app.handlers["n"], {Pool: pool})
    assert found == {"x": 1, "pool": pool, "ctx": one.context}
    assert one.context.args == {"x": 1, "pool": 2, "ctx": 3}


@pytest.mark.parametrize("previous", [None, "a word", 7, ["released"]])
def test_what_a_newer_server_may_say_of_the_attempt_before(previous: object) -> None:
    assert attempt("{}", previous=previous).context.previous is None


class Owner:
    identity = None
    reader = None


def test_a_server_that_names_no_worker_has_no_fences() -> None:
    """Nothing in the database would say whose job it is."""
    assert AttemptLink(Owner(), attempt("{}")).fence is None  # type: ignore[arg-type]


class Answers:
    def request(self, kind: str, _body: object, *, repeatable: bool) -> dict[str, Any]:
        assert (kind, repeatable) == ("handler.signal", True)
        return {"sent": 2, "now": 9.5, "is_over": True}


def test_a_signal_that_has_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = ServerReader(None, None)
    monkeypatch.setattr(reader, "_client", Answers())
    assert reader.next_signal(bytes(16), "approval", [1, 2]) == NextSignal(None, sent=2, now_s=9.5, is_over=True)
