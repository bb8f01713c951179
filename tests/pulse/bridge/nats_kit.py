"""A nats-server of the test's own, its streams, and bridges from them as processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import nats
import nats.errors
import nats.js.errors
import pytest
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, ConsumerInfo, RawStreamMsg, StreamConfig

from tests.support.commandline.warm import PULSE, program
from tests.support.servers.streams import JsonLines
from tests.support.systems.system import Body, short_directory
from tests.support.systems.system_kit import END_S, ROOT, Whole
from tests.support.waiting import until

_CHUNK_BYTES: Final = 65_536
_ACK: Final = b"$JS.ACK."
T = TypeVar("T")


class NatsServer:
    """
    A server with JetStream, on a port and in a directory that stay the same.

    Args:
        words: More of its command line.
        login: With which tests connect.
    """

    def __init__(self, program: str, directory: Path, words: Sequence[str], login: Mapping[str, Any]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.url = f"nats://127.0.0.1:{self.port}"
        self._login = login
        self._command = [
            program, "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(directory / "data"), *words,
        ]  # fmt: skip
        self._log = directory / "log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as sink:
            self.process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink)
        until(self._answers, "nats-server answers")

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.send_signal(number)
            process.wait(END_S)

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self._log.read_text("utf-8")
        with (
            contextlib.suppress(OSError, nats.errors.Error, TimeoutError),
            socket.create_connection(("127.0.0.1", self.port)),
        ):
            self.ask(lambda stream: stream.account_info())
            return True
        return False

    def ask(self, question: Callable[[JetStreamContext], Awaitable[T]]) -> T:
        """One question over a connection of its own."""

        async def answer() -> T:
            client = await nats.connect(self.url, allow_reconnect=False, **self._login)
            try:
                return await question(client.jetstream())
            finally:
                await client.close()

        return asyncio.run(answer())

    def stream(self, name: str, **options: Any) -> Stream:
        """A new stream of all subjects below its name."""
        config = StreamConfig(name=name, subjects=[f"{name}.>"], **options)
        self.ask(lambda stream: stream.add_stream(config))
        return Stream(self, name)


@dataclass(frozen=True)
class Stream:
    server: NatsServer
    name: str

    def publish(self, *data: object, message_id: str | None = None, **headers: str) -> None:
        """Messages: bytes as they are, else as JSON."""

        async def send(stream: JetStreamContext) -> None:
            own = {} if message_id is None else {"Nats-Msg-Id": message_id}
            for one in data:
                raw = one if isinstance(one, bytes) else json.dumps(one).encode()
                await stream.publish(f"{self.name}.new", raw, headers={**own, **headers} or None)

        self.server.ask(send)

    def consumer(self, **options: Any) -> None:
        """Make the consumer that bridges use."""
        config = ConsumerConfig(durable_name="c", **options)
        self.server.ask(lambda stream: stream.add_consumer(self.name, config))

    def info(self) -> ConsumerInfo:
        found: ConsumerInfo = self.server.ask(lambda stream: stream.consumer_info(self.name, "c"))
        return found

    def messages(self) -> list[RawStreamMsg]:
        """All that it has stored."""

        async def read(stream: JetStreamContext) -> list[RawStreamMsg]:
            state = (await stream.stream_info(self.name)).state
            return [await stream.get_msg(self.name, number) for number in range(1, state.last_seq + 1)]

        return self.server.ask(read)

    def delete_consumer(self) -> None:
        self.server.ask(lambda stream: stream.delete_consumer(self.name, "c"))

    def is_done(self, number: int) -> bool:
        """Whether so many messages were delivered, and none waits for its answer."""
        info = self.info()
        assert info.ack_floor is not None
        return info.ack_floor.stream_seq == number and not info.num_ack_pending

    def wait_done(self, number: int) -> ConsumerInfo:
        until(lambda: self.is_done(number), f"{number} messages of {self.name} are acknowledged", END_S)
        return self.info()


class BridgeProcess:
    """``pulse bridge``, with its log."""

    def __init__(self, whole: Whole, words: Sequence[str], env: Mapping[str, str], errors: Path) -> None:
        with errors.open("wb") as sink:
            self.process = program(
                PULSE, ["bridge", *words], [sys.executable, "-m", PULSE],
                env={**whole.env, "PULSE_CONNECT_TIMEOUT_S": "0", **env}, stdout=sink, stderr=sink, cwd=ROOT,
            )  # fmt: skip
        self._errors = errors
        self._log = JsonLines[Body](errors, dict, lambda entry: entry.get("event"))

    @property
    def said(self) -> str:
        return self._errors.read_text("utf-8")

    def log(self, event: str) -> list[Body]:
        return [*self._log.read(event)]

    def wait_log(self, event: str) -> Body:
        until(lambda: self.log(event) or self.process.poll() is not None, event, END_S)
        assert self.log(event), self.said
        return self.log(event)[-1]

    def stop(self, event: str = "bridge_stopped") -> Body:
        """What it says at its end."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(END_S) == 0, self.said
        return self.log(event)[-1]

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(END_S)


class Bridges:
    """Starts bridges, and ends what is left of them."""

    def __init__(self, whole: Whole, stack: contextlib.ExitStack) -> None:
        self._whole = whole
        self._stack = stack

    def start(
        self,
        stream: Stream,
        *words: str,
        url: str | None = None,
        env: Mapping[str, str] | None = None,
        wait: bool = True,
    ) -> BridgeProcess:
        errors = self._whole.directory / f"bridge-{stream.name}-{len(list(self._whole.directory.glob('bridge-*')))}"
        source = ["nats", "--stream", stream.name, "--consumer", "c", "--url", url or stream.server.url]
        made = BridgeProcess(self._whole, [*source, *words], env or {}, errors)
        self._stack.callback(made.kill)
        if wait:
            made.wait_log("bridge_ready")
        return made


class Hold:
    """
    A proxy in front of a server that keeps what a bridge sends from the first *mark* on.

    Args:
        listening: Where the bridge connects.
        connect: Connects to the server.
        mark: What is in the data then.
    """

    def __init__(self, listening: socket.socket, connect: Callable[[], socket.socket], mark: bytes) -> None:
        self._listening = listening
        self._connect = connect
        self._mark = mark
        self.holds = threading.Event()
        self.released = threading.Event()

    @contextlib.contextmanager
    def running(self) -> Iterator[Self]:
        thread = threading.Thread(target=self._serve)
        thread.start()
        try:
            yield self
        finally:
            self.released.set()
            self._listening.shutdown(socket.SHUT_RDWR)
            self._listening.close()
            thread.join(END_S)

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            peer, _ = self._listening.accept()
            with peer, self._connect() as behind:
                back = threading.Thread(target=_pump, args=(behind, peer, None))
                back.start()
                _pump(peer, behind, self._hold)
                back.join(END_S)

    def _hold(self, data: bytes) -> None:
        if self._mark in data:
            self.holds.set()
            self.released.wait(END_S)


class AckHold(Hold):
    """A proxy in front of NATS that keeps what a bridge sends from its first acknowledgement on."""

    def __init__(self, port: int) -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        super().__init__(listening, lambda: socket.create_connection(("127.0.0.1", port)), _ACK)
        self.url = f"nats://127.0.0.1:{listening.getsockname()[1]}"


class DoneHold(Hold):
    """A proxy in front of pulse that keeps what a publisher sends from its first ``outbox.done`` on."""

    def __init__(self, server: Path, path: Path) -> None:
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(path))
        listening.listen()
        super().__init__(listening, partial(_connected, server), b"outbox.done")
        self.path = path


def _connected(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.connect(str(path))
    return made


def _pump(source: socket.socket, sink: socket.socket, look: Callable[[bytes], None] | None) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK_BYTES):
            if look is not None:
                look(data)
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def nats_server(*words: str, **login: Any) -> Iterator[NatsServer]:
    """A server; *words* and *login* as of ``NatsServer``; without the program, the test is skipped."""
    program = shutil.which("nats-server", path="/usr/sbin:/usr/bin:/usr/local/bin")
    if program is None:
        pytest.skip("package nats-server is not installed")
    with short_directory() as directory:
        server = NatsServer(program, directory, words, login)
        server.start()
        try:
            yield server
        finally:
            server.end()
