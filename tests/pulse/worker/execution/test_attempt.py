"""What a handler gets of its job."""

from __future__ import annotations

import pytest

import pulse
from pulse.protocol import Assignment
from pulse.worker.execution.attempt import Attempt, arguments_for

app = pulse.App()


class Pool: ...


@app.handler("n")
async def handler(ctx: pulse.Context, pool: Pool = pulse.provided(), **given: int) -> None: ...


def attempt(args: str) -> Attempt:
    return Attempt(Assignment(bytes(16), 1, "n", "t", args, None, 30.0), app.handlers["n"], 0.0)


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
