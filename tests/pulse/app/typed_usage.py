# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""What type checkers say of calls: `make lint` fails if one accepts a wrong line below, or refuses another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_type
from uuid import UUID

import pulse

MYPY: bool = False  # mypy takes it for true, and does not look at what it does not mean
app = pulse.App()


@app.handler("resize")
async def resize(path: str, width: int = 64) -> Mapping[str, bool]:
    return {path: bool(width)}


@app.handler("send")
async def send(ctx: pulse.Context, to: str, *, copies: int = 1) -> str:
    return f"{ctx.name}{to}{copies}"


@app.handler("report")
def report(ctx: pulse.Context, day: str) -> int:
    return len(ctx.name + day)


@app.handler("index", batch=100)
def index(jobs: list[pulse.BatchJob[Mapping[str, int]]]) -> Mapping[UUID, int | Exception]:
    assert_type(jobs[0].args, Mapping[str, int])
    return {job.id: sum(job.args.values()) for job in jobs}


def calls(client: pulse.Client, job: pulse.Job) -> None:
    assert_type(pulse.call(resize, "a.png"), pulse.Call[Mapping[str, bool]])
    assert_type(pulse.call(resize, path="a.png", width=3), pulse.Call[Mapping[str, bool]])
    assert_type(pulse.call(send, "me", copies=2), pulse.Call[str])
    assert_type(pulse.call(report, day="today"), pulse.Call[int])
    client.submit(pulse.call(send, "me"), priority=5)
    client.submit_many([{"name": pulse.call(resize, "a.png"), "priority": 5}])
    client.schedules_create(pulse.call(report, "today"), every_s=60)
    assert_type(job.result_as(int), int)
    assert_type(client.result(job.id, dict[str, int], timeout_s=5), dict[str, int])


def refused() -> None:
    if MYPY:
        pulse.call(resize)  # type: ignore[call-overload]
        pulse.call(resize, 3)  # type: ignore[call-overload]
        pulse.call(resize, "a.png", hight=3)  # type: ignore[call-arg, arg-type]
        pulse.call(send, "me", 2)  # type: ignore[call-overload]
        pulse.call(report, 7)  # type: ignore[call-overload]
        pulse.call("resize")  # type: ignore[call-overload]
    else:
        pulse.call(resize)  # pyright: ignore[reportCallIssue]
        pulse.call(resize, 3)  # pyright: ignore[reportCallIssue, reportArgumentType]
        pulse.call(resize, "a.png", hight=3)  # pyright: ignore[reportCallIssue]
        pulse.call(send, "me", 2)  # pyright: ignore[reportCallIssue, reportArgumentType]
        pulse.call(report, 7)  # pyright: ignore[reportCallIssue]
        pulse.call("resize")  # pyright: ignore[reportCallIssue, reportArgumentType]
