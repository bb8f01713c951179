"""Producers, which submit jobs, and operators, who cancel, retry, change and delete them, over the socket."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import trio

from pulse.client.async_transport import dial
from pulse.client.discovery import LocalSocket
from pulse.errors import PulseError
from pulse.protocol import Frame, decode_any, encode
from tests.simulation.machine.patches import SOCKET
from tests.simulation.machine.process import Process
from tests.simulation.scenario import Job

if TYPE_CHECKING:
    from tests.simulation.world import World

ANSWER_S: Final = 6.0
PAUSE_S: Final = 0.5


async def call(kind: str, body: Mapping[str, object]) -> Frame | None:
    """One request on a connection of its own; None when the answer was lost."""
    with trio.move_on_after(ANSWER_S):
        try:
            stream, _ = await dial([LocalSocket(SOCKET, named=True)], {"protocol": 1, "role": "client"})
        except PulseError:
            return None
        try:
            await stream.send(encode(kind, 1, body))
            while True:
                for frame in await stream.receive():
                    if frame.request == 1:
                        return frame
        except PulseError:
            return None
        finally:
            with trio.CancelScope(shield=True):
                await stream.aclose()
    return None


class Producer:
    """Submits *jobs* at their times, each until it is acknowledged."""

    def __init__(self, world: World, jobs: list[Job]) -> None:
        self._world = world
        self._jobs = jobs

    async def main(self, process: Process) -> int:
        left = list(self._jobs)
        while left:
            await trio.sleep_until(process.began_s + left[0].at_s)
            due = [job for job in left if process.began_s + job.at_s <= trio.current_time()]
            answer = await call("submit", {"jobs": [_body(job) for job in due]})
            if answer is not None and answer.kind == "ok":
                there = {job.id for job in due} & self._world.database.rows.jobs.keys()  # it may have gone back since
                self._world.acknowledged += [job.id for job in due if job.id in there]
                left = [job for job in left if job.id not in there]
            elif answer is not None and decode_any(answer)["code"] != "unavailable":
                self._world.judge.fail(f"{process}: a submit was refused: {decode_any(answer)}")
                return 0
            else:
                await trio.sleep(PAUSE_S)
        return 0


def _body(job: Job) -> dict[str, object]:
    return {
        "name": job.name, "id": job.id, "priority": job.priority, "max_attempts": job.max_attempts,
        "timeout_s": job.timeout_s, "delay_s": job.delay_s,
        "topic": job.topic, "group_key": job.group,
    }  # fmt: skip


class Operator:
    def __init__(self, kind: str, jobs: list[bytes], **more: object) -> None:
        self._kind = kind
        self._body = {"ids": jobs, **more}

    async def main(self, _process: Process) -> int:
        await call(self._kind, self._body)
        return 0
