"""The embedded PostgreSQL as a child: preparation of each start, readiness, and its last log line."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from pulse.system import processes
from pulse_supervisor.children.events import Exited
from pulse_supervisor.children.spec import ChildSpec, postgres
from pulse_supervisor.postgres import embedded
from pulse_supervisor.postgres.postmaster import is_ready, postmaster_pid, settle

_BURIAL_S: Final = 10.0
_POLL_S: Final = 0.01
_BOOT_TRIES: Final = 3  # the first may meet leftovers of a killed predecessor; the third has a lasting cause


class PostgresChild:
    """
    A PostgreSQL that was prepared and can be started.

    Args:
        server: From ``embedded.prepare``.
        log: Called with an event and fields.
    """

    def __init__(self, server: embedded.EmbeddedServer, log: Callable[..., object]) -> None:
        self._server = server
        self._log = log
        self._was_ready = False
        self._failed_starts = 0

    @property
    def start_s(self) -> float:
        """How long it may take until it is ready, recovery included."""
        return embedded.START_S

    @property
    def dsn(self) -> str:
        """The DSN for the actors."""
        return self._server.dsn

    @property
    def child(self) -> ChildSpec:
        """Its ChildSpec."""
        return postgres(self._server.argv)

    def settle(self) -> None:
        """
        Make sure that nothing runs on its data directory; blocks, so call it from a thread.

        Raises:
            EmbeddedError: A process does not end.
        """
        settle(self._server.cluster, self._log)
        # PostgreSQL takes a postmaster that is dead but not reaped for a living one. If the supervisor was killed with
        # it, pid 1 has to reap it, which may take some time.
        deadline_s = time.monotonic() + _BURIAL_S
        while self._is_unburied() and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)

    def _is_unburied(self) -> bool:
        pid = postmaster_pid(self._server.cluster)
        return pid is not None and processes.state(pid) == "Z"

    def is_ready(self, pid: int) -> bool:
        """Whether the postmaster *pid* accepts connections."""
        answer = is_ready(self._server.cluster, pid)
        self._was_ready = self._was_ready or answer
        return answer

    def last_words(self) -> str:
        """The line of its log that most likely says why it does not run."""
        return embedded.last_words(self._server)

    def judge(self, exited: Exited) -> Exited:
        """Decide whether an end is one too many before it was ever ready."""
        if self._was_ready:
            return exited
        self._failed_starts += 1
        if self._failed_starts < _BOOT_TRIES:
            return exited
        return Exited(exited.code, exited.signal, hopeless=f"PostgreSQL does not start: {self.last_words()}")

    def release(self) -> None:
        """Release the state directory; the server must have ended."""
        embedded.release(self._server)
