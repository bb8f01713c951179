"""Producers, which submit jobs, and operators, who cancel, retry, change and delete them, over the socket."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import trio

from pulse.protocol import decode_any
from tests.simulation.machine.asking import PAUSE_S, call
from tests.simulation.machine.process import Process
from tests.simulation.scenario import Job, SignalPlan

if TYPE_CHECKING:
    from tests.simulation.world import World


class Producer:
    """Submits *jobs* at their times, each until it is acknowledged."""

    def __init__(self, world: World, jobs: list[Job]) -> None:
        self._world = world
        self._jobs = jobs
        # A job that another one waits for may be deleted meanwhile.
        self._passing = {"unavailable", "not_found"} if any(job.after for job in jobs) else {"unavailable"}

    async def main(self, process: Process) -> int:
        left = list(self._jobs)
        while left:
            await trio.sleep_until(process.began_s + left[0].at_s)
            due = [job for job in left if process.began_s + job.at_s <= trio.current_time()]
            answer = await call("submit", {"jobs": [_body(job, self._world.deleted) for job in due]})
            if answer is not None and answer.kind == "ok":
                there = {job.id for job in due} & self._world.database.rows.jobs.keys()  # it may have gone back since
                self._world.acknowledged += [job.id for job in due if job.id in there]
                left = [job for job in left if job.id not in there]
            elif answer is not None and decode_any(answer)["code"] not in self._passing:
                self._world.judge.fail(f"{process}: a submit was refused: {decode_any(answer)}")
                return 0
            else:
                await trio.sleep(PAUSE_S)
        return 0


def _body(job: Job, deleted: set[bytes]) -> dict[str, object]:
    after = [one for one in job.after if one not in deleted]
    return {
        "name": job.name, "id": job.id, "priority": job.priority, "max_attempts": job.max_attempts,
        "timeout_s": job.timeout_s, "delay_s": job.delay_s,
        "topic": job.topic, "group_key": job.group,
        "after": after or None, "on_failure": job.on_failure if after else None,
    }  # fmt: skip


class SignalSender:
    """Sends *signals* at their times, each until it is acknowledged: a refused one may be wanted after a retry."""

    def __init__(self, world: World, signals: list[SignalPlan]) -> None:
        self._world = world
        self._signals = signals

    async def main(self, process: Process) -> int:
        left = list(self._signals)
        while left:
            await trio.sleep_until(process.began_s + min(one.at_s for one in left))
            for one in [one for one in left if process.began_s + one.at_s <= trio.current_time()]:
                body = {"id": one.job, "name": one.name, "payload": json.dumps(one.key), "key": one.key}
                answer = await call("jobs.signal", body)
                if answer is not None and answer.kind == "ok":
                    self._world.sent.append(one)
                    left.remove(one)
            await trio.sleep(PAUSE_S)
        return 0


class Operator:
    def __init__(self, kind: str, jobs: list[bytes], **more: object) -> None:
        self._kind = kind
        self._body = {"ids": jobs, **more}

    async def main(self, _process: Process) -> int:
        await call(self._kind, self._body)
        return 0
