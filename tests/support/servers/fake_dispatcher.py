"""A server that answers each kind of request by script: the command line and the clients are tested against it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from pulse.errors import RefusedError
from pulse.system.directories import CLIENT_SOCKET
from tests.support.servers.fake_server import FakeServer, Heard, Peer

Body = Mapping[str, object]
Answer = Body | RefusedError | Callable[[dict[str, object]], "Body | RefusedError"]


class RuntimeDir:
    """A runtime directory with a path that is short enough for sockets; use it as a context manager."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="pulse-cli-", dir="/tmp"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.path)


class FakeDispatcher(FakeServer):
    """
    A server that answers each kind of request by script; use it as a context manager.

    Args:
        script: Kind of request -> the answer; a request of another kind gets no answer at all.
        frozen: Accept, and never say a word.
        hang_up: Kinds of requests that are answered by closing the connection, once each.

    Attributes:
        asked: The requests that came, in order.
    """

    def __init__(
        self,
        directory: Path,
        script: Mapping[str, Answer] | None = None,
        *,
        name: str = CLIENT_SOCKET,
        frozen: bool = False,
        hang_up: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(path=directory / name)
        self.asked: list[Heard] = []
        self._script = script or {}
        self._frozen = frozen
        self._hang_up = set(hang_up)

    def bodies(self, kind: str) -> list[dict[str, object]]:
        return [asked.body for asked in self.asked if asked.kind == kind]

    def answer(self, peer: Peer, heard: Heard) -> None:
        if self._frozen:
            return
        if heard.kind == "hello":
            super().answer(peer, heard)
            return
        self.asked.append(heard)
        if heard.kind in self._hang_up:
            self._hang_up.remove(heard.kind)
            peer.close()
            return
        scripted = self._script.get(heard.kind)
        answer = scripted(heard.body) if callable(scripted) else scripted
        if isinstance(answer, RefusedError):
            peer.send("error", heard.request, {"code": answer.code, "message": answer.message})
        elif answer is not None:
            peer.send("ok", heard.request, {**answer})
