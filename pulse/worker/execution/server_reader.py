"""
Asks the server what handlers want to know of their jobs: what their parents did, and which signals have come.

Handlers ask in any thread, and few do: a handler process has one blocking client for all of them, which connects when
the first one asks. The server hides nothing from these requests, which need the role of a worker.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from pulse.app.workflows.parents import ParentPage
from pulse.app.workflows.steps import NextSignal
from pulse.client import records
from pulse.client.client import Client
from pulse.client.sealing import open_answer
from pulse.common import json_text
from pulse.job import Signal
from pulse.protocol import answers
from pulse.protocol.workflows import NextSignalAnswer
from pulse.security.codec import Codec, unseal

__all__ = ["ServerReader"]


class ServerReader:
    """
    Reads what the server has for the handlers of this process. Each method blocks; without an answer: PulseError.

    Args:
        socket: The server's socket; None: it is looked for, as the worker does it.
        codec: Decrypts results and payloads.
    """

    def __init__(self, socket: str | None, codec: Codec | None) -> None:
        self._socket: Final = socket
        self._codec: Final = codec
        self._making = threading.Lock()
        self._client: Client | None = None

    def parents(self, job: bytes, after: str | None) -> ParentPage:
        """A page of the parents of a job."""
        page = records.job_page(self._ask("handler.parents", {"id": job, "after": after}))
        if self._codec is not None:
            page = open_answer(self._codec, page)
        return page.jobs, page.next

    def next_signal(self, job: bytes, name: str, had: Sequence[int]) -> NextSignal:
        """
        The first signal of that name for a job, but for those that it has *had*.

        Raises:
            UnreadableError: Its payload is encrypted with a key that is missing here.
        """
        found = answers.read(NextSignalAnswer, self._ask("handler.signal", {"id": job, "name": name, "had": had}))
        if found.signal is None:
            return NextSignal(None, sent=found.sent, now_s=found.now, is_over=found.is_over)
        payload = None if found.signal.payload is None else json_text.loads(found.signal.payload)
        sent_at = datetime.fromtimestamp(found.signal.sent_at, UTC)
        signal = Signal(name=name, payload=unseal(self._codec, name, payload), sent_at=sent_at)
        return NextSignal(signal, found.signal.id, sent=found.sent, now_s=found.now)

    def _ask(self, kind: str, body: Mapping[str, object]) -> dict[str, object]:
        with self._making:
            if self._client is None:
                self._client = Client(self._socket)
        return self._client.request(kind, body, repeatable=True)
