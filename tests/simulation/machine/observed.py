"""The connection of a simulated worker, as the judge sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pulse.client.async_transport import FrameStream
from pulse.protocol import Assign, Frame, FrameReader, Report, Reported, Result, Started, decode_body
from tests.simulation.machine.process import Process
from tests.simulation.machine.wire import End

if TYPE_CHECKING:
    from tests.simulation.world import World


class Observed(FrameStream):
    """The stream of a worker's *process*, read by the judge as well; hello was answered on it."""

    def __init__(self, stream: FrameStream, world: World, process: Process) -> None:
        end: Any = stream._stream
        super().__init__(end)
        self._reader, self._unread = stream._reader, stream._unread
        assert isinstance(end, End)
        self._link = end.link
        self._world = world
        self._process = process
        self._reports: dict[int, list[Result]] = {}

    async def send(self, data: bytes) -> None:
        judge, nemesis = self._world.judge, self._world.nemesis
        frames = FrameReader().feed(data)
        results = [one for frame in frames if frame.kind == "report" for one in self._report(frame)]
        named = [decode_body(Started, frame) for frame in frames if frame.kind == "started"]
        started = [one.pair for body in named for one in body.jobs]
        if started:
            nemesis.reached("started:before")
        if results:
            nemesis.reached("report:before")
        judge.sends(results)
        await super().send(data)
        judge.named(started, [one.pair for body in named for one in body.apart], self._link)
        judge.sent(results, self._link)
        if started:
            nemesis.reached("started:after")
        if results:
            nemesis.reached("report:after")

    def _report(self, frame: Frame) -> list[Result]:
        results = self._reports[frame.request or 0] = decode_body(Report, frame).results
        return results

    async def receive(self) -> list[Frame]:
        judge, process = self._world.judge, self._process
        frames = await super().receive()
        for frame in frames:
            if frame.kind == "assign":
                for job in decode_body(Assign, frame).jobs:
                    judge.told(process, (job.id, job.attempt))
                self._world.nemesis.reached("assign:after")
            elif frame.kind == "reported":
                stale = {ref.pair for ref in decode_body(Reported, frame).stale}
                judge.reported(process, self._reports.pop(frame.request or 0, []), stale)
        return frames
