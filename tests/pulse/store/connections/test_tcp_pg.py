"""Connections over TCP: both ends look whether the other one is there, and give up in time."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Mapping

import pytest

from pulse.errors import UnavailableError
from pulse.store.connections import pool
from pulse.store.connections.pool import SERVER_SETTINGS, Target, connect
from tests.support.servers.proxy import Proxy, socket_of, through
from tests.support.store.helpers import Patch, Sql
from tests.support.waiting import until_async


@pytest.fixture
async def distant(dsn: str) -> AsyncIterator[str]:
    async with Proxy(socket_of(dsn)).running() as proxy:
        yield through(dsn, proxy.port)


async def test_keepalive(distant: str) -> None:
    """It asks whether its other end lives, and gives up what is not acknowledged within 3 s."""
    session = await connect(Target(distant, "test"), {})
    found: socket.socket = session._transport.get_extra_info("socket")  # type: ignore[attr-defined]
    options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
    assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert [found.getsockopt(socket.IPPROTO_TCP, option) for option in options] == [5, 2, 3, 3000]
    await session.close()


@pytest.mark.parametrize(
    ("is_distant", "limits", "count"), [(True, SERVER_SETTINGS, 4), (True, {}, 0), (False, SERVER_SETTINGS, 0)]
)
async def test_the_server_looks_for_the_client_too(
    dsn: str, distant: str, is_distant: bool, limits: Mapping[str, str], count: int
) -> None:
    """Where it is on another machine; and not where a pooler is only looked at."""
    session = await connect(Target(distant if is_distant else dsn, "test"), {}, limits=limits)
    asked = "SELECT count(*) FROM pg_settings WHERE name ~ '^tcp_(keepalives_|user_timeout)' AND source = 'session'"
    assert await session.fetchval(asked) == count
    await session.close()


async def test_a_connection_whose_server_cannot_be_asked_to_look_is_given_up(
    distant: str, connection: Sql, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(pool, "TCP_LIMITS", "SET tcp_user_timeout = 'never'")
    with pytest.raises(UnavailableError, match="does not answer"):
        await connect(Target(distant, "given up"), {})
    nobody = "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'given up')"
    await until_async(lambda: connection.fetchval(nobody), "its session ends")
