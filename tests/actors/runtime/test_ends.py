"""How an actor begins and ends, with a socket in the place of the supervisor: its exit codes, and its last turn."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import anyio
import pytest
from msgspec.structs import replace

from pulse import config
from pulse.errors import ConfigError, ProtocolError, PulseError, UnavailableError
from pulse.protocol import encode
from pulse.protocol.bus import ActorPong, ActorStart, ActorStop, body_of
from pulse.store.connections.pooler import PoolerError
from pulse_actors.runtime import actor
from pulse_actors.runtime.actor import (
    EXIT_DATABASE,
    EXIT_INTERNAL,
    EXIT_POOLER,
    EXIT_REFUSED,
    EXIT_STOPPED,
    Runtime,
    Turn,
    TurnResult,
)
from pulse_actors.runtime.bus import Bus, BusFrame
from tests.support.waiting import until_async

DSN: Final = "postgresql://nobody@localhost/nothing"
PONG: Final = encode("pong", None, body_of(ActorPong(0.0)))  # no actor knows such a frame


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It changes neither the log of the tests nor the state directory of this user."""
    monkeypatch.setattr(actor, "configure_logging", lambda *_: None)
    monkeypatch.setenv("PULSE_STATE_DIR", str(tmp_path))


def start(*, boot: bool = False, dsn: str | None = DSN) -> bytes:
    settings = config.dump(replace(config.load({}), dsn=dsn))
    return encode("start", None, body_of(ActorStart(settings, boot)))


def code_of(said: Sequence[bytes], main: actor.ActorMain, *, leaves: bool = False) -> int:
    """Of an actor whose supervisor says this."""
    ours, theirs = socket.socketpair()
    with ours:
        ours.sendall(b"".join(said))
        if leaves:
            ours.shutdown(socket.SHUT_WR)
        return anyio.run(_run, theirs.detach(), main)


async def _run(fd: int, main: actor.ActorMain) -> int:
    """The bus is closed afterwards: no process ends here."""
    bus = await Bus.over(fd)

    async def over(_fd: int) -> Bus:
        return bus

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bus, "over", over)
        try:
            return await actor._run("pause", fd, main)
        finally:
            await bus._stream.aclose()


@pytest.mark.parametrize(("error", "boot", "code"), [
    (UnavailableError(), True, EXIT_REFUSED),
    (UnavailableError(), False, EXIT_DATABASE),
    (PoolerError("no"), True, EXIT_POOLER),
    (ConfigError("no"), False, EXIT_REFUSED),
    (ProtocolError("no"), False, EXIT_INTERNAL),
])  # fmt: skip
def test_the_exit_code_says_whether_another_start_may_help(error: PulseError, boot: bool, code: int) -> None:
    async def fail(_runtime: Runtime) -> None:
        raise error

    assert code_of([start(boot=boot)], fail) == code


def test_without_a_database_it_does_not_begin() -> None:
    async def begin(_runtime: Runtime) -> None:
        raise AssertionError

    with pytest.raises(ConfigError, match="gave no DSN"):
        code_of([start(dsn=None)], begin)


@pytest.mark.parametrize("said", [[], [PONG], [PONG, start()]])
def test_it_begins_when_it_has_its_settings(said: list[bytes]) -> None:
    """A supervisor that leaves before is no error."""
    begun: list[str] = []

    async def begin(runtime: Runtime) -> None:
        begun.append(runtime.settings.dsn or "")

    assert code_of(said, begin, leaves=start() not in said) == EXIT_STOPPED
    assert begun == ([DSN] if start() in said else [])


def test_who_has_to_stop_begins_no_other_turn() -> None:
    """The stop comes while it waits for the next one."""
    turns: list[Turn] = []

    class Idle:
        async def prime(self, *, boot: bool) -> None: ...

        async def turn(self, turn: Turn) -> TurnResult:
            turns.append(turn)
            return TurnResult(1000.0)

        async def status(self) -> dict[str, object]:
            return {}

    async def stop(runtime: Runtime) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runtime.loop, Idle())
            await until_async(lambda: bool(turns), "its first turn")
            await runtime._hear(BusFrame("stop", None, body_of(ActorStop(1.0))), tasks)

    assert code_of([start()], stop) == EXIT_STOPPED
    assert len(turns) == 1
