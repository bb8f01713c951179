"""The servers that ``pulse ctl`` asks: the dispatcher on pulse.sock, the supervisor on supervisor.sock beside it."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from pulse.client.client import Client
from pulse.client.discovery import LocalSocket, Remote, find_servers, why_not
from pulse.errors import NobodyAnswersError
from pulse.system.directories import CLIENT_SOCKET, SUPERVISOR_SOCKET

LOOKED: Final = "nobody answers; looked at "  # how a NobodyAnswersError begins that lists places


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

    def client(self, timeout_s: float | None = None) -> Client:
        """A connection to the dispatcher, for many requests; use it as a context manager."""
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        return Client(self._address if self._address is not None else self._socket(), timeout_s=timeout_s)

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
        remote = self.elsewhere()
        if remote is not None:
            raise NobodyAnswersError(
                f"{kind} is asked of the supervisor, on its own machine: {remote} leads to jobs only"
            )
        deadline_s = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        looked: list[str] = []
        for target in self._supervisor_targets():
            client = _client_at(target, deadline_s, looked)
            if client is not None:
                with client:
                    return client.request(kind, body)
        raise NobodyAnswersError(LOOKED + "; ".join(looked))

    def _supervisor_targets(self) -> list[LocalSocket]:
        beside = [one for one in self._servers if isinstance(one, LocalSocket)]
        return [replace(one, path=one.path.with_name(SUPERVISOR_SOCKET)) for one in beside]

    @functools.cached_property
    def _servers(self) -> Sequence[LocalSocket | Remote]:
        return find_servers(self._address if self._address is not None else self._socket())

    def _socket(self) -> Path | None:
        told = ("PULSE_RUNTIME_DIR", "PULSE_CONNECT")
        if self._named is None and not any(os.environ.get(name) for name in told):
            self._named = _configured_socket()
        return self._named


def current_server() -> ServerHandle:
    """The server that the running command is about."""
    server = click.get_current_context().find_object(ServerHandle)
    assert server is not None  # noqa: S101 -- narrows the type: the group above made one
    return server


def _client_at(target: LocalSocket, deadline_s: float, looked: list[str]) -> Client | None:
    """A connected client; None when there is no server, which is then added to *looked*."""
    reason = why_not(target)
    if reason is not None:
        looked.append(f"{target.path} ({reason})")
        return None
    client = Client(target.path, timeout_s=max(0.0, deadline_s - time.monotonic()))
    try:
        return client.__enter__()
    except NobodyAnswersError as error:
        looked.append(error.message.removeprefix(LOOKED))
        return None


def _configured_socket() -> Path | None:
    """The socket in the runtime directory that the config file names, if there is such a file and it names one."""
    if not os.environ.get("PULSE_CONFIG") and not Path("pulse.toml").is_file():
        return None
    from pulse.config import load

    directory = load(os.environ).runtime_dir
    return None if directory is None else directory / CLIENT_SOCKET
