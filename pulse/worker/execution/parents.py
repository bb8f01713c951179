"""
Asks the server for the jobs that the job of a handler has waited for.

Handlers ask in any thread, and few do: a handler process has one blocking client for all of them, which connects when
the first one asks.
"""

from __future__ import annotations

import threading
from typing import Final

from pulse.app.workflows.parents import ParentPage
from pulse.client.client import Client
from pulse.security.codec import Codec
from pulse.worker.execution.attempt import Attempt

__all__ = ["ParentReader"]


class ParentReader:
    """
    Reads the parents of jobs.

    Args:
        socket: The server's socket; None: it is looked for, as the worker does it.
        codec: Decrypts their results.
    """

    def __init__(self, socket: str | None, codec: Codec | None) -> None:
        self._socket: Final = socket
        self._codec: Final = codec
        self._making = threading.Lock()
        self._client: Client | None = None

    def read(self, attempt: Attempt, after: str | None) -> ParentPage:
        """
        A page of the parents of the job of *attempt*; blocks.

        Raises:
            PulseError: No answer came, or the server has refused the request.
        """
        with self._making:
            if self._client is None:
                self._client = Client(self._socket, codec=self._codec)
        page = self._client.parents(attempt.job.id, after=after)
        return page.jobs, page.next
