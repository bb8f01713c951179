"""A TCP proxy in front of a server's Unix socket, which can fall silent as a cut network does: no bytes, no end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, quote, urlsplit

_CHUNK_BYTES: Final = 65_536


class Proxy:
    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.connections = 0

    def cut(self) -> None:
        """From now on nothing gets through, in either direction; connections stay open and new ones are accepted."""
        self._open.clear()

    def restore(self) -> None:
        self._open.set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Proxy]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            await self._open.wait()
            behind_reader, behind_writer = await asyncio.open_unix_connection(self._socket)
            pumps = {
                asyncio.ensure_future(self._pump(reader, behind_writer)),
                asyncio.ensure_future(self._pump(behind_reader, writer)),
            }
            with contextlib.closing(behind_writer):
                try:
                    await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                finally:  # one side has ended, so does the other
                    for pump in pumps:
                        pump.cancel()
                    await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(_CHUNK_BYTES):
            await self._open.wait()
            sink.write(data)
            await sink.drain()
        await self._open.wait()


def socket_of(dsn: str) -> Path:
    """The Unix socket that *dsn* names by its directory."""
    query = parse_qs(urlsplit(dsn).query)
    return Path(query["host"][0], f".s.PGSQL.{query.get('port', ['5432'])[0]}")


def through(dsn: str, port: int) -> str:
    parts = urlsplit(dsn)
    user = parse_qs(parts.query).get("user", [parts.username or ""])[0]
    return f"postgresql://{quote(user, safe='')}@127.0.0.1:{port}{parts.path}?sslmode=disable"
