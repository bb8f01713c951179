"""The servers that ``pulse ctl`` asks: the dispatcher on pulse.sock, the supervisor on supervisor.sock beside it."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from pulse.client.client import Client
from pulse.client.discovery import (
    LocalSocket,
    Refusal,
    Remote,
    UnansweredError,
    find_servers,
    nobody_answers,
    supervisors_beside,
    why_not,
)
from pulse.errors import ConfigError, NobodyAnswersError, PulseError
from pulse.queues.server_option import queue_at
from pulse.system.directories import CLIENT_SOCKET

if TYPE_CHECKING:
    from pulse.config import Settings
    from pulse.routes import Queue, Routes

_TOLD: Final = ("PULSE_RUNTIME_DIR", "PULSE_CONNECT")  # a server that the environment names goes before the file


class ServerHandle:
    """
    The server that this command line is about.

    Args:
        socket: The dispatcher's socket that the user named; None looks for it.
        timeout_s: Longest wait for one answer, seconds.
        address: Or the address that the user named.
    """

    def __init__(self, socket: Path | None, timeout_s: float, address: str | None = None) -> None:
        self._named = socket
        self._address = address
        self.timeout_s: Final = timeout_s
        self.queue: Queue | None = None  # of several in the config file, once one is meant

    def client(self, timeout_s: float | None = None, queue: Queue | None = None) -> Client:
        """A connection to the dispatcher, or to that of *queue*, for many requests; use it as a context manager."""
        settings = self._settings
        patience_s = None if settings is None else settings.connect_timeout_s  # None: what the environment says
        if timeout_s is not None:
            patience_s = 0.0
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        place = self._place() if queue is None else queue.server
        return Client(place, timeout_s=timeout_s, connect_timeout_s=patience_s)

    def elsewhere(self) -> Remote | None:
        """The address of the server, where it is asked over TCP; its supervisor is only there to be asked."""
        first = next(iter(self._servers), None)
        return first if isinstance(first, Remote) else None

    def ask(
        self,
        kind: str,
        body: Mapping[str, object] | None = None,
        *,
        repeatable: bool = False,
        timeout_s: float | None = None,
    ) -> dict[str, object]:
        """
        One question to the dispatcher.

        Args:
            kind: What is asked, in the words of the wire.
            body: The request's keys.
            repeatable: Asking twice does no more than asking once.
            timeout_s: Longest wait, seconds; by default what the command line says.

        Raises:
            NobodyAnswersError: No answer in time; the message lists where was looked.
            RefusedError: The server says no.
        """
        self.route(None if body is None else body.get("topic"))
        with self.client(timeout_s) as client:
            return client.request(kind, body, repeatable=repeatable)

    def ask_supervisor(
        self, kind: str, body: Mapping[str, object] | None = None, *, timeout_s: float | None = None
    ) -> dict[str, object]:
        """
        One question to the supervisor, at the first of its sockets that accepts.

        Raises:
            NobodyAnswersError: No answer in time; the message lists where was looked.
            RefusedError: The supervisor says no.
        """
        deadline_s = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        refusals: list[Refusal] = []
        for target in supervisors_beside(self._servers):
            client = _client_at(target, deadline_s, refusals)
            if client is not None:
                with client:
                    return client.request(kind, body)
        raise nobody_answers(refusals)

    @functools.cached_property
    def _servers(self) -> Sequence[LocalSocket | Remote]:
        return find_servers(self._place())

    @functools.cached_property
    def _configured(self) -> tuple[Settings, Routes] | None:
        """The settings and queues, if there is a config file; what the environment says, clients read themselves."""
        if not os.environ.get("PULSE_CONFIG") and not Path("pulse.toml").is_file():
            return None
        from pulse.config import load_with_routes

        return load_with_routes(os.environ)

    @property
    def _settings(self) -> Settings | None:
        return None if self._configured is None else self._configured[0]

    @property
    def routes(self) -> Routes | None:
        """The queues of the config file, if it has any, and nobody has named a server but by its queue."""
        if self._named is not None or self._address is not None:
            return None
        if self.queue is None and any(os.environ.get(name) for name in _TOLD):
            return None
        return self._configured[1] if self._configured is not None and self._configured[1].queues else None

    def route(self, topic: object) -> None:
        """
        Ask the queue of *topic* from now on, if there are several queues, and none is asked already.

        One that is asked already may have jobs of topics that have moved since.

        Raises:
            BadRequestError: It has no route.
        """
        if self.routes is not None and self.queue is None and isinstance(topic, str) and topic:
            self.queue = self.routes.of(topic)

    def check_topic(self, topic: str | None) -> None:
        """
        Check a topic that jobs are to get.

        What the environment or the file names is the server of a queue, too: a pool tells its handlers of its own, and
        what they submit is not meant for it therefore. Only this command line may go against the routes.

        Raises:
            BadRequestError: It belongs to another queue than the one that is asked.
        """
        if topic is not None and self._configured is not None and (asked := self._queue_asked) is not None:
            self._configured[1].check(topic, asked.name)

    @property
    def goes_by_topic(self) -> bool:
        """Whether the topic of a job decides on the queue: then it has to be given."""
        return self.routes is not None or self._queue_asked is not None

    @property
    def _queue_asked(self) -> Queue | None:
        """The queue that is asked; None: the file has none, or this command line names a server."""
        if self._named is not None or self._address is not None or self._configured is None:
            return None
        return self.queue or queue_at(self._configured[1], self._place())

    def turn_to(self, queue: Queue) -> None:
        """Ask *queue* from now on."""
        self.queue = queue

    def _place(self) -> str | Path | None:
        """The server as a client takes it; None: it is looked for."""
        if self._address is not None:
            return self._address
        if self.queue is not None:
            return self.queue.server
        socket = self._socket()
        if socket is None and self.routes is not None:
            raise ConfigError(
                "the config file has queues, and nothing says which one is meant: allowed are a topic, the id"
                f" of a job, and pulse ctl --queue NAME ({', '.join(self.routes.queues)})"
            )
        return socket

    def _socket(self) -> Path | None:
        if self._named is not None or any(os.environ.get(name) for name in _TOLD):
            return self._named
        directory = None if self._settings is None else self._settings.runtime_dir
        return None if directory is None else directory / CLIENT_SOCKET


def current_server() -> ServerHandle:
    """The server that the running command is about."""
    server = click.get_current_context().find_object(ServerHandle)
    assert server is not None  # noqa: S101 -- narrows the type: the group above made one
    return server


def nobody_of(*errors: PulseError) -> NobodyAnswersError:
    """One error for several: it lists each place once, and says what to start once."""
    refusals = [refusal for error in errors if isinstance(error, UnansweredError) for refusal in error.refusals]
    if any(not isinstance(error, UnansweredError) for error in errors):
        return NobodyAnswersError("; ".join(dict.fromkeys(error.message for error in errors)))
    return nobody_answers(refusals)


def _client_at(target: LocalSocket, deadline_s: float, refusals: list[Refusal]) -> Client | None:
    """A connected client; None when there is no server, which is then added to *refusals*."""
    reason = why_not(target)
    if reason is not None:
        refusals.append(Refusal(target, reason))
        return None
    client = Client(target.path, timeout_s=max(0.0, deadline_s - time.monotonic()), connect_timeout_s=0.0)
    try:
        return client.__enter__()
    except UnansweredError as error:
        refusals += error.refusals
    except NobodyAnswersError as error:
        refusals.append(Refusal(target, error.message))
    return None
