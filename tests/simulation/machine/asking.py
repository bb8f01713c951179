"""Requests of simulated processes, of clients and of handlers that wait for a signal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import trio

from pulse.app.workflows.parents import ParentPage
from pulse.app.workflows.steps import NextSignal
from pulse.client.async_transport import dial
from pulse.client.discovery import LocalSocket
from pulse.errors import NotFoundError, PulseError
from pulse.job import Signal
from pulse.protocol import Frame, decode_any, decode_body, encode
from pulse.protocol.workflows import NextSignalAnswer
from tests.simulation.machine.patches import SOCKET

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


class SimulatedReader:
    """``pulse.worker.execution.server_reader.ServerReader``, which does not block here: ``patches`` awaits it."""

    def parents(self, _job: bytes, _after: str | None) -> ParentPage:
        """Handlers read no results here."""
        return (), None

    async def next_signal(self, job: bytes, name: str, had: Sequence[int]) -> NextSignal:
        while True:
            frame = await call("handler.signal", {"id": job, "name": name, "had": had})
            if frame is not None and frame.kind == "ok":
                return _heard(name, decode_body(NextSignalAnswer, frame))
            if frame is not None and decode_any(frame)["code"] != "unavailable":
                raise NotFoundError(str(decode_any(frame)))
            await trio.sleep(PAUSE_S)


def _heard(name: str, answer: NextSignalAnswer) -> NextSignal:
    found = answer.signal
    if found is None:
        return NextSignal(None, sent=answer.sent, now_s=answer.now, is_over=answer.is_over)
    sent_at = datetime.fromtimestamp(found.sent_at, UTC)
    signal = Signal(name=name, payload=json.loads(found.payload or "null"), sent_at=sent_at)
    return NextSignal(signal, found.id, sent=answer.sent, now_s=answer.now)
