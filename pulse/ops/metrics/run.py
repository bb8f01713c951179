"""The endpoint's life: get the address, serve, and end at a signal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Set as AbstractSet
from pathlib import Path
from socket import socket
from typing import Final, cast

import structlog

from pulse.errors import ConfigError, PathError
from pulse.ops.metrics.server import MetricsAddress, MetricsServer
from pulse.ops.metrics.snapshot import MetricsSource
from pulse.system.sockets import addresses

AGAIN_S: Final = 5.0  # between two tries to get an address that somebody else has

log = structlog.get_logger()


def serve(
    where: str, server: str | Path | None, topics: int, stops: AbstractSet[signal.Signals], *, insists: bool
) -> None:
    """
    Serve until one of the signals *stops* comes, which must be blocked.

    Args:
        where: The address.
        server: The dispatcher's socket; None: it is looked for.
        topics: With series of their own.
        stops: What ends it.
        insists: Wait for an address that is taken.

    Raises:
        ConfigError: The address is taken, or not ours.
    """
    address = MetricsAddress(where)
    made = _listen(address, stops, insists=insists)
    if made is None:
        return
    endpoint = MetricsServer(made, MetricsSource(server, topics))
    threading.Thread(target=endpoint.serve_forever, kwargs={"poll_interval": 60.0}, daemon=True).start()
    log.info("metrics_served", address=_shown(made.getsockname()))
    signal.sigwait(stops)
    endpoint.server_close()
    if address.path is not None:
        address.path.unlink(missing_ok=True)


def _listen(address: MetricsAddress, stops: AbstractSet[signal.Signals], *, insists: bool) -> socket | None:
    """The listening socket; None: this process is to end."""
    while True:
        try:
            return address.listen()
        except PathError as error:
            if not insists:
                raise ConfigError(error.message) from None
            log.warning("metrics_address_taken", address=address.text, error=error.message)
        if signal.sigtimedwait(stops, AGAIN_S) is not None:
            return None


def _shown(name: str | tuple[object, ...]) -> str:
    return name if isinstance(name, str) else addresses.joined(str(name[0]), cast("int", name[1]))
