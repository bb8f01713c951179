"""The time of a TLS handshake, found out with the certificate in use; and what a hello must not have in it."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from anyio.streams.tls import TLSStream

from pulse.config import Settings
from pulse.errors import ProtocolError
from pulse.protocol import Hello, Role
from pulse.protocol.messages import HandlerInfo
from pulse.security.tls import handshake_s, server_context
from pulse_actors.dispatcher.net.handshake import refuse_unstorable
from pulse_actors.dispatcher.net.listener import Listener
from tests.support.servers.certificates import Authority


@pytest.fixture
def listener(tmp_path: Path) -> Listener:
    mine = Authority(tmp_path).issue("server", "localhost")
    settings = Settings(listen="127.0.0.1:0", tls_cert=mine.cert, tls_key=mine.key)
    return Listener(cast("Any", SimpleNamespace(host=None)), settings)


def test_a_handshake_is_tried(tmp_path: Path) -> None:
    """With a client's hello, up to the answer; with client certificates or without."""
    ca = Authority(tmp_path)
    mine = ca.issue("server", "localhost")
    for client_ca in (None, ca.file):
        context = server_context(mine.cert, mine.key, client_ca)
        heard: list[object] = []

        def hear(
            connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext, to: list[object] = heard
        ) -> None:
            to.append(connection)

        context.sni_callback = hear
        context.keylog_filename = str(tmp_path / "secrets")  # there are none before the server has answered
        assert 0.0 < handshake_s(context) < 1.0
        assert "SERVER_HANDSHAKE_TRAFFIC_SECRET" in (tmp_path / "secrets").read_text()
        assert len(heard) == 3
        assert all(cast("ssl.SSLObject", one).shared_ciphers() for one in heard)


def test_those_who_come_wait_for_as_long(listener: Listener) -> None:
    assert listener._handshakes.each_s > 0.0
    assert Listener(cast("Any", SimpleNamespace(host=None)), Settings())._handshakes.each_s == 0.0


@pytest.mark.anyio
async def test_none_begins_before_its_turn(listener: Listener) -> None:
    waited: list[str] = []

    async def wait(source: str, network: str) -> None:
        waited.extend((source, network))
        raise TimeoutError

    class Closed:
        is_closed = False

        async def aclose(self) -> None:
            self.is_closed = True

    listener._handshakes.wait = wait  # type: ignore[method-assign]
    stream = Closed()
    assert await listener._secured(cast("Any", stream), "10.0.0.1", "10.0.0.0/24") is None
    assert (waited, stream.is_closed) == (["10.0.0.1", "10.0.0.0/24"], True)


@pytest.mark.anyio
async def test_who_waited_has_time_left(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a long line has waited for nearly as long as it may: its handshake has a time of its own."""
    until_s: list[float] = []
    secured: Any = object()

    async def wait(source: str, network: str) -> None:
        assert (source, network) == ("10.0.0.1", "10.0.0.0/24")
        until_s.append(anyio.current_effective_deadline())
        await anyio.sleep(0.05)

    async def wrap(*_: object, **__: object) -> object:
        until_s.append(anyio.current_effective_deadline())
        return secured

    listener._handshakes.wait = wait  # type: ignore[method-assign]
    monkeypatch.setattr(TLSStream, "wrap", wrap)
    assert await listener._secured(cast("Any", None), "10.0.0.1", "10.0.0.0/24") is secured
    waiting_s, shaking_s = until_s
    assert waiting_s + 0.05 <= shaking_s < float("inf")


def test_clients_choose_no_dear_handshake(tmp_path: Path) -> None:
    """A key exchange in a large finite field would take the loop 100 ms: none is offered."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("package openssl is not installed")
    mine = Authority(tmp_path).issue("server", "localhost")
    context = server_context(mine.cert, mine.key, None)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as thread:

        def accept() -> str:
            raw, _ = server.accept()
            with raw:
                raw.settimeout(10)
                try:
                    context.wrap_socket(raw, server_side=True).close()
                except ssl.SSLError as error:
                    return str(error.reason)
                return "accepted"

        for groups, found in (("ffdhe8192", "NO_SUITABLE_KEY_SHARE"), ("P-256", "accepted")):
            told = thread.submit(accept)
            where = f"127.0.0.1:{server.getsockname()[1]}"
            words = [openssl, "s_client", "-connect", where, "-groups", groups, "-tls1_3"]
            subprocess.run(words, input=b"", capture_output=True, check=False, timeout=20)
            assert told.result(20) == found


@pytest.mark.parametrize("said", [
    {"topics": ["a", "b\0"]}, {"names": ["b\0"]}, {"handlers": {"b\0": HandlerInfo()}},
    {"handlers": {"a": HandlerInfo(topic="b\0")}},
], ids=["topic", "name", "handler", "topic of a handler"])  # fmt: skip
def test_what_no_database_can_hold_is_refused(said: dict[str, Any]) -> None:
    refuse_unstorable(Hello(1, Role.WORKER, topics=["a"], names=["a"], handlers={"a": HandlerInfo(topic="t")}), 5)
    with pytest.raises(ProtocolError, match=r"hello: 'b\\x00' contains a NUL character") as refused:
        refuse_unstorable(Hello(1, Role.WORKER, **said), 5)
    assert refused.value.request == 5
